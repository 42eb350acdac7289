// SPDX-License-Identifier: Apache-2.0
// Python callables in the engine: one around an operator, callable(name, args, kwargs) -> the
// operator's results, and one that implements it (a route), callable(*arguments in the schema's order).
#include "routes/python_hook.h"

#include <c10/core/DeviceGuard.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/tensor_layouts.h>
#include <torch/csrc/utils/tensor_memoryformats.h>

#include <deque>
#include <sstream>

#include "engine/engine.h"

namespace dipu {

// Converts an argument to Python; the stack holds a dtype, a layout and a memory format as numbers.
static py::object to_python(const c10::IValue& value, const c10::Argument& argument) {
  // not by toPyObject: it would unwrap a number that torch stores as a tensor, which some overloads refuse
  if (value.isTensor()) return py::reinterpret_steal<py::object>(THPVariable_Wrap(value.toTensor()));
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
  // under the GIL: no other thread can replace it
  auto* callable = static_cast<PyObject*>(slot.load());
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

// Copies a host tensor to the kernel's device; for type promotion it is still a number.
at::Tensor moved(const at::Tensor& t, int device) {
  auto result = t.to(dipu_device(device));
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) result.unsafeGetTensorImpl()->set_wrapped_number(true);
  return result;
}

struct PythonRoute final : Route {
  PythonRoute(std::string kind, std::string who, py::object callable, uint64_t numbers)
      : Route(std::move(kind), std::move(who)), callable_(callable.release().ptr()), numbers_(numbers) {}

