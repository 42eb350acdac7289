// A Python callable around an operator: callable(name, args, kwargs) -> what the operator returns.
#include <torch/csrc/jit/python/pybind_utils.h>

#include "engine.h"
#include "span.h"

namespace dipu {

static py::tuple to_python(const Operator& op, const torch::jit::Stack& stack, size_t base) {
  const auto& arguments = op.handle.schema().arguments();
  py::list positional;
  py::dict keywords;
  for (size_t i = 0; i < op.arguments; i++) {
    auto value = torch::jit::toPyObject(stack[base + i]);
    if (arguments[i].kwarg_only()) keywords[py::str(arguments[i].name())] = value;
    else positional.append(value);
  }
  const auto& name = op.handle.operator_name();
  const auto full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
  return py::make_tuple(full, py::tuple(positional), keywords);
}

void run_hook(Operator& op, torch::jit::Stack* stack, c10::DispatchKey host_key) {
  py::gil_scoped_acquire gil;
  auto* callable = static_cast<PyObject*>(op.hook.load());  // under the GIL: nobody takes it away meanwhile
  if (callable == nullptr) return run_on_host(op, stack, host_key);
  const auto hook = py::reinterpret_borrow<py::object>(callable);
  const size_t base = stack->size() - op.arguments;
  const Span span(op, *stack);  // what a fault adds is the kernel's too
  const py::object result = hook(*to_python(op, *stack, base));
  torch::jit::drop(*stack, op.arguments);
  const auto& returns = op.handle.schema().returns();
  if (returns.size() == 1) {
    stack->push_back(torch::jit::toIValue(result, returns[0].type()));
    return;
  }
  const auto items = returns.empty() ? py::tuple() : py::tuple(result);
  for (size_t i = 0; i < returns.size(); i++) stack->push_back(torch::jit::toIValue(items[i], returns[i].type()));
}

}  // namespace dipu
