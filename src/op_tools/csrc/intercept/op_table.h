/* SPDX-License-Identifier: Apache-2.0 */
// What was decided about each aten operator.
#pragma once
#include <ATen/core/function_schema.h>
#include <ATen/core/operator_name.h>

#include <atomic>
#include <memory>
#include <optional>

#include "../call/call_view.h"

namespace op_tools {

struct Decision {
  PyObject* function = nullptr;  // torch.ops.aten.…; null: no tool wants the operator
  const c10::FunctionSchema* schema = nullptr;
  std::shared_ptr<Sink> sink = nullptr;  // null: Python observes the calls
  std::shared_ptr<CallHeaders> headers = nullptr;
  const std::string* name = nullptr;
  uint64_t written = 0;  // a bit for each argument that the schema declares as written
  bool of_torch = false;

  void read_schema();
  bool writes(size_t argument) const {
    return (written >> std::min<size_t>(argument, 63) & 1) != 0;
  }
};

// The decision about an operator, made by Python at its first call after tools were started or
// stopped.
class Slot {
 public:
  using Name = std::optional<c10::OperatorName>;
  template <typename GetName>
  std::shared_ptr<const Decision> get(GetName&& name) {
    auto found = decision_.load();
    return found != nullptr ? found : decide(name());
  }
  void reset() { decision_.store(nullptr); }

 private:
  std::shared_ptr<const Decision> decide(const Name& name);

  std::atomic<std::shared_ptr<const Decision>> decision_;
};

Slot& slot_of(
    const char* name);  // by the address of the schema's name, which is unique to an overload
void set_decider(PyObject* decide);  // decide(name) -> None, a function, or (function, sink,
                                     // headers, name); held for good
void reset_decisions();

}  // namespace op_tools
