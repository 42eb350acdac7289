// Calls as they were seen, in bytes: they are put into words when they are taken, by another thread where one does that.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
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

// Memory that is written from its start on, and used again. Room is asked for once for all of what is put next.
class Bytes {
 public:
  Bytes() = default;
  Bytes(Bytes&& other) noexcept { *this = std::move(other); }
  Bytes& operator=(Bytes&& other) noexcept {
    std::swap(memory_, other.memory_), std::swap(size_, other.size_), std::swap(room_, other.room_);
    return *this;
  }

  size_t size() const { return size_; }
  std::string_view view() const { return {memory_.get(), size_}; }
  void clear() { size_ = 0; }
  void reserve(size_t room) {
    if (room > room_) grow(room);
  }
  char* room_for(size_t count) {  // at the end; what is put there is told by `end_at`
    if (room_ - size_ < count) grow(std::max(size_ + count, 2 * room_));
    return memory_.get() + size_;
  }
  void end_at(const char* end) { size_ = static_cast<size_t>(end - memory_.get()); }
  void append(const void* from, size_t count) {
    std::memcpy(room_for(count), from, count);
    size_ += count;
  }

 private:
  void grow(size_t room);

  std::unique_ptr<char[]> memory_;
  size_t size_ = 0, room_ = 0;
};

// What is written of one call after the other.
class Raw {
 public:
  void clear() { bytes_.clear(); }
  size_t size() const { return bytes_.size(); }
  std::string_view bytes() const { return bytes_.view(); }
  void reserve(size_t room) { bytes_.reserve(room); }
  void add(std::string_view other) { bytes_.append(other.data(), other.size()); }  // of the bytes of another

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
    bytes_.append(&value, sizeof value);
  }
  void put(std::string_view text) {
    put(static_cast<uint32_t>(text.size()));
    add(text);
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
    int64_t few() {  // a size, as `awaited` writes it
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

  Bytes bytes_;
};

// In few bytes: all of them go through the cache of the program.
inline void Raw::awaited(const at::Tensor& tensor, int64_t number) {
  constexpr size_t kDims = 8, kDigits = 10;  // of a size
  const auto sizes = tensor.sizes();
  if (sizes.size() > kDims) {
    this->tensor(tensor), put(Tag::awaited), put(number);
    return;
  }
  char* at = bytes_.room_for(3 + kDims * kDigits + sizeof number);
  const auto add = [&](int64_t value) {  // seven bits each, the last ones first
    auto left = static_cast<uint64_t>(value);
    for (; left >= 128; left >>= 7) *at++ = static_cast<char>(left | 128);
    *at++ = static_cast<char>(left);
  };
  *at++ = static_cast<char>(Tag::waits), *at++ = static_cast<char>(tensor.scalar_type()), *at++ = static_cast<char>(sizes.size());
  for (const int64_t size : sizes) add(size);
  std::memcpy(at, &number, sizeof number);
  bytes_.end_at(at + sizeof number);
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
      case Tag::waits: tensor([&] { return read.few(); }), number(to, read.get<int64_t>()), to += '}'; break;
      case Tag::known: to += read.text(), to += '}'; break;
      case Tag::awaited: number(to, read.get<int64_t>()), to += '}'; break;
    }
  }
}

}  // namespace op_tools
