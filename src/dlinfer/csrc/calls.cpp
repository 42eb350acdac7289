// SPDX-License-Identifier: Apache-2.0
// Fast calls of fused ops from Python: plain positional tensors and numbers go directly to the dispatcher;
// any other call takes torch's general path, which is slower.

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/TracerMode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

namespace {

using c10::IValue;
using c10::TypeKind;

struct Op {
  c10::OperatorHandle handle;
  PyObject* general;  // handles every call
};

struct WithoutGil {
  PyThreadState* state = PyEval_SaveThread();
  ~WithoutGil() { PyEval_RestoreThread(state); }
};

// Pushes the value of a parameter; returns false if it is not plain.
bool push(const c10::Type& type, PyObject* given, torch::jit::Stack& stack) {
  switch (type.kind()) {
    case TypeKind::TensorType:
      if (!THPVariable_CheckExact(given)) return false;
      stack.emplace_back(THPVariable_Unpack(given));
      return true;
    case TypeKind::FloatType:
      if (!PyFloat_CheckExact(given)) return false;
      stack.emplace_back(PyFloat_AS_DOUBLE(given));
      return true;
    case TypeKind::IntType: {
      if (!PyLong_CheckExact(given)) return false;
      int overflow = 0;
      const int64_t value = PyLong_AsLongLongAndOverflow(given, &overflow);
      if (!overflow) stack.emplace_back(value);
      return !overflow;
    }
    case TypeKind::BoolType:
      if (!PyBool_Check(given)) return false;
      stack.emplace_back(given == Py_True);
      return true;
    case TypeKind::OptionalType:
      if (given != Py_None) return push(*type.containedType(0), given, stack);
      stack.emplace_back();
      return true;
    default:
      return false;
  }
}

bool take(const Op& op, PyObject* const* given, size_t count, torch::jit::Stack& stack) {
  const auto& parameters = op.handle.schema().arguments();
  if (count > parameters.size()) return false;
  stack.reserve(parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (i < count) {
      if (!push(*parameters[i].type(), given[i], stack)) return false;
    } else {
      const auto& otherwise = parameters[i].default_value();
      if (!otherwise) return false;
      stack.push_back(*otherwise);
    }
  }
  return true;
}

PyObject* given_back(torch::jit::Stack& stack) {
  if (stack.empty()) Py_RETURN_NONE;
  if (stack.size() == 1) return THPVariable_Wrap(std::move(stack[0]).toTensor());
  pybind11::tuple results(stack.size());
  for (size_t i = 0; i < stack.size(); ++i) {
    PyTuple_SET_ITEM(results.ptr(), i, THPVariable_Wrap(std::move(stack[i]).toTensor()));
  }
  return results.release().ptr();
}

// hot path
PyObject* call(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  HANDLE_TH_ERRORS
  const auto& op = *static_cast<Op*>(PyCapsule_GetPointer(self, nullptr));
  torch::jit::Stack stack;
  if (names || at::impl::torch_function_mode_enabled() || at::tracer::impl::is_dispatch_enabled() ||
      !take(op, given, count, stack)) {
    return PyObject_Vectorcall(op.general, given, count, names);
  }
  {
    WithoutGil released;
    op.handle.callBoxed(stack);
  }
  return given_back(stack);
  END_HANDLE_TH_ERRORS
}

PyMethodDef CALL = {"call", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(call)),
                    METH_FASTCALL | METH_KEYWORDS, "The op, by its plain arguments."};

// Creates the callable of an op whose results are tensors; `general` handles calls that are not plain.
// Never freed, as ops are.
pybind11::object caller(const std::string& name, pybind11::object general) {
  auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), "");
  for (const auto& result : handle.schema().returns()) {
    TORCH_CHECK(result.type()->kind() == TypeKind::TensorType, name, " returns other than tensors");
  }
  auto* op = new Op{std::move(handle), general.release().ptr()};
  pybind11::capsule self(static_cast<void*>(op));
  return pybind11::reinterpret_steal<pybind11::object>(PyCFunction_New(&CALL, self.ptr()));
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) { module.def("caller", &caller); }
