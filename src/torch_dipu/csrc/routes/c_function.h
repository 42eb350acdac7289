/* SPDX-License-Identifier: Apache-2.0 */
// One function of a vendor's library: the calls that it accepts, and the conversion of parameters.
#pragma once

#include <ATen/ops/result_type.h>
#include <ATen/ops/scalar_tensor.h>

#include "routes/c_call.h"
#include "routes/c_plan.h"

namespace dipu {
namespace {  // included by one translation unit

using c10::IValue;

struct CParameter {
  char code;  // how the value is converted: see CFunction::convert
  char letter;    // how it is passed: see diopi_shapes.h
  int16_t source;
  // for a result that the function changes in place: the source of its initial values
  int16_t filled;
  bool nullable;
};
// The required value of an argument that the function does not take.
struct Condition {
  int source;
  char kind;  // 'z': zeros; '=': none, or the constant
  IValue expected;
};

bool is_none(const IValue& value) {
  return value.isNone() || (value.isTensor() && !value.toTensor().defined());
}
bool is_number(const IValue& value) {
  return value.isScalar() || (value.isTensor() && value.toTensor().defined() && value.toTensor().is_cpu() && value.toTensor().dim() == 0);
}
at::Scalar number_of(const IValue& value) {
  return value.isTensor() ? value.toTensor().item() : value.toScalar();
}

struct CFunction {
  std::string name;
  void* address;
  Thunk thunk;
  std::vector<CParameter> parameters;
  std::vector<Condition> conditions;
  bool in_place;

  bool applies(const Plan& plan, const IValue* arguments) const {
    for (const auto& condition : conditions) {
      const IValue& value = value_of(plan, arguments, condition.source);
      if (condition.kind == 'z') {
        for (int64_t one : value.toIntVector()) if (one != 0) return false;
      } else if (!is_none(value) && !same(value, condition.expected)) {
        return false;
      }
    }
    return true;
  }

  // Converts the parameters; false if the function does not accept a value.
  bool convert(const Plan& plan, const IValue* arguments, c10::ArrayRef<at::Tensor> results, bool wrap, CCall& call, Arg* to) const {
    to[0].p = &call.context;
    for (size_t i = 0; i < parameters.size(); i++) {
      if (!convert(parameters[i], plan, arguments, results, wrap, call, to[i + 1])) return false;
    }
    return true;
  }

 private:
  static bool same(const IValue& value, const IValue& expected) {
    if (value.isScalar() && expected.isScalar()) return value.toScalar().toComplexDouble() == expected.toScalar().toComplexDouble();
    if (value.isString() && expected.isString()) return value.toStringView() == expected.toStringView();
    if (value.isIntList() && expected.isIntList()) return value.toIntVector() == expected.toIntVector();
    return expected.isNone() && value.isIntList() && value.toIntList().empty();
  }

  static void integer(char letter, int64_t value, Arg& to) {
    if (letter == 'I') to.i = static_cast<int32_t>(value);
    else to.l = value;
  }

  bool convert(
      const CParameter& p, const Plan& plan, const IValue* arguments, c10::ArrayRef<at::Tensor> results, bool wrap, CCall& call,
      Arg& to) const {
    if (p.code == 'R') {  // a result
      const auto& result = results[p.source];
      to.p = result.defined() ? call.handle(result) : nullptr;
      return true;
    }
    if (p.code == 'A') {  // a place for a result that the function allocates
      to.p = call.array(1);
      return true;
    }
    const IValue& value = value_of(plan, arguments, p.source);
    if (!p.nullable && is_none(value)) return false;
    switch (p.code) {
      case 'T':
        return tensor(plan, arguments, value, wrap, call, to);
      case 'L':
        return list(value, call, to);
      case 'N':
        integer(p.letter, value.isNone() ? 0 : static_cast<int64_t>(value.isList() ? value.toListRef().size() : 0), to);
        return true;
      case 'G':
        to.p = call.generator(value.isNone() ? std::nullopt : std::optional<at::Generator>(value.toGenerator()));
        return true;
      case 'S':
        if (value.isNone()) to.p = nullptr;
        else if (is_number(value)) to.p = call.number(number_of(value));
        else return false;
        return true;
      case 'I':
        if (!value.isNone() && !value.isInt() && !value.isBool()) return false;
        integer(p.letter, value.isNone() ? 0 : value.isBool() ? value.toBool() : value.toInt(), to);
        return true;
      case 'D': {
        if (!value.isNone() && !value.isScalar()) return false;
        const double number = value.isNone() ? 0 : value.toScalar().toDouble();
        if (p.letter == 'F') to.f = static_cast<float>(number);
        else to.d = number;
        return true;
      }
      case 'B':
        to.b = value.isBool() ? value.toBool() : value.isInt() && value.toInt() != 0;
        return true;
      case 'l': case 'd': case 'b': case 'y': case 'f':  // a pointer to one value, or null
        return pointer(p.code, value, call, to);
      case 'Z': case 'z':
        return sizes(p.code == 'z', value, call, to);
      case 'x': case 'm':  // an array of doubles, of bools
        return array(p.code, value, call, to);
      case 'C':
        to.p = value.isNone() ? nullptr : const_cast<char*>(call.text(value.toStringRef()));
        return true;
      case 'Y':
        to.i = c_dtype(static_cast<at::ScalarType>(value.toInt()));
        return true;
      case 'F':
        to.i = value.isNone() ? Contiguous : memory_format(value);
        return true;
      case 'O':  // a rounding mode
        to.i = value.isNone() ? RoundModeNone : value.toStringView() == "trunc" ? RoundModeTrunc : RoundModeFloor;
        return true;
      default:
        return false;
    }
  }

