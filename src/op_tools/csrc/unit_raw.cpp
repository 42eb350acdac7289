// Calls as they were seen, in bytes.
#include "raw.h"

#include <charconv>
#include <mutex>
#include <unordered_set>

namespace op_tools {

const std::string* lasting(std::string_view text) {
  static std::mutex lock;
  static auto* const all = new std::unordered_set<std::string>();  // threads may outlive what is static
  std::lock_guard hold(lock);
  return &*all->emplace(text).first;
}

Type type_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat: return {"float32", 0, 1};
    case at::kDouble: return {"float64", 1, 1};
    case at::kBFloat16: return {"bfloat16", 2, 1};
    case at::kHalf: return {"float16", 3, 1};
    case at::kLong: return {"int64", 4, 1};
    case at::kInt: return {"int32", 5, 1};
    case at::kShort: return {"int16", 6, 1};
    case at::kChar: return {"int8", 7, 1};
    case at::kByte: return {"uint8", 8, 1};
    case at::kBool: return {"bool", 8, 1};
    case at::kComplexHalf: return {"complex32", 3, 2};
    case at::kComplexFloat: return {"complex64", 0, 2};
    case at::kComplexDouble: return {"complex128", 1, 2};
    default: return {nullptr, -1, 1};
  }
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
