/* SPDX-License-Identifier: Apache-2.0 */
// Formats a call log as lines of JSON.
#pragma once

#include <deque>
#include <map>
#include <string>

#include "../tensors/device_reducer.h"
#include "call_log.h"

namespace op_tools {

void append_number(std::string& to, int64_t value);

// A visitor of `CallLog::read`. `nonfinite_only`: only the lines of calls that have a NaN or an Inf
// in a result, with the statistics of all their tensors in them instead of references.
class LineFormatter {
 public:
  LineFormatter(DeviceReducer& reducer, Reads reads, bool nonfinite_only)
      : reducer_(reducer),
        reads_(reads),
        nonfinite_only_(nonfinite_only) {}

  std::string text;

  // In a line of Python's: a mark in place of statistics that are pending.
  static void append_mark(std::string& to, int64_t number);

  void line(std::string_view line);
  void begin(const CallHeader& header, Reference::List list);
  void list(Reference::List list);
  void mutated(uint32_t place);
  void end();
  void missing();
  void formatted(std::string_view json);
  void tensor(at::ScalarType type, c10::ArrayRef<int64_t> shape);
  void measured(const Measured& found);
  void skipped(std::string_view reason);
  void pending(int64_t number);
  void reference(const Reference& to);

 private:
  using Key = std::tuple<int64_t, Reference::List, uint32_t>;
  static constexpr size_t kKept = 1 << 16;

  void comma();
  void keep(const Measured& found);
  void append_statistics(const Measured& found);
  void append_pending(int64_t number, bool keeps);

  DeviceReducer& reducer_;
  const Reads reads_;
  const bool nonfinite_only_;
  size_t start_ = 0;  // of the line that is being formatted
  bool first_ = true, any_mutated_ = false, nonfinite_ = false;
  Key at_{};
  std::map<Key, Measured> kept_;  // the newest statistics, for references
  std::deque<Key> order_;
};

}  // namespace op_tools
