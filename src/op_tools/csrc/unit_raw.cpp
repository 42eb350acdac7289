// Calls as they were seen, in bytes.
#include "raw.h"

#include <charconv>
#include <mutex>
#include <unordered_set>

namespace op_tools {

void Bytes::grow(size_t room) {
  constexpr size_t kLeast = 256;
  auto more = std::make_unique_for_overwrite<char[]>(room_ = std::max(room, kLeast));
  if (size_ > 0) std::memcpy(more.get(), memory_.get(), size_);
  memory_ = std::move(more);
}

const std::string* lasting(std::string_view text) {
  static std::mutex lock;
  static auto* const all = new std::unordered_set<std::string>();  // threads may outlive what is static
  std::lock_guard hold(lock);
  return &*all->emplace(text).first;
}

void put_number(std::string& to, int64_t value) {
  char digits[24];
  to.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

void put_head(std::string& to, const Head& head) {
  to += "{\"id\":";
  put_number(to, head.id);
  to += ",\"op\":\"";
  to += *head.name;
  to += head.backward ? "\",\"direction\":\"backward\",\"step\":" : "\",\"direction\":\"forward\",\"step\":";
  put_number(to, head.step);
  to += ",\"module\":";
  to += head.module ? *head.module : "\"\"";
  to += ",\"site\":";
  to += head.site ? *head.site : "\"\"";
}

}  // namespace op_tools
