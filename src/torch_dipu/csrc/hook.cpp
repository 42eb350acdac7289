// Python callables in the engine: one around an operator, callable(name, args, kwargs) -> what the
// operator returns, and one that runs it (a route), callable(*arguments in the schema's order).
#include "hook.h"

#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/tensor_layouts.h>
#include <torch/csrc/utils/tensor_memoryformats.h>

#include "engine.h"

namespace dipu {

// An argument as Python knows it; the stack has a dtype, a layout and a memory format as numbers.
static py::object to_python(const c10::IValue& value, const c10::Argument& argument) {
  if (!value.isInt()) return torch::jit::toPyObject(value);
  auto type = argument.real_type();
  if (type->kind() == c10::TypeKind::OptionalType) type = type->castRaw<c10::OptionalType>()->getElementType();
  const auto borrowed = [](auto* object) { return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(object)); };
  switch (type->kind()) {
    case c10::TypeKind::ScalarTypeType:
      return borrowed(torch::getTHPDtype(static_cast<at::ScalarType>(value.toInt())));
    case c10::TypeKind::LayoutType:
      return borrowed(torch::getTHPLayout(static_cast<at::Layout>(value.toInt())));
    case c10::TypeKind::MemoryFormatType:
      return borrowed(torch::utils::getTHPMemoryFormat(static_cast<at::MemoryFormat>(value.toInt())));
    default:
      return torch::jit::toPyObject(value);
  }
}

static std::string full_name(const Operator& op) {
  const auto& name = op.handle.operator_name();
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

static void push_results(const Operator& op, const py::object& result, torch::jit::Stack* stack) {
  const auto& returns = op.handle.schema().returns();
  if (returns.size() == 1) {
    stack->push_back(torch::jit::toIValue(result, returns[0].type()));
    return;
  }
  const auto items = returns.empty() ? py::tuple() : py::tuple(result);
  for (size_t i = 0; i < returns.size(); i++) stack->push_back(torch::jit::toIValue(items[i], returns[i].type()));
}

void run_callable(Operator& op, const std::atomic<void*>& slot, torch::jit::Stack* stack, c10::DispatchKey host_key) {
  py::gil_scoped_acquire gil;
  auto* callable = static_cast<PyObject*>(slot.load());  // under the GIL: nobody takes it away meanwhile
  if (callable == nullptr) return run_on_host(op, stack, host_key);
  const auto hook = py::reinterpret_borrow<py::object>(callable);
  const size_t base = stack->size() - op.arguments;
  const auto& arguments = op.handle.schema().arguments();
  py::list positional;
  py::dict keywords;
  for (size_t i = 0; i < op.arguments; i++) {
    auto value = to_python((*stack)[base + i], arguments[i]);
    if (arguments[i].kwarg_only()) keywords[py::str(arguments[i].name())] = value;
    else positional.append(value);
  }
  const py::object result = hook(full_name(op), py::tuple(positional), keywords);
  torch::jit::drop(*stack, op.arguments);
  push_results(op, result, stack);
}

namespace {

struct PythonRoute final : Route {
  PythonRoute(std::string kind, std::string who, py::object callable)
      : Route(std::move(kind), std::move(who)), callable_(callable.release().ptr()) {}

  bool run(Operator& op, torch::jit::Stack* stack) override {
    py::gil_scoped_acquire gil;
    const size_t base = stack->size() - op.arguments;
    const auto& arguments = op.handle.schema().arguments();
    c10::SmallVector<py::object, 8> held;
    c10::SmallVector<PyObject*, 8> given;
    for (size_t i = 0; i < op.arguments; i++) {
      held.push_back(to_python((*stack)[base + i], arguments[i]));
      given.push_back(held.back().ptr());
    }
    const auto result = py::reinterpret_steal<py::object>(PyObject_Vectorcall(callable_, given.data(), given.size(), nullptr));
    if (!result) throw py::error_already_set();
    if (result.ptr() == Py_NotImplemented) return false;
    if (!returns_arguments(op, stack, base)) {
      torch::jit::drop(*stack, op.arguments);
      push_results(op, result, stack);
    }
    return true;
  }

 private:
  PyObject* callable_;  // kept for good, as the route is

  // What an in-place or out= form returns is on the stack already.
  static bool returns_arguments(const Operator& op, torch::jit::Stack* stack, size_t base) {
    if (op.returns == 0) return false;
    for (int source : op.return_of) if (source < 0) return false;
    c10::SmallVector<c10::IValue, 2> results;
    for (int source : op.return_of) results.push_back((*stack)[base + source]);
    torch::jit::drop(*stack, op.arguments);
    for (auto& result : results) stack->push_back(std::move(result));
    return true;
  }
};

py::list records() {
  py::list all;
  for (const auto& record : operator_records()) {
    py::list routes;
    for (const Route* route : record.routes) routes.append(py::make_tuple(route->kind, route->who, route->calls.load()));
    all.append(py::make_tuple(record.name, record.special, routes, record.forced_calls, record.host_calls));
  }
  return all;
}

// the reference is kept for good: an operator may be inside the callable on another thread
void* kept(py::object callable) {
  return callable.is_none() ? nullptr : callable.release().ptr();
}

}  // namespace

void bind_routes(py::module_& m) {
  py::class_<Route, std::unique_ptr<Route, py::nodelete>>(m, "Route")
      .def_readonly("kind", &Route::kind)
      .def_readonly("who", &Route::who)
      .def_property_readonly("calls", [](const Route& route) { return route.calls.load(); });
  m.def("python_route", [](std::string kind, std::string who, py::object callable) -> Route* {
    return new PythonRoute(std::move(kind), std::move(who), std::move(callable));
  }, py::return_value_policy::reference);
  m.def("set_routes", &set_routes);
  m.def("set_forced", &set_forced);
  m.def("set_hook", [](const std::vector<std::string>& names, py::object callable) { set_hook(names, kept(std::move(callable))); });
  m.def("set_watcher", [](const std::vector<std::string>& names, py::object callable) { set_watcher(names, kept(std::move(callable))); });
  m.def("operators", &known_operators);
  m.def("operator_records", &records);
  const auto exchange = [](Special what) {
    return [what](bool off) {
      const bool before = (tls_off & what) != 0;
      tls_off = static_cast<uint8_t>(off ? tls_off | what : tls_off & ~what);
      return before;
    };
  };
  m.def("exchange_hooks_off", exchange(kHooked));
  m.def("exchange_watch_off", exchange(kWatched));
}

}  // namespace dipu