  // A number gets the type that promotion gives it; kernels compute half types in float32.
  static at::ScalarType type_beside(const Plan& plan, const IValue* arguments, const at::Tensor& number) {
    for (const Source source : plan.sources) {
      const IValue& other = value_of(plan, arguments, source);
      if (!other.isTensor() || !on_device(other.toTensor())) continue;
      const auto type = at::result_type(other.toTensor(), number);
      return type == at::kHalf || type == at::kBFloat16 ? at::kFloat : type;
    }
    return number.scalar_type();
  }
  static bool tensor(const Plan& plan, const IValue* arguments, const IValue& value, bool wrap, CCall& call, Arg& to) {
    if (value.isNone() || (value.isTensor() && !value.toTensor().defined())) {
      to.p = nullptr;
      return true;
    }
    if (C10_LIKELY(value.isTensor() && on_device(value.toTensor()))) {
      to.p = call.handle(value.toTensor());
      return true;
    }
    if (!wrap || !is_number(value)) return false;
    at::Tensor number = value.isTensor() ? value.toTensor() : at::scalar_tensor(value.toScalar(), value.toScalar().type());
    if (!value.isTensor()) number.unsafeGetTensorImpl()->set_wrapped_number(true);
    to.p = call.keep(number.to(dipu_device(call.device()), type_beside(plan, arguments, number)));
    return true;
  }
  static bool list(const IValue& value, CCall& call, Arg& to) {
    if (value.isNone()) {
      to.p = nullptr;
      return true;
    }
    if (!value.isList()) return false;
    const auto items = value.toListRef();
    void** handles = call.array(items.size());
    for (size_t i = 0; i < items.size(); i++) {
      if (items[i].isNone() || !items[i].toTensor().defined()) continue;
      if (!on_device(items[i].toTensor())) return false;
      handles[i] = call.handle(items[i].toTensor());
    }
    to.p = handles;
    return true;
  }
  static bool pointer(char code, const IValue& value, CCall& call, Arg& to) {
    if (value.isNone()) {
      to.p = nullptr;
      return true;
    }
    int64_t* place = call.numbers(1);
    to.p = place;
    if (code == 'l') *place = value.toInt();
    else if (code == 'd') *reinterpret_cast<double*>(place) = value.toScalar().toDouble();
    else if (code == 'b') *reinterpret_cast<bool*>(place) = value.toBool();
    else *reinterpret_cast<int32_t*>(place) = code == 'y' ? c_dtype(static_cast<at::ScalarType>(value.toInt())) : memory_format(value);
    return true;
  }
  static int32_t memory_format(const IValue& value) {
    switch (static_cast<at::MemoryFormat>(value.toInt())) {
      case at::MemoryFormat::ChannelsLast: return ChannelsLast;
      case at::MemoryFormat::ChannelsLast3d: return ChannelsLast3d;
      case at::MemoryFormat::Preserve: return Preserve;
      default: return Contiguous;
    }
  }
  static bool sizes(bool pointed, const IValue& value, CCall& call, Arg& to) {
    if (pointed && value.isNone()) {
      to.p = nullptr;
      return true;
    }
    std::vector<int64_t> found;
    if (value.isInt()) found = {value.toInt()};
    else if (value.isIntList()) found = value.toIntVector();
    else if (!value.isNone()) return false;
    int64_t* numbers = call.numbers(found.size() + 2);
    std::copy(found.begin(), found.end(), numbers + 2);
    const diopiSize_t size{numbers + 2, static_cast<int64_t>(found.size())};
    if (!pointed) {
      to.z = size;
      return true;
    }
    static_assert(sizeof(diopiSize_t) == 2 * sizeof(int64_t));
    *reinterpret_cast<diopiSize_t*>(numbers) = size;
    to.p = numbers;
    return true;
  }
  static bool array(char code, const IValue& value, CCall& call, Arg& to) {
    if (value.isNone()) {
      to.p = nullptr;
      return true;
    }
    if (code == 'x' && value.isDoubleList()) {
      const auto found = value.toDoubleVector();
      auto* numbers = reinterpret_cast<double*>(call.numbers(found.size()));
      std::copy(found.begin(), found.end(), numbers);
      to.p = numbers;
      return true;
    }
    if (code != 'm' || !value.isBoolList()) return false;
    const auto found = value.toBoolList();
    auto* flags = reinterpret_cast<bool*>(call.numbers(found.size()));
    for (size_t i = 0; i < found.size(); i++) flags[i] = found.get(i);
    to.p = flags;
    return true;
  }
};

}  // namespace
}  // namespace dipu
