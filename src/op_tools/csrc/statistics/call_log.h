/* SPDX-License-Identifier: Apache-2.0 */
// A compact binary record of calls, formatted as lines of JSON later by another thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "../call/call_headers.h"
#include "../tensors/statistics.h"

namespace op_tools {

// The name of a type of values, and how they are measured.
struct TypeInfo {
  const char* name = nullptr;  // null: no statistics
  int kind = -1;               // of `Kind`
  int parts = 1;               // real numbers in a value
};
inline constexpr auto kTypes = [] {
  std::array<TypeInfo, static_cast<size_t>(at::ScalarType::NumOptions)> all{};
  const auto put = [&](at::ScalarType type, TypeInfo info) {
    all[static_cast<size_t>(type)] = info;
  };
  put(at::kFloat, {"float32", 0, 1}), put(at::kDouble, {"float64", 1, 1}),
      put(at::kBFloat16, {"bfloat16", 2, 1}), put(at::kHalf, {"float16", 3, 1});
  put(at::kLong, {"int64", 4, 1}), put(at::kInt, {"int32", 5, 1}), put(at::kShort, {"int16", 6, 1}),
      put(at::kChar, {"int8", 7, 1});
  put(at::kByte, {"uint8", 8, 1}), put(at::kBool, {"bool", 8, 1});
  put(at::kComplexHalf, {"complex32", 3, 2}), put(at::kComplexFloat, {"complex64", 0, 2}),
      put(at::kComplexDouble, {"complex128", 1, 2});
  return all;
}();
inline const TypeInfo& type_info(at::ScalarType type) { return kTypes[static_cast<size_t>(type)]; }

// Values that an earlier line holds already: of which call, in which of its lists, at which place.
struct Reference {
  enum class List : uint8_t { inputs, outputs, mutated, grad_inputs, grad_outputs };
  int64_t call = 0;
  uint32_t place = 0;
  List list = List::outputs;
  bool is_view = false;  // a part of those values, or another arrangement of them
};

class CallLog {
 public:
  void clear() { bytes_.clear(); }
  size_t size() const { return bytes_.size(); }
  std::string_view bytes() const { return bytes_; }
  void append(std::string_view bytes) { bytes_.append(bytes); }

  void line(std::string_view text) { put(Tag::line), put_text(text); }
  // A call, or its gradients: a header, tensors, `outputs`, tensors, `mutated` before each tensor
  // of that list, `end`.
  void begin(const CallHeader& header) { put(Tag::begin), put(header); }
  void begin_gradients(const CallHeader& header) { put(Tag::begin_gradients), put(header); }
  void outputs() { put(Tag::outputs); }
  void grad_outputs() { put(Tag::grad_outputs); }
  void mutated(uint32_t place) { put(Tag::mutated), put(place); }
  void end() { put(Tag::end); }
  // A tensor: its type and shape, then what is known of its values.
  void missing() { put(Tag::missing); }
  void formatted(std::string_view json) { put(Tag::formatted), put_text(json); }
  void tensor(const at::Tensor& tensor) {
    put(Tag::tensor), put(tensor.scalar_type()), put(static_cast<uint8_t>(tensor.dim()));
    for (const int64_t size : tensor.sizes()) put(size);
  }
  void measured(const Measured& found) { put(Tag::measured), put(found); }
  void skipped(std::string_view reason) { put(Tag::skipped), put_text(reason); }
  void pending(int64_t number) { put(Tag::pending), put(number); }
  void reference(const Reference& to) { put(Tag::reference), put(to); }

  // Calls a method of the visitor for each of the above, in order.
  template <typename Visitor>
  static void read(std::string_view from, Visitor& visitor);

 private:
  enum class Tag : uint8_t {
    line,
    begin,
    begin_gradients,
    outputs,
    grad_outputs,
    mutated,
    end,
    missing,
    formatted,
    tensor,
    measured,
    skipped,
    pending,
    reference
  };

  template <typename T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void put_text(std::string_view text) {
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
    std::string_view text() {
      const auto size = get<uint32_t>();
      const auto found = from.substr(0, size);
      from.remove_prefix(size);
      return found;
    }
  };

  std::string bytes_;
};

template <typename Visitor>
void CallLog::read(std::string_view from, Visitor& visitor) {
  Reader read{from};
  while (!read.from.empty()) {
    switch (read.get<Tag>()) {
      case Tag::line: visitor.line(read.text()); break;
      case Tag::begin: visitor.begin(read.get<CallHeader>(), Reference::List::inputs); break;
      case Tag::begin_gradients:
        visitor.begin(read.get<CallHeader>(), Reference::List::grad_inputs);
        break;
      case Tag::outputs: visitor.list(Reference::List::outputs); break;
      case Tag::grad_outputs: visitor.list(Reference::List::grad_outputs); break;
      case Tag::mutated: visitor.mutated(read.get<uint32_t>()); break;
      case Tag::end: visitor.end(); break;
      case Tag::missing: visitor.missing(); break;
      case Tag::formatted: visitor.formatted(read.text()); break;
      case Tag::tensor: {
        const auto type = read.get<at::ScalarType>();
        c10::SmallVector<int64_t, 8> shape(read.get<uint8_t>());
        for (auto& size : shape) size = read.get<int64_t>();
        visitor.tensor(type, shape);
        break;
      }
      case Tag::measured: visitor.measured(read.get<Measured>()); break;
      case Tag::skipped: visitor.skipped(read.text()); break;
      case Tag::pending: visitor.pending(read.get<int64_t>()); break;
      case Tag::reference: visitor.reference(read.get<Reference>()); break;
    }
  }
}

}  // namespace op_tools
