// SPDX-License-Identifier: Apache-2.0
// The most frequent signatures without boxing: the engine's steps for calls whose tensors are dense
// and on one device that the host reaches. Other calls of these operators go to the engine itself.
#include "engine/typed.h"

#include <array>
#include <map>
#include <tuple>
#include <utility>

#include "profiler/span.h"

namespace dipu {
namespace {

using at::Scalar;
using at::Tensor;

bool fits(const Tensor& t, int& device) {
  if (C10_UNLIKELY(!t.defined())) return false;
  const auto where = t.unsafeGetTensorImpl()->device();
  // a number among tensors
  if (C10_UNLIKELY(where.type() != kDipu)) return where.is_cpu() && t.dim() == 0;
  if (device < 0) device = where.index();
  return device == where.index();
}
bool fits(Tensor& written, int& device) {
  return written.defined() && !written.is_cpu() && fits(std::as_const(written), device);
}
bool fits(const Scalar&, int&) {
  return true;
}
Tensor host_of(const Tensor& t) {
  return C10_LIKELY(t.unsafeGetTensorImpl()->device().type() == kDipu) ? alias_for_kernel(t) : t;
}
const Scalar& host_of(const Scalar& s) {
  return s;
}

// If the result is a view of this argument, `found` is set to the equivalent view on the device.
void match(const Tensor& host, const Tensor& argument, const Tensor& result, Tensor& found) {
  const auto* storage = result.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  if (C10_UNLIKELY(host.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() == storage) && on_device(argument)) {
    found = device_view(argument.storage(), result);
  }
}
void match(const Scalar&, const Scalar&, const Tensor&, Tensor&) {}

// A result that is also an argument, as in mul(x, y, out=x), stays the same tensor for the kernel,
// which then refuses to resize it.
void share(const Tensor& argument, const Tensor& host, const Tensor& written, Tensor& host_of_written) {
  if (C10_UNLIKELY(argument.is_same(written))) host_of_written = host;
}
void share(const Scalar&, const Scalar&, const Tensor&, Tensor&) {}

template <class Signature>
struct Typed;

template <class Return, class... Args>
struct Typed<Return(Args...)> {
  using Handle = c10::TypedOperatorHandle<Return(Args...)>;
  using Indices = std::index_sequence_for<Args...>;
  static constexpr bool kWrites = std::is_reference_v<Return>;

  // index of the written argument: out= or self, the one that is not const
  static constexpr size_t written() {
    constexpr std::array<bool, sizeof...(Args)> writes{std::is_same_v<Args, Tensor&>...};
    for (size_t i = 0; i < writes.size(); i++) if (writes[i]) return i;
    return 0;
  }

  static Return boxed(Operator& op, Args... args) {
    torch::jit::Stack stack;
    torch::jit::push(stack, args...);
    run(op, &stack, c10::DispatchKey::CPU);
    if constexpr (kWrites) return std::get<written()>(std::forward_as_tuple(args...));
    else return std::move(stack.back()).toTensor();
  }

  template <size_t... I>
  static Return direct(const Operator& op, const Handle& kernel, int device, std::index_sequence<I...>, Args... args) {
    std::tuple<decltype(host_of(args))...> hosts{host_of(args)...};
    if constexpr (kWrites) {
      (share(args, std::get<I>(hosts), std::get<written()>(std::forward_as_tuple(args...)), std::get<written()>(hosts)), ...);
    }
    const auto call = [&]() -> Return {
      RedirectGuard redirect(device);
      Span span(op, device);
      return kernel.redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), std::get<I>(hosts)...);
    };
    if constexpr (kWrites) {
      call();
      auto& device_tensor = std::get<written()>(std::forward_as_tuple(args...));
      write_back(std::get<written()>(hosts), device_tensor);
      return device_tensor;
    } else {
      const Tensor result = call();
      Tensor found;
      (match(std::get<I>(hosts), args, result, found), ...);
      return found.defined() ? found : adopt_host(result, device);
    }
  }

  static torch::CppFunction make(Operator& op) {
    return torch::CppFunction([&op, kernel = op.target.typed<Return(Args...)>()](Args... args) -> Return {  // hot path
      int device = -1;
      const bool plain = (fits(args, device) && ...) && device >= 0 && host_reachable(device) && special(op) == 0;
      return C10_LIKELY(plain) ? direct(op, kernel, device, Indices{}, args...) : boxed(op, args...);
    });
  }
};

// Encodes a schema in a few letters: T tensor, S scalar, ! written.
std::string shape_of(const c10::FunctionSchema& schema) {
  const auto letters = [](const c10::Argument& a) -> std::string {
    const bool writes = a.alias_info() != nullptr && a.alias_info()->isWrite();
    if (a.type()->kind() == c10::TypeKind::TensorType) return writes ? "T!" : "T";
    return a.type()->kind() == c10::TypeKind::NumberType ? "S" : "?";
  };
  std::string text;
  for (const auto& a : schema.arguments()) text += letters(a);
  text += ">";
  for (const auto& r : schema.returns()) text += letters(r);
  return text;
}

using Make = torch::CppFunction (*)(Operator&);
const std::map<std::string, Make> kShapes = {
    {"T>T", &Typed<Tensor(const Tensor&)>::make},
    {"TT>T", &Typed<Tensor(const Tensor&, const Tensor&)>::make},
    {"TS>T", &Typed<Tensor(const Tensor&, const Scalar&)>::make},
    {"TTS>T", &Typed<Tensor(const Tensor&, const Tensor&, const Scalar&)>::make},
    {"TTTSS>T", &Typed<Tensor(const Tensor&, const Tensor&, const Tensor&, const Scalar&, const Scalar&)>::make},
    {"TT!>T!", &Typed<Tensor&(const Tensor&, Tensor&)>::make},
    {"TTT!>T!", &Typed<Tensor&(const Tensor&, const Tensor&, Tensor&)>::make},
    {"TTST!>T!", &Typed<Tensor&(const Tensor&, const Tensor&, const Scalar&, Tensor&)>::make},
    {"T!>T!", &Typed<Tensor&(Tensor&)>::make},
    {"T!T>T!", &Typed<Tensor&(Tensor&, const Tensor&)>::make},
    {"T!TS>T!", &Typed<Tensor&(Tensor&, const Tensor&, const Scalar&)>::make},
    {"T!TTS>T!", &Typed<Tensor&(Tensor&, const Tensor&, const Tensor&, const Scalar&)>::make},
};

}  // namespace

std::optional<torch::CppFunction> typed_kernel(Operator& op) {
  const auto found = kShapes.find(shape_of(op.handle.schema()));
  const bool usual = !op.seeded && !op.takes_host_tensors && op.host_returns == 0 && op.handle.operator_name() == op.target.operator_name();
  if (found == kShapes.end() || !usual) return std::nullopt;
  return found->second(op);
}

}  // namespace dipu
