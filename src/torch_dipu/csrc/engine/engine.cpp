// SPDX-License-Identifier: Apache-2.0
// One boxed kernel for all operators: it runs the special cases in force (a watcher, a fault, a
// vendor's kernels), else the host's kernel.
#include "engine/engine.h"

#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <optional>

#include "engine/typed.h"
#include "graphs/capture.h"
#include "profiler/span.h"

namespace dipu {

using c10::IValue;
using torch::jit::Stack;

thread_local uint8_t tls_off = 0;

// `takes_host`: a host tensor with dimensions is allowed; `write`: not even a number is.
static void look_at(const at::Tensor& t, bool takes_host, bool write, Where& found) {
  if (!t.defined()) return;
  if (t.device().type() == kDipu) {
    found.mixed |= found.device >= 0 && found.device != t.device().index();
    found.device = t.device().index();
  } else if (t.dim() == 0 && (takes_host || !write)) {
    found.number = true;
  } else {
    found.mixed |= !takes_host;
  }
}
Where where_is(const Operator& op, const Stack& stack) {
  Where found;
  const size_t base = stack.size() - op.arguments;
  for (const auto& a : op.looked_at) {
    const IValue& value = stack[base + a.index];
    if (a.kind == Kind::Tensor && value.isTensor()) look_at(value.toTensor(), op.takes_host_tensors, a.write, found);
    if (a.kind == Kind::TensorList && value.isTensorList()) {
      for (const at::Tensor& t : value.toTensorVector()) look_at(t, op.takes_host_tensors, a.write, found);
    }
    if (a.kind == Kind::OptionalTensorList && value.isList()) {
      for (const IValue& element : value.toListRef()) if (element.isTensor()) look_at(element.toTensor(), op.takes_host_tensors, a.write, found);
    }
    if (a.kind == Kind::Device && value.isDevice() && value.toDevice().type() == kDipu && found.device < 0) {
      found.device = resolve_device(value.toDevice().index());
    }
  }
  return found;
}

bool run_routes(Operator& op, Stack* stack) {
  if ((special(op) & kRouted) == 0) return false;
  for (Route* route : *op.routes.load(std::memory_order_acquire)) {
    // a decomposition or composite has no span: each of its kernels has one
    std::optional<Span> span;
    if (route->is_kernel) span.emplace(op, *stack, route->who.c_str());
    if (!route->run(op, stack)) {
      if (span) span->cancel();
      continue;
    }
    route->calls.fetch_add(1, std::memory_order_relaxed);
    return true;
  }
  return false;
}

static void run_special(Operator& op, Stack* stack, c10::DispatchKey host_key, uint8_t what) {
  if ((what & kCaptured) && record_call(op, stack, host_key)) return;
  if (what & kWatched) return run_callable(op, op.watcher, stack, host_key);
  if (what & kHooked) {
    const Span span(op, *stack);  // the time of an injected fault counts for the kernel
    return run_callable(op, op.hook, stack, host_key);
  }
  if ((what & kForced) && (op.forced.load() == Forced::Always || where_is(op, *stack).number)) {
    op.forced_calls.fetch_add(1, std::memory_order_relaxed);
    return run_on_host(op, stack, host_key, /*on_copies=*/true);
  }
  if ((what & kRouted) && host_key == c10::DispatchKey::CPU) {
    if (run_routes(op, stack)) return;
    op.host_calls.fetch_add(1, std::memory_order_relaxed);
  }
  run_on_host(op, stack, host_key);
}

void run(Operator& op, Stack* stack, c10::DispatchKey host_key) {  // hot path
  const auto what = special(op);
  if (C10_LIKELY(what == 0)) run_on_host(op, stack, host_key);
  else run_special(op, stack, host_key, what);
}

// ---- registration

// The device's dispatch keys, and the host's key for the kernels of each.
struct KeyPair {
  c10::DispatchKey device, host;
};
constexpr KeyPair kDense{c10::DispatchKey::PrivateUse1, c10::DispatchKey::CPU};
constexpr KeyPair kSparse{c10::DispatchKey::SparsePrivateUse1, c10::DispatchKey::SparseCPU};
constexpr KeyPair kCompressed{c10::DispatchKey::SparseCsrPrivateUse1, c10::DispatchKey::SparseCsrCPU};

// The kernel of one operator, with direct access to its record.
struct Kernel final : c10::OperatorKernel {
  Kernel(Operator& op, c10::DispatchKey host_key) : op_(op), host_key_(host_key) {}
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, Stack* stack) {
    run(op_, stack, host_key_);
  }

 private:
  Operator& op_;
  const c10::DispatchKey host_key_;
};

