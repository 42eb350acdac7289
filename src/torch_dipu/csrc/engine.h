// What the engine knows of one operator, found out once.
#pragma once

#include <memory>

#include "core.h"

namespace dipu {

enum class Kind : uint8_t { Tensor, TensorList, OptionalTensorList, Generator, Device };

struct Argument {
  uint16_t index;
  Kind kind;
  bool write;
};

struct Operator {
  c10::OperatorHandle handle;
  c10::OperatorHandle target;       // what runs on the host
  std::string name;                 // "add.out"
  size_t arguments = 0, returns = 0;
  std::vector<Argument> looked_at;  // only the arguments that need a look
  std::vector<int> return_of;       // return i is the written argument j, or -1
  int generator = -1;
  uint32_t host_returns = 0;        // bit i: return i is a host tensor by contract, as on CUDA
  bool seeded = false, has_host_kernel = false, takes_host_tensors = false;
  bool wants_bias_sizes = false;    // convolution_backward_overrideable lacks an argument of its target
  std::atomic<void*> hook{nullptr};  // a Python callable around the operator, or nothing

  explicit Operator(const c10::OperatorHandle& op);
};

Operator& operator_of(const c10::OperatorHandle& handle);
void run(Operator& op, torch::jit::Stack* stack, c10::DispatchKey host_key);  // hook, else host kernel
void run_on_host(Operator& op, torch::jit::Stack* stack, c10::DispatchKey host_key);
void run_hook(Operator& op, torch::jit::Stack* stack, c10::DispatchKey host_key);  // hook.cpp
extern thread_local bool tls_hooks_off;

}  // namespace dipu
