// What is decided about each operator, where a call finds it without a search.
#pragma once
#include <ATen/core/function_schema.h>
#include <ATen/core/operator_name.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "heads.h"
#include "recorder.h"

namespace op_tools {

// What is found out about a kernel while it runs.
struct Learned {
  mutable std::atomic<bool> nests{false};  // it calls others that torch tells of
  Learned() = default;
  Learned(Learned&&) noexcept {}
  Learned& operator=(Learned&&) noexcept { return *this; }
  void nesting() const {
    if (!nests.load(std::memory_order_relaxed)) nests.store(true, std::memory_order_relaxed);
  }
};

struct Decision {
  PyObject* function = nullptr;  // torch.ops.aten.…; null: nobody wants it
  const c10::FunctionSchema* schema = nullptr;
  std::shared_ptr<Recorder> recorder = nullptr;  // writes its calls down: Python does not look at them
  std::shared_ptr<Heads> heads = nullptr;        // gives the starts of its lines, else `head` does:
  PyObject* head = nullptr;                      // head(kind of device) -> the start, or None
  const std::string* name = nullptr;
  Heads::Count* count = nullptr;  // of its lines
  // of the schema, which is large and seldom in the cache
  uint64_t written = 0;  // a bit for each argument that it writes
  size_t returns = 0;
  bool of_torch = false, of_lists = false;
  Learned learned = {};

  void read_schema();
  bool writes(size_t argument) const { return (written >> std::min<size_t>(argument, 63) & 1) != 0; }
};

// One for each operator, for the life of the process.
class Slot {
 public:
  // A decision that stays while a call is made; null: nobody wants that operator.
  class Use {
   public:
    Use() = default;
    Use(Use&& other) noexcept : slot_(std::exchange(other.slot_, nullptr)), found_(other.found_) {}
    Use& operator=(Use&& other) noexcept {
      std::swap(slot_, other.slot_), std::swap(found_, other.found_);
      return *this;
    }
    ~Use() {
      if (slot_ != nullptr) slot_->left();
    }
    explicit operator bool() const { return slot_ != nullptr; }
    const Decision& operator*() const { return *found_; }
    const Decision* operator->() const { return found_; }

   private:
    friend class Slot;
    Slot* slot_ = nullptr;
    const Decision* found_ = nullptr;
  };

  // name() -> optional<OperatorName>, where it is to be decided, which takes the GIL. Hot path.
  template <typename Name>
  Use use(Name&& name) {
    if (now_.load(std::memory_order_acquire) == &unwanted_) return {};
    Use made = entered();
    if (made.found_ == nullptr) decide(name()), made.found_ = now_.load();
    if (made.found_ == nullptr || made.found_ == &unwanted_) return {};  // forgotten meanwhile, or so decided
    return made;
  }
  void forget(std::vector<std::unique_ptr<const Decision>>& to);  // what no call is in is to be given back

 private:
  Use entered() {
    Use made;
    users_.fetch_add(1);  // before it is read: who forgets it looks for users after that
    made.slot_ = this, made.found_ = now_.load();
    return made;
  }
  void left() {
    if (users_.fetch_sub(1) == 1 && has_old_.load()) give_back();
  }
  void decide(const std::optional<c10::OperatorName>& name);
  void give_back();

  static const Decision unwanted_;
  std::atomic<const Decision*> now_{nullptr};  // null: it is to be decided
  std::atomic<int64_t> users_{0};
  std::atomic<bool> has_old_{false};
  std::vector<std::unique_ptr<const Decision>> old_;  // forgotten while a call was in it; under the lock of all
};

Slot& slot_of(const char* name);  // by the address of its schema's name: each overload has its own, for the life of the process
void decide_by(PyObject* decide);  // decide(name) -> function, (function, recorder, head, name) or None; held for good
void forget_decisions();

}  // namespace op_tools
