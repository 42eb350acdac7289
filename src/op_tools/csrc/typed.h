// The layer for operators with their arguments as they are: torch boxes nothing for it. What it records is the same.
#pragma once
#include <ATen/core/IListRef.h>
#include <ATen/core/List.h>
#include <torch/library.h>

#include "layer.h"

namespace op_tools {

// What holds no tensor: only of these kinds are the other arguments of operators.
template <typename T>
constexpr bool holds_none = std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_convertible_v<T, std::string_view>;
template <>
inline constexpr bool holds_none<at::Scalar> = true;
template <>
inline constexpr bool holds_none<c10::SymInt> = true;
template <>
inline constexpr bool holds_none<at::Generator> = true;
template <typename T>
constexpr bool holds_none<c10::ArrayRef<T>> = holds_none<T>;
template <typename T>
constexpr bool holds_none<c10::OptionalArrayRef<T>> = holds_none<T>;
template <typename T>
constexpr bool holds_none<std::optional<T>> = holds_none<T>;
template <typename T, size_t N>
constexpr bool holds_none<std::array<T, N>> = holds_none<T>;

template <typename T>
void take(Given&, size_t, const T&) {
  static_assert(holds_none<T>);
}
inline void take(Given& to, size_t argument, const at::Tensor& tensor) { to.take(tensor, argument); }
inline void take(Given& to, size_t argument, const std::optional<at::Tensor>& tensor) {
  if (tensor) to.take(*tensor, argument);
}
inline void take(Given& to, size_t argument, const at::ITensorListRef& tensors) {
  for (const at::Tensor& tensor : tensors) to.take(tensor, argument);
}
inline void take(Given& to, size_t argument, const at::TensorList& tensors) {
  to.all.reserve(to.all.size() + tensors.size());
  for (const at::Tensor& tensor : tensors) to.take(tensor, argument);
}
inline void take(Given& to, size_t argument, const c10::List<std::optional<at::Tensor>>& tensors) {
  for (size_t i = 0; i < tensors.size(); i++)
    if (const std::optional<std::reference_wrapper<const at::Tensor>> tensor = tensors[i]) to.take(tensor->get(), argument);
}
inline void take(Given& to, size_t, const std::optional<at::Device>& device) {
  if (device) to.take(*device);
}

template <typename T>
void give(Results&, const T&) {
  static_assert(holds_none<T>);
}
inline void give(Results& to, const at::Tensor& tensor) { put_result(to, tensor); }
inline void give(Results& to, const std::vector<at::Tensor>& tensors) {
  to.reserve(to.size() + tensors.size());
  for (const at::Tensor& tensor : tensors) put_result(to, tensor);
}
template <typename... T>
void give(Results& to, const std::tuple<T...>& all) {
  std::apply([&](const auto&... one) { (give(to, one), ...); }, all);
}

// `Op`: one of torch's own, of ATen/ops.
template <typename Op, typename Schema = typename Op::schema>
struct Typed;

template <typename Op, typename Result, typename... Args>
struct Typed<Op, Result(Args...)> {
  static Result call(c10::DispatchKeySet keys, Args... args) {  // hot path
    static const Operator own(Op::name, Op::overload_name);
    Met met(own);
    if (Given* given = met.given()) {
      size_t at = 0;
      (take(*given, at++, args), ...);
      met.begin();
    }
    if (met.is_boxed()) return boxed(own.op, keys, std::forward<Args>(args)...);
    if constexpr (std::is_void_v<Result>) {
      Op::redispatch(keys & kBelow, std::forward<Args>(args)...);
      if (met.is_recorded()) met.end({});
    } else {
      Result result = Op::redispatch(keys & kBelow, std::forward<Args>(args)...);
      if (met.is_recorded()) {
        Results results;
        give(results, result);
        met.end(results);
      }
      return result;
    }
  }

  [[gnu::noinline, gnu::cold]] static Result boxed(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Args... args) {
    const auto way = c10::KernelFunction::makeFromBoxedFunction<&pass>();
    return way.template call<Result, Args...>(op, keys, std::forward<Args>(args)...);
  }
};

template <typename... Ops>
void meet(torch::Library& library) {
  (library.impl((std::string(Ops::name) + (*Ops::overload_name ? "." : "") + Ops::overload_name).c_str(), TORCH_FN(Typed<Ops>::call)), ...);
}

}  // namespace op_tools