  bool run(Operator& op, torch::jit::Stack* stack) override {
    const auto where = where_is(op, *stack);
    if (where.mixed || where.device < 0) return false;
    const c10::DeviceGuard guard(dipu_device(where.device));
    py::gil_scoped_acquire gil;
    const size_t base = stack->size() - op.arguments;
    c10::SmallVector<py::object, 8> held;
    c10::SmallVector<PyObject*, 8> given;
    for (size_t i = 0; i < op.arguments; i++) {
      held.push_back(argument(op, (*stack)[base + i], i, where.device));
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
  PyObject* callable_;  // never freed, as the route
  // bit i: argument i is a tensor in the schema, and the kernel accepts a number
  const uint64_t numbers_;

  py::object argument(const Operator& op, const c10::IValue& value, size_t index, int device) const {
    if (value.isTensor()) {
      const auto& t = value.toTensor();
      if (!t.defined() || t.device().type() == kDipu || t.dim() > 0) return torch::jit::toPyObject(value);
      const bool number = index < 64 && (numbers_ >> index & 1) && t.unsafeGetTensorImpl()->is_wrapped_number();
      if (number) return torch::jit::toPyObject(t.item());
      return py::reinterpret_steal<py::object>(THPVariable_Wrap(moved(t, device)));
    }
    if (value.isOptionalTensorList()) return indices(value, device);
    return to_python(value, op.handle.schema().arguments()[index]);
  }
  static py::list indices(const c10::IValue& value, int device) {
    py::list all;
    for (const c10::IValue& element : value.toListRef()) {
      const bool on_host = element.isTensor() && element.toTensor().defined() && element.toTensor().is_cpu();
      all.append(torch::jit::toPyObject(on_host ? c10::IValue(moved(element.toTensor(), device)) : element));
    }
    return all;
  }

  // The return values of an in-place or out= form are on the stack already.
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

// Calls a host function on device tensors: it gets host tensors on the same bytes, allocates device
// memory, and its results are device tensors.
class OnHost {
 public:
  py::object call(const py::function& function, const py::tuple& args, const py::dict& kwargs, bool seeded) {
    py::list positional;
    for (const auto& value : args) positional.append(to_host(value));
    py::dict keywords;
    for (const auto& [name, value] : kwargs) keywords[name] = to_host(value);
    if (device_ < 0) device_ = resolve_device(-1);
    py::object result;
    {
      std::optional<BorrowEngine> borrowed;
      if (seeded) {
        py::gil_scoped_release release;  // the engine's owner may be waiting for the GIL
        borrowed.emplace(device_);
      }
      RedirectGuard redirect(device_);
      result = function(*py::tuple(positional), **keywords);
    }
    return to_device(result);
  }

 private:
  int device_ = -1;
  std::deque<HostEngine> numbers_;  // for the generators among the arguments
  c10::SmallVector<std::pair<c10::StorageImpl*, c10::Storage>, 4> known_;  // host storage -> device storage

  py::object to_host(py::handle value) {
    if (THPVariable_Check(value.ptr())) {
      const auto& t = THPVariable_Unpack(value.ptr());
      if (!on_device(t)) return py::reinterpret_borrow<py::object>(value);
      TORCH_CHECK(t.has_storage() && host_reachable(t.device().index()), "the host does not reach the memory of a tensor on ", t.device());
      device_ = t.device().index();
      auto host = alias_host(t);
      known_.emplace_back(host.storage().unsafeGetStorageImpl(), t.storage());
      return py::reinterpret_steal<py::object>(THPVariable_Wrap(std::move(host)));
    }
    if (py::isinstance<py::list>(value) || py::isinstance<py::tuple>(value)) {
      py::list all;
      for (const auto& element : py::reinterpret_borrow<py::sequence>(value)) all.append(to_host(element));
      return all;
    }
    if (THPGenerator_Check(value.ptr())) {
      const auto generator = py::cast<at::Generator>(value);
      if (generator.device().type() == kDipu) return py::cast(numbers_.emplace_back(generator, generator.device().index()).engine());
    }
    return py::reinterpret_borrow<py::object>(value);
  }
  py::object to_device(const py::object& value) {
    if (THPVariable_Check(value.ptr())) return py::reinterpret_steal<py::object>(THPVariable_Wrap(device_of_result(THPVariable_Unpack(value.ptr()))));
    if (py::isinstance<py::list>(value) || py::isinstance<py::tuple>(value)) {
      py::list all;
      for (const auto& element : py::reinterpret_borrow<py::sequence>(value)) all.append(to_device(py::reinterpret_borrow<py::object>(element)));
      if (py::isinstance<py::tuple>(value)) return py::tuple(all);
      return all;
    }
    return value;
  }
  at::Tensor device_of_result(const at::Tensor& t) {
    if (!t.is_cpu() || !t.has_storage()) return t;
    auto* storage = t.storage().unsafeGetStorageImpl();
    for (auto& [host, device] : known_) if (host == storage) return device_view(device, t);
    auto result = adopt_host(t, device_);
    known_.emplace_back(storage, result.storage());
    return result;
  }
};

// Formats a tensor in one line, for the dump of a call.
std::string described(const at::Tensor& t) {
  std::ostringstream text;
  text << "numel:" << t.numel() << ", sizes:" << t.sizes();
  if (t.layout() == c10::kStrided) text << ", stride:" << t.strides();
  text << ", is_view:" << t.is_view() << ", " << t.options();
  if (t.has_storage()) {
    const auto* start = static_cast<const char*>(t.storage().data());
    text << ", data_ptr:" << static_cast<const void*>(start + t.storage_offset() * static_cast<int64_t>(t.itemsize()));
  }
  return text.str();
}

py::list records() {
  py::list all;
  for (const auto& record : operator_records()) {
    py::list routes;
    for (const Route* route : record.routes) routes.append(py::make_tuple(route->kind, route->who, route->calls.load()));
    all.append(py::make_tuple(record.name, record.special, routes, record.forced_calls, record.host_calls, record.has_host_kernel));
  }
  return all;
}

// the reference is never released: an operator may be inside the callable on another thread
void* kept(py::object callable) {
  return callable.is_none() ? nullptr : callable.release().ptr();
}

}  // namespace

void bind_routes(py::module_& m) {
  py::class_<Route, std::unique_ptr<Route, py::nodelete>>(m, "Route")
      .def_readonly("kind", &Route::kind)
      .def_readonly("who", &Route::who)
      .def_property_readonly("calls", [](const Route& route) { return route.calls.load(); });
  m.def("python_route", [](std::string kind, std::string who, py::object callable, uint64_t numbers) -> Route* {
    return new PythonRoute(std::move(kind), std::move(who), std::move(callable), numbers);
  }, py::return_value_policy::reference);
  m.def("composite_route", &composite_route, py::return_value_policy::reference);
  m.def("set_routes", &set_routes);
  m.def("clear_routes", &clear_routes);
  m.def("set_forced", &set_forced);
  m.def("set_hook", [](const std::vector<std::string>& names, py::object callable) { set_hook(names, kept(std::move(callable))); });
  m.def("set_watcher", [](const std::vector<std::string>& names, py::object callable) { set_watcher(names, kept(std::move(callable))); });
  m.def("call_on_host", [](const py::function& function, const py::tuple& args, const py::dict& kwargs, bool seeded) {
    return OnHost().call(function, args, kwargs, seeded);
  });
  m.def("described", &described);
  m.def("values_of", [](const at::Tensor& t) {
    std::ostringstream text;
    text << t;
    return text.str();
  });
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
