// Calls as they were seen, in bytes: they are put into words when they are taken, by another thread where one does that.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace op_tools {

// Which call it is. The texts are in JSON, and `lasting`; null: nothing is known.
struct Head {
  int64_t id = 0, step = 0;
  const std::string *name = nullptr, *module = nullptr, *site = nullptr;
  bool backward = false;
};

// The same text, where it stays for the life of the process. Any thread.
const std::string* lasting(std::string_view text);

// How a type of values is called, and measured.
struct Type {
  const char* name;
  int kind;   // of `Kind`; -1: Python does it
  int parts;  // of a complex number
};
static_assert(sizeof(at::ScalarType) == 1);
inline constexpr auto kTypes = [] {
  std::array<Type, static_cast<size_t>(at::ScalarType::NumOptions)> all{};
  for (auto& type : all) type = {nullptr, -1, 1};
  const auto put = [&](at::ScalarType type, Type how) { all[static_cast<size_t>(type)] = how; };
  put(at::kFloat, {"float32", 0, 1}), put(at::kDouble, {"float64", 1, 1}), put(at::kBFloat16, {"bfloat16", 2, 1}), put(at::kHalf, {"float16", 3, 1});
  put(at::kLong, {"int64", 4, 1}), put(at::kInt, {"int32", 5, 1}), put(at::kShort, {"int16", 6, 1}), put(at::kChar, {"int8", 7, 1});
  put(at::kByte, {"uint8", 8, 1}), put(at::kBool, {"bool", 8, 1});
  put(at::kComplexHalf, {"complex32", 3, 2}), put(at::kComplexFloat, {"complex64", 0, 2}), put(at::kComplexDouble, {"complex128", 1, 2});
  return all;
}();
inline const Type& type_of(at::ScalarType type) { return kTypes[static_cast<size_t>(type)]; }

// What is written of one call after the other.
class Raw {
 public:
  void clear() { bytes_.clear(); }
  bool empty() const { return bytes_.empty(); }
  const std::string& bytes() const { return bytes_; }
  std::string& bytes() { return bytes_; }

  void line(std::string_view text) { put(Tag::line), put(text); }  // a whole one, in words
  void head(const Head& head) { put(Tag::head), put(head); }
  void begun(std::string_view head) { put(Tag::begun), put(head); }  // in words
  void outputs() { put(Tag::outputs); }
  void mutated(uint32_t place) { put(Tag::mutated), put(place); }
  void end() { put(Tag::end); }
  void gradients(const Head& head) { put(Tag::gradients), put(head); }  // of the arguments, and then of the results:
  void of_outputs() { put(Tag::of_outputs); }
  void nothing() { put(Tag::nothing); }  // no gradient came

  void words(std::string_view text) { put(Tag::words), put(text); }  // a tensor
  void tensor(const at::Tensor& tensor) {  // what it is; then its numbers:
    put(Tag::tensor), put(tensor.scalar_type()), put(static_cast<uint8_t>(tensor.dim()));
    for (const int64_t size : tensor.sizes()) put(size);
  }
  void known(std::string_view numbers) { put(Tag::known), put(numbers); }
  void awaited(const at::Tensor& tensor, int64_t number);  // both, of one that is waited for; hot path

  // As lines of JSON: number(to, which) writes the numbers that were waited for, text(to, line) a line in words.
  template <typename Number, typename Text>
  static void into_words(std::string& to, std::string_view from, Number number, Text text);

 private:
  enum class Tag : uint8_t { line, head, begun, outputs, mutated, end, words, tensor, known, awaited, waits, gradients, of_outputs, nothing };

  template <typename T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void put(std::string_view text) {
    put(static_cast<uint32_t>(text.size()));
    bytes_.append(text);
  }

  struct Reader {
    std::string_view from;
    template <typename T>
    T get() {
      T value;
      std::memcpy(&value, from.data(), sizeof value);
      from.remove_prefix(sizeof value);
      return value;
    }
    int64_t few() {  // as `awaited` writes them
      uint64_t value = 0;
      for (int shift = 0;; shift += 7) {
        const auto byte = get<uint8_t>();
        value |= static_cast<uint64_t>(byte & 127) << shift;
        if (byte < 128) return static_cast<int64_t>(value);
      }
    }
    std::string_view text() {
      const auto size = get<uint32_t>();
      const auto found = from.substr(0, size);
      from.remove_prefix(size);
      return found;
    }
  };

  std::string bytes_;
};

// In few bytes: all of them go through the cache of the program.
inline void Raw::awaited(const at::Tensor& tensor, int64_t number) {
  constexpr size_t kDims = 8, kDigits = 10;
  const auto sizes = tensor.sizes();
  if (sizes.size() > kDims) {
    this->tensor(tensor), put(Tag::awaited), put(number);
    return;
  }
  char made[3 + (kDims + 1) * kDigits];
  char* at = made;
  const auto add = [&](int64_t value) {  // seven bits each, the last ones first
    auto left = static_cast<uint64_t>(value);
    for (; left >= 128; left >>= 7) *at++ = static_cast<char>(left | 128);
    *at++ = static_cast<char>(left);
  };
  *at++ = static_cast<char>(Tag::waits), *at++ = static_cast<char>(tensor.scalar_type()), *at++ = static_cast<char>(sizes.size());
  for (const int64_t size : sizes) add(size);
  add(number);
  bytes_.append(made, static_cast<size_t>(at - made));
}

void put_number(std::string& to, int64_t value);
void put_head(std::string& to, const Head& head);

template <typename Number, typename Text>
void Raw::into_words(std::string& to, std::string_view from, Number number, Text text) {
  Reader read{from};
  bool first = true, changed = false;
  const auto comma = [&] {
    if (!first) to += ',';
    first = false;
  };
  const auto tensor = [&](auto size) {
    comma();
    to += "{\"dtype\":\"", to += type_of(read.get<at::ScalarType>()).name, to += "\",\"shape\":[";
    const auto dims = read.get<uint8_t>();
    for (int dim = 0; dim < dims; dim++) {
      if (dim > 0) to += ',';
      put_number(to, size());
    }
    to += "],";
  };
  while (!read.from.empty()) {
    switch (read.get<Tag>()) {
      case Tag::line: text(to, read.text()); break;
      case Tag::head: put_head(to, read.get<Head>()), to += ",\"inputs\":[", first = true; break;
      case Tag::begun: to += read.text(), to += ",\"inputs\":[", first = true; break;
      case Tag::outputs: to += "],\"outputs\":[", first = true; break;
      case Tag::mutated:
        to += changed ? ",\"" : "],\"mutated\":{\"";
        put_number(to, read.get<uint32_t>()), to += "\":";
        first = changed = true;
        break;
      case Tag::gradients: put_head(to, read.get<Head>()), to += ",\"grad_inputs\":[", first = true; break;
      case Tag::of_outputs: to += "],\"grad_outputs\":[", first = true; break;
      case Tag::nothing: comma(), to += "null"; break;
      case Tag::end: to += changed ? "}}\n" : "]}\n", changed = false; break;
      case Tag::words: comma(), to += read.text(); break;
      case Tag::tensor: tensor([&] { return read.get<int64_t>(); }); break;
      case Tag::waits: tensor([&] { return read.few(); }), number(to, read.few()), to += '}'; break;
      case Tag::known: to += read.text(), to += '}'; break;
      case Tag::awaited: number(to, read.get<int64_t>()), to += '}'; break;
    }
  }
}

}  // namespace op_tools
