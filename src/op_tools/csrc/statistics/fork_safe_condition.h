/* SPDX-License-Identifier: Apache-2.0 */
// A condition that threads wait for.
#pragma once
#include <unistd.h>

#include <condition_variable>

namespace op_tools {

// In a forked child those who wait are not there, and to destroy it would wait for them, for ever.
class Condition {
 public:
  ~Condition() {
    if (process_ == getpid()) delete own_;
  }
  Condition() = default;
  Condition(const Condition&) = delete;
  std::condition_variable* operator->() const { return own_; }

 private:
  const pid_t process_ = getpid();
  std::condition_variable* const own_ = new std::condition_variable();
};

}  // namespace op_tools
