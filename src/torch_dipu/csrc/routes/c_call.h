/* SPDX-License-Identifier: Apache-2.0 */
// One call of a vendor's C function (diopi.h): its context, its handles, its arguments.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#define DIOPI_LOADER
#include "diopi_runtime.h"

namespace dipu {

// A parameter in C representation.
union Arg {
  void* p;
  int64_t l;
  int32_t i;
  bool b;
  double d;
  float f;
  diopiSize_t z;
};
using Thunk = int32_t (*)(void* function, const Arg* arguments);
Thunk thunk_of(const std::string& shape);  // c_thunks.cpp; nullptr: diopi.h has no such function

int32_t c_dtype(at::ScalarType type);
std::optional<at::ScalarType> torch_dtype(int32_t code);

// The state of one call. `context` is the first member: its address is the handle.
class CCall {
 public:
  explicit CCall(int device);
  CCall(const CCall&) = delete;

  diopiContext context;
  std::string error;  // the runtime's own error: why memory was refused

  int device() const { return context.device_index; }
  void* handle(const at::Tensor& tensor);  // the tensor must outlive the call
  void* keep(at::Tensor tensor);  // takes ownership of the tensor
  at::Tensor tensor_of(const void* handle) const;  // undefined: not a tensor of this call
  void** array(size_t length);  // an array of handles
  diopiScalar_t* number(const at::Scalar& value);
  int64_t* numbers(size_t length);
  const char* text(std::string value);
  diopiGeneratorHandle_t generator(const std::optional<at::Generator>& generator);
  at::Generator generator_of(const void* handle) const;
  at::Tensor temporary(at::IntArrayRef sizes, std::optional<at::IntArrayRef> strides, at::ScalarType type, bool on_host);

 private:
  static constexpr size_t kInline = 12;
  std::array<diopiTensor, kInline> handles_;
  std::array<const at::Tensor*, kInline> tensors_;
  std::array<diopiScalar_t, 4> scalars_;
  size_t used_ = 0, scalars_used_ = 0;
  struct Further {
    diopiTensor handle;
    const at::Tensor* tensor;
  };
  struct Rest {  // rarely used members; a deque keeps addresses stable
    std::deque<Further> further;
    std::deque<at::Tensor> kept;
    std::deque<std::vector<void*>> arrays;
    std::deque<std::vector<int64_t>> numbers;
    std::deque<diopiScalar_t> scalars;
    std::deque<std::string> texts;
    std::deque<std::optional<at::Generator>> generators;
  };
  std::unique_ptr<Rest> rest_;
  Rest& rest() {
    if (rest_ == nullptr) rest_ = std::make_unique<Rest>();
    return *rest_;
  }
};

void take_c_runtime(diopiRuntime_t* table);

}  // namespace dipu
