/* SPDX-License-Identifier: Apache-2.0 */
// Helpers of the ops: supported types, refused calls, integers of either size.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <optional>
#include <string>

#include "kernels.h"

namespace dlinfer {

using at::Tensor;
using Maybe = std::optional<Tensor>;

constexpr int64_t kTogether = 16;  // rows of weights in one step of a thread

extern std::atomic<bool> bypassed;  // another vendor's kernels, or the reference, are selected
extern PyObject* refused;  // (op, reason, *arguments) -> what the op returns

// Returns the op's result for a call that its kernel does not support.
template <class Result, class... Arguments>
Result otherwise(const char* op, const std::string& reason, const Arguments&... arguments) {
  pybind11::gil_scoped_acquire gil;
  pybind11::object result = pybind11::handle(refused)(op, reason, arguments...);
  if constexpr (!std::is_void_v<Result>) return result.cast<Result>();
}

inline int kind(const Tensor& t) { return t.scalar_type() == at::kFloat ? 0 : 1; }

inline std::string wrong_type(const Tensor& t) {
  if (t.scalar_type() == at::kFloat || t.scalar_type() == at::kBFloat16) return "";
  return std::string("its kernel has float32 and bfloat16, not ") + c10::toString(t.scalar_type());
}

inline std::string mixed(std::initializer_list<const Tensor*> tensors) {
  const Tensor& first = **tensors.begin();
  for (const Tensor* t : tensors) {
    if (t->scalar_type() != first.scalar_type())
      return std::string("its kernel does not mix ") + c10::toString(first.scalar_type()) + " and " + c10::toString(t->scalar_type());
    if (!t->device().is_cpu()) return "an argument is not on the CPU";
  }
  return wrong_type(first);
}

// Makes the last dimension dense, as the kernels require.
inline Tensor dense(const Tensor& t) { return t.size(-1) == 1 || t.stride(-1) == 1 ? t : t.contiguous(); }

inline char* address(const Tensor& t) { return static_cast<char*>(const_cast<void*>(t.const_data_ptr())); }

// The integers of a tensor of int32 or int64.
struct Whole {
  Tensor held;
  const void* data;
  bool wide;

  explicit Whole(const Tensor& t) : held(t.contiguous()) {
    if (held.scalar_type() != at::kInt && held.scalar_type() != at::kLong) held = held.to(at::kLong);
    data = held.const_data_ptr();
    wide = held.scalar_type() == at::kLong;
  }
  int64_t operator[](int64_t i) const {
    return wide ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
  }
  const void* row(int64_t i, int64_t columns) const {
    return static_cast<const char*>(data) + i * columns * (wide ? 8 : 4);
  }
};

// The minimum number of items for a thread, when each has so many elements.
inline int64_t grain(int64_t elements) { return std::max<int64_t>(1, 16384 / std::max<int64_t>(elements, 1)); }

// Rows along the last dimension, and their distance.
struct Rows {
  Tensor held;
  int64_t count, size, stride;

  explicit Rows(const Tensor& t) : held(t), size(t.size(-1)) {
    const bool apart = t.dim() == 2 && (t.stride(1) == 1 || size == 1);
    if (!apart) held = t.contiguous();
    count = size ? held.numel() / size : 0;
    stride = (apart ? held.stride(0) : size) * held.element_size();
  }
};

inline Tensor empty_as(const Tensor& t) { return at::empty(t.sizes(), t.options()); }

// Shared functions of ops.cpp.
// x @ weight.T + bias, by the own kernel for few rows, or for any number
Tensor product(const Tensor& x, const Tensor& weight, const Maybe& bias, bool any_rows = false);
void norm(const Tensor& x, const Tensor* residual, Tensor* total, const Tensor& weight, Tensor& y, double eps);
std::string not_norm(const Tensor& x, const Tensor& weight);  // why it is refused; "" if it is not

}  // namespace dlinfer
