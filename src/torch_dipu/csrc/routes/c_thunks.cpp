// SPDX-License-Identifier: Apache-2.0
// A typed call for each parameter list of the functions of diopi.h.
#include <unordered_map>
#include <utility>

#include "routes/c_call.h"

namespace dipu {
namespace {

template <class T, T Arg::*member>
struct Letter {
  using type = T;
  static T get(const Arg& a) {
    return a.*member;
  }
};
using P = Letter<void*, &Arg::p>;
using L = Letter<int64_t, &Arg::l>;
using I = Letter<int32_t, &Arg::i>;
using B = Letter<bool, &Arg::b>;
using D = Letter<double, &Arg::d>;
using F = Letter<float, &Arg::f>;
using Z = Letter<diopiSize_t, &Arg::z>;

template <class... Letters>
struct TypedCall {
  template <size_t... N>
  static int32_t with(void* function, const Arg* a, std::index_sequence<N...>) {
    return reinterpret_cast<int32_t (*)(typename Letters::type...)>(function)(Letters::get(a[N])...);
  }
  static int32_t call(void* function, const Arg* a) {
    return with(function, a, std::index_sequence_for<Letters...>{});
  }
};

}  // namespace

Thunk thunk_of(const std::string& shape) {
  static const auto* all = new std::unordered_map<std::string, Thunk>{
#define DIOPI_SHAPE(NAME, ...) {#NAME, &TypedCall<__VA_ARGS__>::call},
#include "diopi_shapes.h"
#undef DIOPI_SHAPE
  };
  const auto found = all->find(shape);
  return found == all->end() ? nullptr : found->second;
}

}  // namespace dipu
