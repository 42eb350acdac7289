// The tensors of a call of one of torch's functions.
#pragma once
#include "seen.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/python_variable.h>

namespace op_tools {

struct Found {
  Tensors tensors;
  c10::SmallVector<PyObject*, 8> objects;  // the same, as Python has them
  bool plain = true;    // none is of a class of its own
  bool chosen = false;  // something is true among the arguments: it may be `inplace`

  void clear() { tensors.clear(), objects.clear(), plain = true, chosen = false; }
};

inline void collect(PyObject* value, Found& found);

inline void collect_others(PyObject* value, Found& found) {
  if (value == Py_True) found.chosen = true;
  else if (value == Py_None || PyFloat_CheckExact(value) || PyLong_CheckExact(value) || PyUnicode_CheckExact(value)) return;
  else if (PyTuple_Check(value) || PyList_Check(value)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); i++) collect(PySequence_Fast_GET_ITEM(value, i), found);
  } else if (PyDict_Check(value)) {
    PyObject *key, *item;
    for (Py_ssize_t at = 0; PyDict_Next(value, &at, &key, &item);) collect(item, found);
  } else if (THPVariable_Check(value)) {
    found.plain = false;
  }
}

inline void collect(PyObject* value, Found& found) {  // hot path
  if (!THPVariable_CheckExact(value)) return collect_others(value, found);
  found.tensors.push_back(&THPVariable_Unpack(value));
  found.objects.push_back(value);
}

// Whether a mode of torch's is at work that is to see the calls of ours.
inline bool is_under_mode() {
  using c10::DispatchKey;
  const auto on = c10::impl::tls_local_dispatch_key_set().included_;
  return on.has(DispatchKey::Python) || on.has(DispatchKey::FuncTorchDynamicLayerFrontMode);
}

inline c10::DeviceType kind_of(const Tensors& tensors) {  // an accelerator goes before the CPU
  for (const at::Tensor* tensor : tensors)
    if (!tensor->is_cpu()) return tensor->device().type();
  return c10::DeviceType::CPU;
}

}  // namespace op_tools
