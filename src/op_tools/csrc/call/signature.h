/* SPDX-License-Identifier: Apache-2.0 */
// The signature of a call: what its arguments or its result have in common with other calls of the
// same kind.
#pragma once
#include <c10/util/SmallVector.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstring>

#include "python_tensors.h"

namespace op_tools {

using Words = c10::SmallVector<uint64_t, 40>;

struct WordsHash {
  size_t operator()(const Words& words) const {
    uint64_t h = words.size();
    for (uint64_t word : words) h = (h ^ word) * 0x9E3779B97F4A7C15ull, h ^= h >> 29;
    return h;
  }
};

struct Signature {
  Words words;
  TensorList tensors;
  bool plain = true;   // false: a value that only Python can compare
  bool brief = false;  // a list counts by its first and last element, and the value of a float does
                       // not count
  bool strided =
      false;  // strides, device and requires_grad count, and the value of a float does not
};

inline void read(PyObject* value, Signature& to);

inline void read_tensor(PyObject* value, Signature& to) {
  const at::Tensor& tensor = THPVariable_Unpack(value);
  if (tensor.layout() != at::kStrided || tensor.is_nested()) {
    to.plain = false;
    return;
  }
  to.tensors.push_back(&tensor);
  auto& words = to.words;
  words.push_back((uint64_t(tensor.scalar_type()) << 32) | uint64_t(tensor.dim()) << 8 | 1);
  for (int64_t size : tensor.sizes()) words.push_back(uint64_t(size));
  if (!to.strided) return;
  for (int64_t stride : tensor.strides()) words.push_back(uint64_t(stride));
  const c10::Device device = tensor.device();
  words.push_back(uint64_t(device.type()) << 32 | uint64_t(uint8_t(device.index())) << 8 |
                  uint64_t(tensor.requires_grad()));
}

inline void read_items(PyObject* const* items, Py_ssize_t size, Signature& to) {
  to.words.insert(to.words.end(), {7, uint64_t(size)});
  for (Py_ssize_t i = 0; i < size && to.plain; i++) {
    if (!to.brief || i == 0 || i == size - 1) read(items[i], to);
    else if (!THPVariable_CheckExact(items[i])) read(items[i], to);
  }
}

inline void read_list(PyObject* list, Signature& to) {
  read_items(PySequence_Fast_ITEMS(list), PySequence_Fast_GET_SIZE(list), to);
}

inline void read_number(PyObject* value, Signature& to) {
  uint64_t bits = 0;
  if (PyFloat_CheckExact(value)) {
    const double number = to.strided || to.brief ? 0.0 : PyFloat_AS_DOUBLE(value);
    std::memcpy(&bits, &number, sizeof bits);
    to.words.insert(to.words.end(), {5, bits});
    return;
  }
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
  if (overflow != 0) to.plain = false;
  to.words.insert(to.words.end(), {PyBool_Check(value) ? 3u : 4u, uint64_t(number)});
}

inline void read_hash(PyObject* value, uint64_t kind, Signature& to) {
  const Py_hash_t hash = PyObject_Hash(value);
  if (hash == -1) PyErr_Clear(), to.plain = false;
  to.words.insert(to.words.end(), {kind, uint64_t(hash)});
}

inline void read(PyObject* value, Signature& to) {
  if (THPVariable_CheckExact(value)) return read_tensor(value, to);
  if (value == Py_None) return to.words.push_back(2);
  if (PyFloat_CheckExact(value) || PyLong_CheckExact(value) || PyBool_Check(value))
    return read_number(value, to);
  if (PyTuple_Check(value) || PyList_CheckExact(value)) return read_list(value, to);
  if (PyUnicode_CheckExact(value)) return read_hash(value, 6, to);
  if (THPDtype_Check(value)) return read_hash(value, 8, to);
  if (PySlice_Check(value)) {
    auto* slice = reinterpret_cast<PySliceObject*>(value);
    to.words.push_back(9);
    for (PyObject* part : {slice->start, slice->stop, slice->step}) read(part, to);
    return;
  }
  to.plain = false;  // a device, a dict, a tensor subclass, …
}

// The arguments of a call.
inline void read_arguments(PyObject* args, PyObject* kwargs, Signature& to) {
  read(args, to);
  PyObject *key, *value;
  for (Py_ssize_t at = 0; to.plain && PyDict_Next(kwargs, &at, &key, &value);)
    read_hash(key, 10, to), read(value, to);
}

}  // namespace op_tools
