// SPDX-License-Identifier: Apache-2.0
// The record of each operator, computed once from its schema, and the list of all operators.
#include <ATen/core/ATenOpList.h>

#include <map>
#include <mutex>
#include <set>
#include <unordered_map>

#include "engine/engine.h"

namespace dipu {

static bool is_type(const c10::TypePtr& type, c10::TypeKind kind) {
  return type->kind() == kind;
}
static c10::TypePtr unwrap_optional(const c10::TypePtr& type) {
  return is_type(type, c10::TypeKind::OptionalType) ? type->castRaw<c10::OptionalType>()->getElementType() : type;
}
static std::optional<Kind> kind_of(const c10::TypePtr& declared) {
  const auto type = unwrap_optional(declared);
  if (is_type(type, c10::TypeKind::TensorType)) return Kind::Tensor;
  if (is_type(type, c10::TypeKind::GeneratorType)) return Kind::Generator;
  if (is_type(type, c10::TypeKind::DeviceObjType)) return Kind::Device;
  if (!is_type(type, c10::TypeKind::ListType)) return std::nullopt;
  const auto element = type->castRaw<c10::ListType>()->getElementType();
  if (is_type(element, c10::TypeKind::TensorType)) return Kind::TensorList;
  const bool optional = is_type(element, c10::TypeKind::OptionalType);
  if (optional && is_type(unwrap_optional(element), c10::TypeKind::TensorType)) return Kind::OptionalTensorList;
  return std::nullopt;
}

// Operators that accept a host tensor among device tensors, as on CUDA.
static const std::set<std::string> kTakeHostTensors = {
    "index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put",
    "_pack_padded_sequence", "_pad_packed_sequence", "_ctc_loss", "_ctc_loss_backward", "_foreach_copy_"};

// Operators that another operator implements on the host.
static const std::map<std::string, const char*> kTargets = {
    {"convolution_overrideable", "aten::convolution"},
    {"convolution_backward_overrideable", "aten::convolution_backward"},
    {"histc", "dipu_host::histc"}};

Operator::Operator(const c10::OperatorHandle& op) : handle(op), target(op) {
  const auto& schema = op.schema();
  const std::string base = schema.name().substr(schema.name().rfind("::") + 2);
  name = schema.overload_name().empty() ? base : base + "." + schema.overload_name();
  arguments = schema.arguments().size();
  returns = schema.returns().size();
  for (size_t i = 0; i < arguments; i++) {
    const auto& argument = schema.arguments()[i];
    const auto kind = kind_of(argument.type());
    if (!kind) continue;
    if (*kind == Kind::Generator) generator = static_cast<int>(i);
    const bool write = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    looked_at.push_back({static_cast<uint16_t>(i), *kind, write});
  }
  for (const auto& result : schema.returns()) {
    int source = -1;
    const auto* info = result.alias_info();
    for (size_t i = 0; info != nullptr && info->isWrite() && i < arguments && source < 0; i++) {
      const auto* other = schema.arguments()[i].alias_info();
      if (other != nullptr && other->isWrite() && other->beforeSets() == info->beforeSets()) source = static_cast<int>(i);
    }
    return_of.push_back(source);
  }
  for (auto tag : op.getTags()) seeded |= tag == at::Tag::nondeterministic_seeded;
  if (const auto other = kTargets.find(base); other != kTargets.end()) {
    target = c10::Dispatcher::singleton().findSchemaOrThrow(other->second, schema.overload_name().c_str());
  }
  wants_bias_sizes = base == "convolution_backward_overrideable";
  has_host_kernel = target.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU);
  takes_host_tensors = kTakeHostTensors.count(base) > 0;
  host_returns = base == "_pack_padded_sequence" ? 2u : 0u;
}

std::string full_name(const c10::OperatorName& name) {
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}
c10::OperatorHandle find_operator(const std::string& name) {
  const auto dot = name.find('.');
  return c10::Dispatcher::singleton().findSchemaOrThrow(
      name.substr(0, dot).c_str(), dot == std::string::npos ? "" : name.substr(dot + 1).c_str());
}

static std::mutex g_operators_mutex;
static std::unordered_map<c10::OperatorName, std::unique_ptr<Operator>>& operators() {
  static auto* all = new std::unordered_map<c10::OperatorName, std::unique_ptr<Operator>>();
  return *all;
}
Operator& operator_of(const c10::OperatorHandle& handle) {
  std::lock_guard<std::mutex> lock(g_operators_mutex);
  auto& slot = operators()[handle.operator_name()];
  if (slot == nullptr) slot = std::make_unique<Operator>(handle);
  return *slot;
}
std::vector<std::string> known_operators() {
  std::lock_guard<std::mutex> lock(g_operators_mutex);
  std::vector<std::string> names;
  for (auto& [name, op] : operators()) names.push_back(full_name(name));
  return names;
}
void change_operators(const std::vector<std::string>& names, const std::function<void(Operator&)>& change) {
  const std::set<std::string> wanted(names.begin(), names.end());
  std::lock_guard<std::mutex> lock(g_operators_mutex);
  for (auto& [name, op] : operators()) if (wanted.count(full_name(name)) > 0) change(*op);
}

std::vector<OperatorRecord> operator_records() {
  std::lock_guard<std::mutex> lock(g_operators_mutex);
  std::vector<OperatorRecord> records;
  for (auto& [name, op] : operators()) {
    const auto* routes = op->special.load() & kRouted ? op->routes.load() : nullptr;
    records.push_back({full_name(name), op->special.load(), routes == nullptr ? Routes() : *routes,
                       op->forced_calls.load(), op->host_calls.load(), op->has_host_kernel});
  }
  return records;
}

}  // namespace dipu
