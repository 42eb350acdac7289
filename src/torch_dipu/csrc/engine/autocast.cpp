// SPDX-License-Identifier: Apache-2.0
// Autocast: one boxed kernel per policy; the operator lists are those of torch's header.
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "runtime/core.h"

namespace dipu {

using c10::IValue;
using torch::jit::Stack;

enum class Policy { Lower, Float32, Float32Dtype, Promote };

static at::ScalarType widest(const std::vector<IValue>& values, at::ScalarType start) {
  for (const auto& v : values) {
    if (v.isTensor() && v.toTensor().defined()) start = at::autocast::prioritize(start, v.toTensor(), kDipu);
    else if (v.isTensorList()) for (const at::Tensor& t : v.toTensorVector()) start = at::autocast::prioritize(start, t, kDipu);
  }
  return start;
}
static void cast(IValue& v, at::ScalarType to) {
  if (v.isTensor() && v.toTensor().defined()) {
    v = at::autocast::cached_cast(to, v.toTensor(), kDipu);
  } else if (v.isTensorList()) {
    const auto list = v.toTensorVector();
    v = at::autocast::cached_cast(to, at::TensorList(list), kDipu);
  }
}
// softmax, sum, cumsum, …: compute in float32 by their dtype argument, unless the user set it.
static void set_dtype(const c10::OperatorHandle& op, Stack* stack, size_t base) {
  const auto& first = (*stack)[base];
  if (!first.isTensor() || !at::autocast::is_eligible(first.toTensor(), kDipu)) return;
  if (!first.toTensor().is_floating_point() || first.toTensor().scalar_type() == at::kDouble) return;
  const auto index = op.schema().argumentIndexWithName("dtype");
  if (index && (*stack)[base + *index].isNone()) (*stack)[base + *index] = at::kFloat;
}

template <Policy policy>
void autocast(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard guard(c10::DispatchKey::AutocastPrivateUse1);
  const size_t base = stack->size() - op.schema().arguments().size();
  if constexpr (policy == Policy::Float32Dtype) {
    set_dtype(op, stack, base);
  } else {
    at::ScalarType to = policy == Policy::Float32 ? at::kFloat : at::autocast::get_autocast_dtype(kDipu);
    if constexpr (policy == Policy::Promote) to = widest({stack->begin() + static_cast<int64_t>(base), stack->end()}, to);
    for (size_t i = base; i < stack->size(); i++) cast((*stack)[i], to);
  }
  op.callBoxed(stack);
}

static at::Tensor refuse_binary_cross_entropy(
    const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, int64_t) {
  TORCH_CHECK(
      false,
      "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast. Use "
      "torch.nn.functional.binary_cross_entropy_with_logits or torch.nn.BCEWithLogitsLoss, which combine the sigmoid "
      "and the loss and are safe to autocast.");
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

#define DIPU_NAME_1(op) #op
#define DIPU_NAME_2(op, overload) #op "." #overload
#define DIPU_PICK(_1, _2, picked, ...) picked
#define DIPU_NAME(...) DIPU_PICK(__VA_ARGS__, DIPU_NAME_2, DIPU_NAME_1)(__VA_ARGS__)
#define DIPU_ROW(...) DIPU_NAME(__VA_ARGS__),
#define DIPU_ROW_DIFFERENT(op, name, ...) name,

static const char* const kLower[] = {AT_FORALL_LOWER_PRECISION_FP(DIPU_ROW)};
static const char* const kFloat32[] = {AT_FORALL_FP32(DIPU_ROW) AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(DIPU_ROW_DIFFERENT)};
static const char* const kFloat32Dtype[] = {AT_FORALL_FP32_SET_OPT_DTYPE(DIPU_ROW)};
static const char* const kPromote[] = {AT_FORALL_PROMOTE(DIPU_ROW)};

template <Policy policy, size_t n>
static void add(torch::Library& m, const char* const (&names)[n]) {
  for (const char* name : names) m.impl(name, torch::CppFunction::makeFromBoxedFunction<&autocast<policy>>());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  add<Policy::Lower>(m, kLower);
  add<Policy::Float32>(m, kFloat32);
  add<Policy::Float32Dtype>(m, kFloat32Dtype);
  add<Policy::Promote>(m, kPromote);
  m.impl("binary_cross_entropy", refuse_binary_cross_entropy);
}

}  // namespace dipu
