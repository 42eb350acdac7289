// SPDX-License-Identifier: Apache-2.0
// Sizes, strides and types of the results of a vendor's C function, from torch's own meta kernel,
// cached by the arguments.
#include "routes/c_plan.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/flat_hash_map.h>

namespace dipu {

using c10::IValue;
using torch::jit::Stack;

namespace {

using PlanKey = c10::SmallVector<int64_t, 48>;

void describe(const at::Tensor& t, PlanKey& key) {
  if (!t.defined()) return key.push_back(-1);
  const auto* impl = t.unsafeGetTensorImpl();
  key.push_back(static_cast<int64_t>(t.scalar_type()) | impl->dim() << 8 | int64_t{impl->is_wrapped_number()} << 16 |
                int64_t{t.is_cpu()} << 17);
  key.append(impl->sizes().begin(), impl->sizes().end());
  key.append(impl->strides().begin(), impl->strides().end());
}
// Returns false if the value cannot be part of a cache key.
bool describe(const IValue& value, PlanKey& key) {
  if (value.isTensor()) describe(value.toTensor(), key);
  else if (value.isNone() || value.isGenerator() || value.isDevice()) key.push_back(-2);
  else if (value.isInt()) key.append({-3, value.toInt()});
  else if (value.isBool()) key.append({-4, value.toBool()});
  // no size depends on its value
  else if (value.isDouble() || value.isComplexDouble()) key.push_back(value.isDouble() ? -5 : -6);
  else if (value.isString()) key.append({-7, static_cast<int64_t>(std::hash<std::string_view>{}(value.toStringView()))});
  else if (value.isIntList()) {
    const auto list = value.toIntVector();
    key.append({-8, static_cast<int64_t>(list.size())});
    key.append(list.begin(), list.end());
  } else if (value.isBoolList()) {
    for (bool one : value.toBoolList()) key.push_back(one ? -9 : -10);
  } else if (value.isTensorList()) {
    key.push_back(-11);
    for (const at::Tensor& one : value.toTensorVector()) describe(one, key);
  } else return false;
  return true;
}

at::Tensor without_data(const at::Tensor& t) {
  if (!on_device(t)) return t;
  auto made = at::detail::empty_strided_meta(t.sizes(), t.strides(), t.scalar_type());
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) made.unsafeGetTensorImpl()->set_wrapped_number(true);
  return made;
}
IValue without_data(const IValue& value) {
  if (value.isTensor()) return without_data(value.toTensor());
  if (value.isDevice()) return c10::Device(c10::DeviceType::Meta);
  if (value.isGenerator()) return IValue();
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& one : value.toTensorVector()) list.push_back(without_data(one));
    return list;
  }
  if (value.isList() && !value.toListRef().empty() && (value.toListRef()[0].isTensor() || value.toListRef()[0].isNone())) {
    c10::List<std::optional<at::Tensor>> list;
    for (const IValue& one : value.toListRef()) {
      list.push_back(one.isNone() ? std::nullopt : std::optional<at::Tensor>(without_data(one.toTensor())));
    }
    return list;
  }
  return value;
}

Geometries infer(const Plan& plan, const IValue* arguments) {
  // no mode (of a tool, of torch.compile) sees these tensors without data
  const c10::impl::ExcludeDispatchKeyGuard unseen(
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
  Stack stack;
  for (const Source source : plan.sources) stack.push_back(without_data(value_of(plan, arguments, source)));
  plan.functional->redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
  Geometries found;
  for (const auto& result : stack) {
    auto& one = found.emplace_back();
    if (!result.isTensor() || !result.toTensor().defined()) continue;
    const at::Tensor& t = result.toTensor();
    one.sizes.assign(t.sizes().begin(), t.sizes().end());
    one.strides.assign(t.strides().begin(), t.strides().end());
    one.type = t.scalar_type();
  }
  return found;
}

struct Remembered {
  PlanKey key;
  Geometries found;
};

}  // namespace

at::Tensor empty_result(const Geometry& geometry) {
  constexpr c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(geometry.sizes, geometry.strides, device_allocator(), keys, geometry.type);
}

const Geometries* results_of(const Plan& plan, const IValue* arguments) {  // hot path
  static thread_local ska::flat_hash_map<uint64_t, Remembered> known;
  static thread_local Geometries last;
  PlanKey key;
  key.append({reinterpret_cast<intptr_t>(&plan), static_cast<int64_t>(c10::typeMetaToScalarType(c10::get_default_dtype()))});
  bool rememberable = true;
  for (const Source source : plan.sources) rememberable &= describe(value_of(plan, arguments, source), key);
  uint64_t hash = 1469598103934665603ull;
  for (const int64_t part : key) hash = (hash ^ static_cast<uint64_t>(part)) * 0x9E3779B97F4A7C15ull + (hash >> 29);
  const auto place = rememberable ? known.find(hash) : known.end();
  if (C10_LIKELY(place != known.end() && place->second.key == key)) return &place->second.found;
  try {
    last = infer(plan, arguments);
  } catch (const std::exception&) {
    return nullptr;
  }
  if (!rememberable) return &last;
  if (known.size() > 4096) known.clear();
  auto& slot = known[hash];
  slot = {key, last};
  return &slot.found;
}

}  // namespace dipu
