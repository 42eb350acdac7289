// Calls of kernels that a recorder writes down, without Python.
#pragma once
#include <ATen/record_function.h>

#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "heads.h"
#include "recorder.h"

namespace op_tools {

using Values = c10::ArrayRef<const c10::IValue>;

// What is found out about a kernel while it runs.
struct Learned {
  mutable std::atomic<bool> nests{false};  // it calls others that torch tells of
  Learned() = default;
  Learned(Learned&&) noexcept {}
  Learned& operator=(Learned&&) noexcept { return *this; }
};

struct Decision {
  PyObject* function = nullptr;  // torch.ops.aten.…; null: nobody wants it
  const c10::FunctionSchema* schema = nullptr;
  std::shared_ptr<Recorder> recorder = nullptr;  // writes its calls down: Python does not look at them
  std::shared_ptr<Heads> heads = nullptr;        // gives the starts of its lines, else `head` does:
  PyObject* head = nullptr;                      // head(kind of device) -> the start, or None
  const std::string* name = nullptr;
  // of the schema, which is large and seldom in the cache
  std::vector<bool> writes = {};  // the arguments that it writes
  size_t returns = 0;
  bool of_torch = false, of_lists = false;
  Learned learned = {};

  void read_schema();
};

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

// What is kept from before a call until after it.
struct Context : at::ObserverContext {
  enum class Of { python, record, part };
  const Of of;
  explicit Context(Of of) : of(of) {}
  bool keeps_to_itself() const;  // what the kernel calls is not looked at
};

// A call that a recorder writes down. What is known of it so far is in the bytes of its thread.
struct Recorded : Context {
  struct Held {
    at::Tensor tensor;
    uint32_t place, version;
    bool declared;  // the kernel says that it writes it
  };

  Recorded() : Context(Of::record) {}
  static void* operator new(size_t size);  // a few are kept for the next calls of a thread
  static void operator delete(void* memory);
  std::shared_ptr<const Decision> decision;
  c10::SmallVector<Held, 2> held;  // the arguments that it may write
  Warm warm;
  std::optional<Quiet> quiet;  // unless what it calls is measured
};

// A call on lists that is made of a kernel for each tensor: one of these, whose result is measured
// while it is in the cache.
struct ListedPart : Context {
  ListedPart() : Context(Of::part) {}
  std::optional<Quiet> quiet;
};

bool is_observing();  // by torch's observers

// What a thread is in.
struct Here {
  int depth = 0;                    // inside a kernel that is watched: what it calls is its own business
  const Learned* inside = nullptr;  // that kernel, where it is recorded
  Recorded* listed = nullptr;       // a call on lists that is going on
  Raw raw;                          // what is known of the call
};
Here& here();

// The start of a recorded call; false: Python is to look at it. Its end; that of a part.
bool record(std::shared_ptr<const Decision> decision, Values inputs, std::unique_ptr<Context>& to);
void recorded(Recorded& call, Values outputs);
void recorded(ListedPart& part, Values outputs);

}  // namespace op_tools