// Handles operators that were registered later (custom operators with a CPU kernel, for example).
template <const KeyPair& keys>
static void run_unknown(const c10::OperatorHandle& handle, c10::DispatchKeySet, Stack* stack) {
  static thread_local ska::flat_hash_map<const void*, Operator*> known;
  auto*& slot = known[&handle.operator_name()];
  if (slot == nullptr) slot = &operator_of(handle);
  run(*slot, stack, keys.host);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_unknown<kDense>>());
}
TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_unknown<kSparse>>());
}
TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_unknown<kCompressed>>());
}

static void register_operator(torch::Library& library, const c10::OperatorHandle& handle, const KeyPair& keys) {
  auto& op = operator_of(handle);
  const auto name = full_name(handle.operator_name());
  auto typed = keys.host == c10::DispatchKey::CPU ? typed_kernel(op) : std::nullopt;
  if (typed) library.impl(name.c_str(), std::move(*typed));
  else library.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(op, keys.host)));
}

// Every operator with a CPU kernel gets the engine's, so that composites which would hide it
// (functional overloads, layer norm, …) do not run, and results are the CPU's own.
void register_engine() {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto* keys : {&kDense, &kSparse, &kCompressed}) {
    // never freed
    auto* library = new torch::Library(torch::Library::IMPL, "aten", keys->device, __FILE__, __LINE__);
    for (const auto& name : dispatcher.getAllOpNames()) {
      if (name.getNamespace() != "aten") continue;
      const auto handle = dispatcher.findSchema(name);
      if (!handle || !handle->hasKernelForDispatchKey(keys->host)) continue;
      if (handle->hasKernelForDispatchKey(keys->device)) continue;  // the device's own kernel
      register_operator(*library, *handle, *keys);
    }
    if (keys != &kDense) continue;
    for (const char* name : {"aten::convolution_overrideable", "aten::convolution_backward_overrideable"}) {
      register_operator(*library, dispatcher.findSchemaOrThrow(name, ""), *keys);
    }
    // torch's composite of it accepts devices by name
    register_operator(*library, dispatcher.findSchemaOrThrow("aten::mode", "values"), *keys);
  }
}

// ---- configuration from outside

static void mark(Operator& op, Special what, bool on) {
  if (on) op.special.fetch_or(what);
  else op.special.fetch_and(static_cast<uint8_t>(~what));
}

void set_hook(const std::vector<std::string>& names, void* callable) {
  change_operators(names, [&](Operator& op) {
    op.hook.store(callable);
    mark(op, kHooked, callable != nullptr);
  });
}
void set_watcher(const std::vector<std::string>& names, void* callable) {
  change_operators(names, [&](Operator& op) {
    op.watcher.store(callable);
    mark(op, kWatched, callable != nullptr);
  });
}
void set_forced(const std::vector<std::string>& names, int forced) {
  change_operators(names, [&](Operator& op) {
    op.forced.store(static_cast<Forced>(forced));
    mark(op, kForced, forced != 0);
  });
}

namespace {

// torch's composite of an operator for a device without a kernel: a sequence of other operators.
struct CompositeRoute final : Route {
  explicit CompositeRoute(c10::DispatchKey key) : Route("composite", "torch"), key_(key) {}
  bool run(Operator& op, Stack* stack) override {
    op.handle.callBoxedForDispatchKey(key_, *stack);
    return true;
  }

 private:
  const c10::DispatchKey key_;
};

Route* make_composite_route(const c10::OperatorHandle& handle) {
  for (auto key : {c10::DispatchKey::CompositeExplicitAutogradNonFunctional, c10::DispatchKey::CompositeExplicitAutograd}) {
    if (handle.hasKernelForDispatchKey(key)) return new CompositeRoute(key);
  }
  return nullptr;
}

// Registers the engine for an operator that a composite would handle; the composite stays as its last route.
Operator& take_operator(const std::string& name) {
  // never freed
  static auto* library = new torch::Library(torch::Library::IMPL, "aten", kDense.device, __FILE__, __LINE__);
  const auto handle = find_operator(name);
  auto& op = operator_of(handle);
  if (handle.hasKernelForDispatchKey(kDense.device)) return op;
  if (!handle.hasKernelForDispatchKey(kDense.host)) op.composite = make_composite_route(handle);
  register_operator(*library, handle, kDense);
  return op;
}

void store_routes(Operator& op, Routes routes) {
  if (op.composite != nullptr) routes.push_back(op.composite);
  // never freed: a call may be reading the previous one
  op.routes.store(new Routes(std::move(routes)), std::memory_order_release);
}

}  // namespace

void set_routes(const std::string& name, Routes routes) {
  auto& op = take_operator(name);
  store_routes(op, std::move(routes));
  mark(op, kRouted, true);
}
void clear_routes(const std::vector<std::string>& names) {
  change_operators(names, [](Operator& op) {
    if (op.composite != nullptr) store_routes(op, {});
    else mark(op, kRouted, false);
  });
}

Route* composite_route(const std::string& name) {
  return make_composite_route(take_operator(name).handle);
}

}  // namespace dipu
