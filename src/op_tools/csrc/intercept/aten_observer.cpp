// SPDX-License-Identifier: Apache-2.0
// The aten frontend: torch's RecordFunction observers see every kernel, in every thread.
#include <ATen/record_function.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include "op_table.h"

#ifndef NDEBUG
#error "define NDEBUG, as torch does: it changes the layout of a RecordFunction"
#endif

namespace op_tools {
namespace {

using Values = c10::ArrayRef<const c10::IValue>;

// Python's side. before(function, args, kwargs) -> state or None; after(state, results). Never
// released: threads may outlive the module.
PyObject* before_call = nullptr;
PyObject* after_call = nullptr;

std::atomic<bool> host_too{false};
std::optional<at::CallbackHandle> handle;

thread_local int depth = 0;  // inside a kernel that is observed, or in a tool's own work

struct Inside {
  Inside() { depth++; }
  ~Inside() { depth--; }
  Inside(const Inside&) = delete;
};

// What is kept from before a call until after it.
struct Observed : at::ObserverContext {
  explicit Observed(std::shared_ptr<const Decision> decision) : decision(std::move(decision)) {}
  const std::shared_ptr<const Decision> decision;
  PyObject* state = nullptr;  // of Python; null: a sink records the call
  CallView call;
};

template <typename Visit>
void each_tensor(const c10::IValue& value, Visit&& visit) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (tensor.defined() && !tensor.unsafeGetTensorImpl()->is_wrapped_number()) visit(tensor);
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) each_tensor(item, visit);
  } else if (value.isTuple()) {
    for (const c10::IValue& item : value.toTupleRef().elements()) each_tensor(item, visit);
  }
}

TensorList tensors_in(Values values) {
  TensorList found;
  for (const auto& value : values)
    each_tensor(value, [&](const at::Tensor& tensor) { found.push_back(&tensor); });
  return found;
}

// The device that a call works on: its tensors', an accelerator's before the CPU's, else the one
// that an argument names.
std::optional<c10::DeviceType> device_of(const TensorList& tensors, Values inputs) {
  if (!tensors.empty()) return device_type_of(tensors);
  for (const auto& value : inputs)
    if (value.isDevice()) return value.toDevice().type();
  return std::nullopt;
}

bool any_on_device(const TensorList& tensors, Values inputs) {
  if (std::any_of(tensors.begin(), tensors.end(),
                  [](const at::Tensor* tensor) { return !tensor->is_cpu(); }))
    return true;
  return std::any_of(inputs.begin(), inputs.end(), [](const c10::IValue& value) {
    return value.isDevice() && !value.toDevice().is_cpu();
  });
}

enum class Outcome { recorded, unwanted, for_python };

Outcome begin_recorded(Observed& own, Values inputs, std::optional<c10::DeviceType> device) {
  const Decision& decision = *own.decision;
  CallView& call = own.call;
  for (size_t i = 0; i < inputs.size(); i++)
    each_tensor(inputs[i], [&](const at::Tensor& tensor) { call.add(tensor, decision.writes(i)); });
  const auto is_fit = [&](const auto& input) {
    return !input.tensor.is_inference() && decision.sink->accepts(input.tensor);
  };
  if (!device || is_under_mode() || !std::all_of(call.inputs.begin(), call.inputs.end(), is_fit))
    return Outcome::for_python;
  const auto header = decision.headers->make(decision.name, *device);
  if (!header) return Outcome::unwanted;
  call.header = *header;
  const auto is_infinite = [](const c10::IValue& value) {
    return value.isDouble() && std::isinf(value.toDouble());
  };
  call.header.infinite_argument = decision.sink->marks_infinite_arguments() &&
                                  std::any_of(inputs.begin(), inputs.end(), is_infinite);
  // torch's own operators declare what they write; others may write anything
  call.may_write = decision.written != 0 || !decision.of_torch;
  decision.sink->enter(call);
  return Outcome::recorded;
}

PyObject* call_before(const Decision& decision, Values inputs) {  // with the GIL
  const auto& arguments = decision.schema->arguments();
  py::list positional;
  py::dict keywords;
  for (size_t i = 0; i < inputs.size() && i < arguments.size(); i++) {
    auto value = torch::jit::toPyObject(inputs[i]);
    if (arguments[i].kwarg_only()) keywords[py::str(arguments[i].name())] = value;
    else positional.append(value);
  }
  return PyObject_CallFunctionObjArgs(before_call, decision.function, py::tuple(positional).ptr(),
                                      keywords.ptr(), nullptr);
}

