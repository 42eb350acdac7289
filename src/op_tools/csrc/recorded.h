// Calls of kernels that a recorder writes down, without Python.
#pragma once
#include <ATen/record_function.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "decisions.h"

namespace op_tools {

using Values = c10::ArrayRef<const c10::IValue>;

// While a kernel is watched, torch has no observer in its thread: it would put together the arguments
// of all that the kernel calls for nothing. Not where another one listens too, such as a profiler. It
// costs a microsecond: only for kernels that were seen to call others, by an observer of ours.
class Quiet {
 public:
  Quiet() : on_(at::isRecordFunctionEnabled() && alone()) {
    if (on_) at::enableRecordFunction(false);
  }
  ~Quiet() {
    if (on_) at::enableRecordFunction(true);
  }
  Quiet(const Quiet&) = delete;

 private:
  static bool alone();

  const bool on_;
};

// The tensors that a call is given, in order; one that torch has made of a number is none, in Python neither.
class Given {
 public:
  struct One {
    const at::Tensor* tensor;
    Recorder::Way way;
    bool declared, held;  // the kernel says that it writes it; or it may
  };

  Given(const Decision& decision, std::vector<One>& memory) : all(memory), decision_(decision) { all.clear(); }
  void take(const at::Tensor& tensor, size_t argument);
  void take(c10::Device device);
  void take(const c10::IValue& value, size_t argument);

  std::vector<One>& all;
  size_t held = 0;
  bool on_device = false;  // something of it is
  bool simple = true;      // a recorder may look at it by itself: plain memory within its reach, and a count of writes
  bool reached = false;    // the host reads some of it

  // Of device, as `call.scan` finds it: that of tensors, an accelerator's before the CPU's, else the one that is named.
  std::optional<c10::DeviceType> kind() const { return of_tensors_ ? of_tensors_ : named_; }

 private:
  const Decision& decision_;
  std::optional<c10::DeviceType> of_tensors_, named_;
};

// The tensors of what a call gives back.
using Results = c10::SmallVector<const at::Tensor*, 4>;
inline void put_result(Results& to, const at::Tensor& tensor) {
  if (tensor.defined() && !tensor.unsafeGetTensorImpl()->is_wrapped_number()) to.push_back(&tensor);
}
Results results_of(Values outputs);

// What is kept from before a call until after it.
struct Context : at::ObserverContext {
  enum class Of { python, record, part };
  const Of of;
  explicit Context(Of of) : of(of) {}
  bool keeps_to_itself() const;  // what the kernel calls is not looked at
};

// A call that a recorder writes down. What is known of it so far is with its thread.
struct Recorded : Context {
  explicit Recorded(Slot::Use decision) : Context(Of::record), decision(std::move(decision)) {}
  static void* operator new(size_t size);  // a few are kept for the next calls of a thread
  static void operator delete(void* memory);
  Slot::Use decision;
  std::unique_ptr<Warm> warm;  // what was measured while it ran, if anything was
  std::optional<Quiet> quiet;  // unless what it calls is measured
};

// A call on lists that is made of a kernel for each tensor: one of these, whose result is measured
// while it is in the cache.
struct ListedPart : Context {
  ListedPart() : Context(Of::part) {}
  std::optional<Quiet> quiet;
};

bool is_observing();    // by torch's observers
bool looks_at_host();   // at kernels of the CPU too

// An argument that a call may write.
struct Held {
  at::Tensor tensor;
  uint32_t place, version;
  bool declared;         // the kernel says that it writes it
  bool changed = false;  // it did, and does not give it back
};

// What a thread is in.
struct Here {
  int depth = 0;                    // inside a kernel that is watched: what it calls is its own business
  const Learned* inside = nullptr;  // that kernel, where it is recorded
  Recorded* listed = nullptr;       // a call on lists that is going on
  // Of the one call that is recorded, memory that is used again: what is known of it, what it was given, what it may write.
  Raw raw;
  std::vector<Given::One> given;
  std::vector<Held> held;
};
Here& here();

// The start of a recorded call. Inside of it (`Here::depth`): what this calls is ours.
enum class Begun { recorded, unwanted, for_python };
Begun record(Here& now, const Given& given, Recorded& call);
// Its end, which comes in any case; without results: the kernel raised. That of a part.
void recorded(Here& now, Recorded& call, const Results* results);
void recorded(ListedPart& part, Values outputs);

}  // namespace op_tools
