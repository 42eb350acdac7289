// The arguments or the result of a call, read in one pass: what tells two kinds of calls apart.
#pragma once
#include <pybind11/pybind11.h>

#include <torch/csrc/Dtype.h>
#include <torch/csrc/autograd/python_variable.h>

#include <c10/util/SmallVector.h>

#include <cstring>

namespace op_tools {

using Words = c10::SmallVector<uint64_t, 40>;  // what a value is, for comparison
using Tensors = c10::SmallVector<const at::Tensor*, 8>;

struct WordsHash {
  size_t operator()(const Words& words) const {
    uint64_t h = words.size();
    for (uint64_t word : words) h = (h ^ word) * 0x9E3779B97F4A7C15ull, h ^= h >> 29;
    return h;
  }
};

// What is read from a call's arguments, or from its result, in one pass.
struct Seen {
  Words words;
  Tensors tensors;
  bool plain = true;  // nothing among them that Python has to look at
  bool brief = false;  // of a list, its ends stand for the rest, and the value of a float does not count
  bool work = false;   // what tells two kinds of work apart: strides count, and the value of a float does not
};

inline void see(PyObject* value, Seen& seen);

inline void see_tensor(PyObject* value, Seen& seen) {
  const at::Tensor& tensor = THPVariable_Unpack(value);
  if (tensor.layout() != at::kStrided || tensor.is_nested()) {
    seen.plain = false;
    return;
  }
  seen.tensors.push_back(&tensor);
  auto& words = seen.words;
  words.push_back((uint64_t(tensor.scalar_type()) << 32) | uint64_t(tensor.dim()) << 8 | 1);
  for (int64_t size : tensor.sizes()) words.push_back(uint64_t(size));
  if (!seen.work) return;
  for (int64_t stride : tensor.strides()) words.push_back(uint64_t(stride));
  const c10::Device device = tensor.device();
  words.push_back(uint64_t(device.type()) << 32 | uint64_t(uint8_t(device.index())) << 8 | uint64_t(tensor.requires_grad()));
}

inline void see_items(PyObject* const* items, Py_ssize_t size, Seen& seen) {
  seen.words.insert(seen.words.end(), {7, uint64_t(size)});
  for (Py_ssize_t i = 0; i < size && seen.plain; i++) {
    if (!seen.brief || i == 0 || i == size - 1) see(items[i], seen);
    else if (!THPVariable_CheckExact(items[i])) see(items[i], seen);
  }
}

inline void see_list(PyObject* list, Seen& seen) { see_items(PySequence_Fast_ITEMS(list), PySequence_Fast_GET_SIZE(list), seen); }

inline void see_number(PyObject* value, Seen& seen) {
  uint64_t bits = 0;
  if (PyFloat_CheckExact(value)) {
    const double number = seen.work || seen.brief ? 0.0 : PyFloat_AS_DOUBLE(value);
    std::memcpy(&bits, &number, sizeof bits);
    seen.words.insert(seen.words.end(), {5, bits});
    return;
  }
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
  if (overflow != 0) seen.plain = false;
  seen.words.insert(seen.words.end(), {PyBool_Check(value) ? 3u : 4u, uint64_t(number)});
}

inline void see_hashed(PyObject* value, uint64_t kind, Seen& seen) {
  const Py_hash_t hash = PyObject_Hash(value);
  if (hash == -1) PyErr_Clear(), seen.plain = false;
  seen.words.insert(seen.words.end(), {kind, uint64_t(hash)});
}

inline void see(PyObject* value, Seen& seen) {
  if (THPVariable_CheckExact(value)) return see_tensor(value, seen);
  if (value == Py_None) return seen.words.push_back(2);
  if (PyFloat_CheckExact(value) || PyLong_CheckExact(value) || PyBool_Check(value)) return see_number(value, seen);
  if (PyTuple_Check(value) || PyList_CheckExact(value)) return see_list(value, seen);
  if (PyUnicode_CheckExact(value)) return see_hashed(value, 6, seen);
  if (THPDtype_Check(value)) return see_hashed(value, 8, seen);
  if (PySlice_Check(value)) {
    auto* slice = reinterpret_cast<PySliceObject*>(value);
    seen.words.push_back(9);
    for (PyObject* part : {slice->start, slice->stop, slice->step}) see(part, seen);
    return;
  }
  seen.plain = false;  // a device, a dict, a tensor of a kind of its own, …
}

}  // namespace op_tools