// Whether Python observes the call.
bool begin_python(Observed& own, Values inputs) {
  py::gil_scoped_acquire gil;
  PyObject* state = nullptr;
  try {
    state = call_before(*own.decision, inputs);
  } catch (const std::exception&) {  // an argument that has no Python type
    PyErr_Clear();
  }
  if (state == nullptr && PyErr_Occurred()) PyErr_WriteUnraisable(before_call);
  if (state == Py_None) Py_CLEAR(state);
  own.state = state;
  return state != nullptr;
}

std::unique_ptr<at::ObserverContext> before(const at::RecordFunction& fn) {
  if (depth > 0) return nullptr;
  const auto decision = slot_of(fn.name()).get([&] { return fn.operator_name(); });
  if (decision->function == nullptr) return nullptr;
  const Inside inside;
  const Values inputs = fn.inputs();
  const TensorList tensors = tensors_in(inputs);
  if (!host_too && !any_on_device(tensors, inputs)) return nullptr;
  auto own = std::make_unique<Observed>(decision);
  Outcome outcome = Outcome::for_python;
  if (decision->sink != nullptr) try {
      outcome = begin_recorded(*own, inputs, device_of(tensors, inputs));
    } catch (const std::exception& error) {  // a tool must not end the program that it watches
      decision->sink->report(decision->function, error.what());
      return nullptr;
    }
  if (outcome == Outcome::unwanted ||
      (outcome == Outcome::for_python && !begin_python(*own, inputs)))
    return nullptr;
  depth++;  // until `after`: what the kernel calls is part of it
  return own;
}

// `nn.Parameter` and `as_subclass` change the Python class of the result of these two, which is
// possible only while it has no Python object: Python gets another tensor of the same memory.
c10::IValue without_python_object(const Decision& decision, const c10::IValue& value) {
  const std::string& name = decision.schema->name();
  if ((name != "aten::detach" && name != "aten::alias") || !value.isTensor() ||
      !value.toTensor().defined())
    return value;
  const auto* impl = value.toTensor().unsafeGetTensorImpl();
  return at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(), true));
}

void end_python(Observed& own, Values outputs, bool raised) {
  py::gil_scoped_acquire gil;
  if (!raised) try {
      py::list results;
      for (const auto& output : outputs)
        results.append(torch::jit::toPyObject(without_python_object(*own.decision, output)));
      PyObject* done = PyObject_CallFunctionObjArgs(after_call, own.state, results.ptr(), nullptr);
      if (done == nullptr) PyErr_WriteUnraisable(after_call);
      Py_XDECREF(done);
    } catch (const std::exception&) {
      PyErr_Clear();
    }
  Py_CLEAR(own.state);
}

void after(const at::RecordFunction& fn, at::ObserverContext* context) {
  if (context == nullptr) return;
  auto& own = *static_cast<Observed*>(context);
  const Decision& decision = *own.decision;
  const Values outputs(fn.outputs().data(), fn.outputs().size());
  const bool raised = outputs.size() != decision.schema->returns().size();
  if (own.state != nullptr) {
    end_python(own, outputs, raised);
  } else if (!raised) {
    try {
      own.call.find_written();
      decision.sink->exit(own.call, tensors_in(outputs));
    } catch (const std::exception& error) {
      decision.sink->report(decision.function, error.what());
    }
  }
  depth--;
}

}  // namespace

void watch_kernels(bool on, bool host, py::object decide, py::object before_python,
                   py::object after_python) {
  host_too = host;
  reset_decisions();
  if (on && before_call == nullptr) {
    set_decider(decide.release().ptr());
    before_call = before_python.release().ptr();
    after_call = after_python.release().ptr();
  }
  if (on && !handle) {
    handle = at::addGlobalCallback(at::RecordFunctionCallback(before, after)
                                       .needsInputs(true)
                                       .needsOutputs(true)
                                       .scopes({at::RecordScope::FUNCTION}));
  } else if (!on && handle) {
    at::removeCallback(*handle);
    handle.reset();
  }
}

void bind_aten_observer(py::module_& m) { m.def("watch_kernels", &watch_kernels); }

}  // namespace op_tools
