// SPDX-License-Identifier: Apache-2.0
#include "line_formatter.h"

#include <charconv>
#include <cmath>

namespace op_tools {
namespace {

constexpr char kMark = '\x02';
constexpr const char* kLists[] = {"inputs", "outputs", "mutated", "grad_inputs", "grad_outputs"};

bool is_result(Reference::List list) {
  return list == Reference::List::outputs || list == Reference::List::mutated ||
         list == Reference::List::grad_inputs;
}

void append_value(std::string& to, double value) {  // as Python's repr
  if (!std::isfinite(value)) {
    to += "null";
    return;
  }
  char digits[40];
  const std::string_view text(digits,
                              std::to_chars(digits, digits + sizeof digits, value).ptr - digits);
  to += text;
  if (text.find_first_of(".e") == std::string_view::npos) to += ".0";
}

}  // namespace

void append_number(std::string& to, int64_t value) {
  char digits[24];
  to.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

void LineFormatter::append_mark(std::string& to, int64_t number) {
  to += kMark, append_number(to, number), to += kMark;
}

void LineFormatter::line(std::string_view line) {
  size_t from = 0;
  for (size_t at = line.find(kMark); at != std::string_view::npos; at = line.find(kMark, from)) {
    text.append(line, from, at - from);
    append_pending(std::strtoll(line.data() + at + 1, nullptr, 10), false);
    from = line.find(kMark, at + 1) + 1;
  }
  text.append(line, from);
}

void LineFormatter::begin(const CallHeader& header, Reference::List list) {
  start_ = text.size(), first_ = true, any_mutated_ = nonfinite_ = false;
  at_ = {header.id, list, UINT32_MAX};
  text += "{\"id\":";
  append_number(text, header.id);
  text += ",\"op\":\"";
  text += *header.op;
  text += header.backward ? "\",\"direction\":\"backward\",\"step\":"
                          : "\",\"direction\":\"forward\",\"step\":";
  append_number(text, header.step);
  text += ",\"module\":";
  text += header.module ? *header.module : "\"\"";
  text += ",\"site\":";
  text += header.site ? *header.site : "\"\"";
  if (header.infinite_argument) text += ",\"infinite_argument\":true";
  (text += ",\"") += kLists[static_cast<size_t>(list)], text += "\":[";
}

void LineFormatter::list(Reference::List list) {
  (text += "],\"") += kLists[static_cast<size_t>(list)], text += "\":[";
  first_ = true;
  std::get<1>(at_) = list, std::get<2>(at_) = UINT32_MAX;
}

void LineFormatter::mutated(uint32_t place) {
  text += any_mutated_ ? ",\"" : "],\"mutated\":{\"";
  append_number(text, place), text += "\":";
  first_ = any_mutated_ = true;
  std::get<1>(at_) = Reference::List::mutated,
  std::get<2>(at_) = place - 1;  // the tensor that follows is counted
}

void LineFormatter::end() {
  text += any_mutated_ ? "}}\n" : "]}\n";
  if (nonfinite_only_ && !nonfinite_) text.resize(start_);
}

void LineFormatter::comma() {
  if (!first_) text += ',';
  first_ = false;
  std::get<2>(at_)++;
}

void LineFormatter::missing() { comma(), text += "null"; }

void LineFormatter::formatted(std::string_view json) { comma(), text += json; }

void LineFormatter::tensor(at::ScalarType type, c10::ArrayRef<int64_t> shape) {
  comma();
  text += "{\"dtype\":\"", text += type_info(type).name, text += "\",\"shape\":[";
  for (size_t dim = 0; dim < shape.size(); dim++) {
    if (dim > 0) text += ',';
    append_number(text, shape[dim]);
  }
  text += "],";
}

void LineFormatter::measured(const Measured& found) {
  keep(found);
  append_statistics(found);
  text += '}';
}

void LineFormatter::skipped(std::string_view reason) {
  ((text += "\"skipped\":\"") += reason) += "\"}";
}

void LineFormatter::pending(int64_t number) { append_pending(number, true), text += '}'; }

void LineFormatter::reference(const Reference& to) {
  const auto found = kept_.find({to.call, to.list, to.place});
  if (nonfinite_only_ && found != kept_.end()) {
    const Measured known = found->second;
    return measured(known);
  }
  text += to.is_view ? "\"view_of\":[" : "\"same_as\":[";
  append_number(text, to.call);
  (text += ",\"") += kLists[static_cast<size_t>(to.list)], text += "\",";
  append_number(text, to.place);
  text += "]}";
}

void LineFormatter::keep(const Measured& found) {
  if (!nonfinite_only_) return;
  nonfinite_ = nonfinite_ || (found.nonfinite() > 0 && is_result(std::get<1>(at_)));
  if (kept_.insert_or_assign(at_, found).second) order_.push_back(at_);
  for (; order_.size() > kKept; order_.pop_front()) kept_.erase(order_.front());
}

void LineFormatter::append_pending(int64_t number, bool keeps) {
  std::string problem;
  if (const auto found = reducer_.take(number, problem)) {
    if (keeps) keep(*found);
    append_statistics(*found);
  } else {
    ((text += "\"skipped\":\"") +=
     problem.find_first_of("\"\\\n") == std::string::npos ? problem : "not read") += '"';
  }
}

void LineFormatter::append_statistics(const Measured& found) {
  for (const Statistic& one : kStatistics) {
    if (reads_ == Reads::hash || !(one.always || nonfinite_only_)) continue;
    ((text += '"') += one.name) += "\":";
    const Number number = one.of(found);
    if (number.kind == Number::whole) append_number(text, number.exact);
    else if (number.kind == Number::real) append_value(text, number.value);
    else text += "null";
    text += ',';
  }
  if (reads_ == Reads::fields) return text.pop_back();
  text += "\"hash\":\"";
  for (int shift = 60; shift >= 0; shift -= 4)
    text += "0123456789abcdef"[(found.hash >> shift) & 15];
  text += '"';
}

}  // namespace op_tools
