/* SPDX-License-Identifier: Apache-2.0 */
// The engine's record of one operator, computed once.
#pragma once

#include <functional>
#include <memory>

#include "runtime/core.h"

namespace dipu {

enum class Kind : uint8_t { Tensor, TensorList, OptionalTensorList, Generator, Device };

struct Argument {
  uint16_t index;
  Kind kind;
  bool write;
};

extern thread_local uint8_t tls_off;  // the Special flags that are off in this thread
struct Operator;

// An implementation of an operator other than the host kernel: a vendor's kernel, or a
// decomposition. Never freed: a call may be inside it on another thread.
struct Route {
  Route(std::string kind, std::string who) : kind(std::move(kind)), who(std::move(who)) {}
  virtual ~Route() = default;
  // The stack is that of a boxed kernel. True: the arguments are replaced by the results. False:
  // the call is not supported (dtype, layout, not implemented), and the stack is unchanged; then
  // the next route is tried, and the host after the last.
  virtual bool run(Operator& op, torch::jit::Stack* stack) = 0;
  const std::string kind;          // "kernel", "decomposition"
  const bool is_kernel = kind == "kernel";
  const std::string who;  // "diopiAdd", as in reports
  std::atomic<uint64_t> calls{0};  // calls that it ran
};
using Routes = std::vector<Route*>;  // in the order in which they are tried

// Special cases of an operator beyond its host kernel. With none of them it takes the hot path.
enum class Forced : uint8_t { No, Always, WithNumber };  // WithNumber: only calls such as x * 3

enum Special : uint8_t {
  kWatched = 1,  // a Python callable around everything below (dump, comparison)
  kHooked = 2,   // a Python callable around the operator (faults)
  kForced = 4,   // the CPU runs it, on copies
  kRouted = 8,  // routes are tried before the host
  kCaptured = 16,  // of all operators, while a graph captures a stream
};

struct Operator {
  c10::OperatorHandle handle;
  c10::OperatorHandle target;  // the operator that runs on the host
  std::string name;                 // "add.out"
  size_t arguments = 0, returns = 0;
  std::vector<Argument> looked_at;  // only the arguments that need a check
  std::vector<int> return_of;       // return i is the written argument j, or -1
  int generator = -1;
  uint32_t host_returns = 0;        // bit i: return i is a host tensor by contract, as on CUDA
  bool seeded = false, has_host_kernel = false, takes_host_tensors = false;
  // convolution_backward_overrideable lacks an argument of its target
  bool wants_bias_sizes = false;
  std::atomic<uint8_t> special{0};   // of Special
  std::atomic<void*> watcher{nullptr}, hook{nullptr};  // Python callables, or null
  std::atomic<const Routes*> routes{nullptr};
  Route* composite = nullptr;  // torch's own, of an operator without a host kernel
  std::atomic<Forced> forced{Forced::No};
  // counted where routes are tried before the host
  std::atomic<uint64_t> forced_calls{0}, host_calls{0};

  explicit Operator(const c10::OperatorHandle& op);
};

// ---- operator.cpp
std::string full_name(const c10::OperatorName& name);  // "aten::add.out"
c10::OperatorHandle find_operator(const std::string& name);
Operator& operator_of(const c10::OperatorHandle& handle);
void change_operators(const std::vector<std::string>& names, const std::function<void(Operator&)>& change);

// ---- engine.cpp
extern std::atomic<uint8_t> g_capturing;  // kCaptured or 0: graphs/capture.cpp
// The special cases in force for the operator in this thread.
inline uint8_t special(const Operator& op) {  // hot path
  const auto flags = op.special.load(std::memory_order_relaxed) | g_capturing.load(std::memory_order_relaxed);
  return C10_LIKELY(flags == 0) ? 0 : flags & ~tls_off;
}
// The devices of a call's tensors. Routes do not run `mixed` calls: the host raises torch's errors.
struct Where {
  int device = -1;  // -1: no tensor and no device among the arguments
  bool mixed = false;  // two devices, or a host tensor that is more than a number
  // whether a host tensor without dimensions is among the arguments, as in x * 3
  bool number = false;
};
Where where_is(const Operator& op, const torch::jit::Stack& stack);
bool run_routes(Operator& op, torch::jit::Stack* stack);  // false: none supports the call
// special cases, else the host
void run(Operator& op, torch::jit::Stack* stack, c10::DispatchKey host_key);
void run_on_host(Operator& op, torch::jit::Stack* stack, c10::DispatchKey host_key, bool on_copies = false);  // host_call.cpp
void run_callable(Operator& op, const std::atomic<void*>& slot, torch::jit::Stack* stack, c10::DispatchKey host_key);  // python_hook.cpp

}  // namespace dipu
