/* SPDX-License-Identifier: Apache-2.0 */
// The tensors of a call of one of torch's Python functions.
#pragma once
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cmath>

namespace op_tools {

using TensorList = c10::SmallVector<const at::Tensor*, 8>;

struct PythonTensors {
  TensorList tensors;
  bool plain = true;          // false: a tensor subclass is among them
  bool has_true = false;      // an argument is True: it may be `inplace`
  bool has_infinity = false;  // an argument is an infinite number
};

inline void collect(PyObject* value, PythonTensors& found) {
  if (THPVariable_CheckExact(value)) {
    found.tensors.push_back(&THPVariable_Unpack(value));
  } else if (value == Py_True) {
    found.has_true = true;
  } else if (PyFloat_CheckExact(value)) {
    found.has_infinity = found.has_infinity || std::isinf(PyFloat_AS_DOUBLE(value));
  } else if (value == Py_None || PyLong_CheckExact(value) || PyUnicode_CheckExact(value)) {
    return;
  } else if (PyTuple_Check(value) || PyList_Check(value)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); i++)
      collect(PySequence_Fast_GET_ITEM(value, i), found);
  } else if (PyDict_Check(value)) {
    PyObject *key, *item;
    for (Py_ssize_t at = 0; PyDict_Next(value, &at, &key, &item);) collect(item, found);
  } else if (THPVariable_Check(value)) {
    found.plain = false;
  }
}

// Whether a dispatch mode or a functorch transform is active, which would see the calls of a tool.
inline bool is_under_mode() {
  using c10::DispatchKey;
  const auto on = c10::impl::tls_local_dispatch_key_set().included_;
  return on.has(DispatchKey::Python) || on.has(DispatchKey::FuncTorchDynamicLayerFrontMode);
}

// The device type that a call works on: an accelerator's before the CPU's.
inline c10::DeviceType device_type_of(const TensorList& tensors) {
  for (const at::Tensor* tensor : tensors)
    if (!tensor->is_cpu()) return tensor->device().type();
  return c10::DeviceType::CPU;
}

}  // namespace op_tools
