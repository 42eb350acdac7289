// One boxed kernel for all operators: device tensors become host tensors on the same bytes, the host
// kernel runs, and what it returns is device memory already. Memory that the host cannot reach is copied.
#include "engine.h"

#include <ATen/core/ATenOpList.h>
#include <ATen/record_function.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>

#include "span.h"
#include "sparse.h"
#include "typed.h"

namespace dipu {

using c10::IValue;
using torch::jit::Stack;

thread_local uint8_t tls_off = 0;

// ---- what is known of an operator

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

// Operators that take a host tensor beside device tensors, as they do on CUDA.
static const std::set<std::string> kTakeHostTensors = {
    "index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put",
    "_pack_padded_sequence", "_pad_packed_sequence", "_ctc_loss", "_ctc_loss_backward", "_foreach_copy_"};

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
  auto& dispatcher = c10::Dispatcher::singleton();
  if (base == "convolution_overrideable") target = dispatcher.findSchemaOrThrow("aten::convolution", "");
  if (base == "convolution_backward_overrideable") {
    target = dispatcher.findSchemaOrThrow("aten::convolution_backward", "");
    wants_bias_sizes = true;
  }
  has_host_kernel = target.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU);
  takes_host_tensors = kTakeHostTensors.count(base) > 0;
  host_returns = base == "_pack_padded_sequence" ? 2u : 0u;
}

// "aten::add.out"
static std::string full_name(const c10::OperatorName& name) {
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
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

// ---- one call on the host

namespace {

struct Moved {
  uint16_t argument;
  int16_t element;  // in a list, else -1
  at::Tensor device;
  at::Tensor host;  // only of what is written: the others are not needed after the call
  c10::StorageImpl* host_storage;
};

class HostCall {
 public:
  HostCall(Operator& op, Stack* stack, c10::DispatchKey host_key, bool on_copies)
      : op_(op), stack_(stack), base_(stack->size() - op.arguments), host_key_(host_key),
        sparse_(host_key != c10::DispatchKey::CPU), on_copies_(on_copies) {}

  void run() {
    arguments_to_host();
    if (C10_UNLIKELY(op_.generator >= 0)) lend_generator();
    if (C10_UNLIKELY(op_.wants_bias_sizes)) insert_bias_sizes();
    {
      std::optional<BorrowEngine> borrowed;
      if (C10_UNLIKELY(op_.seeded && op_.generator < 0)) borrowed.emplace(device_);
      RedirectGuard redirect(reachable_ ? device_ : DIPU_HOST);
      Span span(op_, reachable_ ? device_ : DIPU_HOST);
      op_.target.redispatchBoxed(c10::DispatchKeySet(host_key_), stack_);
    }
    for (auto& moved : moved_) if (moved.host.defined()) write_back(moved);
    results_to_device();
  }

 private:
  Operator& op_;
  Stack* stack_;
  const size_t base_;
  const c10::DispatchKey host_key_;
  const bool sparse_, on_copies_;
  int device_ = -1;
  bool reachable_ = true, saw_host_tensor_ = false;
  c10::SmallVector<Moved, 6> moved_;
  c10::SmallVector<std::pair<c10::StorageImpl*, c10::Storage>, 2> copied_;  // device storage -> its host copy
  c10::SmallVector<std::pair<c10::StorageImpl*, c10::Storage>, 2> made_;    // host storage -> new device storage

  void see_device(const at::Tensor& t) {
    const int device = t.device().index();
    if (C10_LIKELY(device_ == device)) return;
    TORCH_CHECK(
        device_ < 0, "Expected all tensors to be on the same device, but found at least two devices, dipu:", device_,
        " and dipu:", device, "! (in ", op_.name, ")");
    device_ = device;
    reachable_ = !on_copies_ && host_reachable(device);
  }

  at::Tensor host_of(const at::Tensor& t) {
    see_device(t);
    if (C10_UNLIKELY(sparse_ && is_sparse_layout(t))) {
      return convert_sparse(t, c10::Device(c10::DeviceType::CPU), [this](const at::Tensor& member) {
        auto host = host_of(member);
        made_.emplace_back(host.storage().unsafeGetStorageImpl(), member.storage());
        return host;
      });
    }
    if (C10_LIKELY(reachable_)) return sparse_ ? alias_host(t) : alias_for_kernel(t);
    auto* storage = t.storage().unsafeGetStorageImpl();
    for (auto& [known, copy] : copied_) if (known == storage) return host_view(copy, t);
    auto bytes = storage->nbytes();
    c10::Storage copy(c10::Storage::use_byte_size_t(), bytes, c10::GetCPUAllocator()->allocate(bytes),
                      c10::GetCPUAllocator(), /*resizable=*/true);
    if (bytes > 0) device_allocator()->copy_data(copy.mutable_data(), storage->data(), bytes);
    copied_.emplace_back(storage, copy);
    return host_view(copy, t);
  }
  at::Tensor move(const Argument& a, int16_t element, at::Tensor t) {
    auto host = host_of(t);
    // sparse kernels ask whether a gradient is wanted to decide what they keep for it
    if (C10_UNLIKELY(sparse_ && t.requires_grad())) host.set_requires_grad(true);
    auto* storage = host.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
    moved_.push_back({a.index, element, std::move(t), a.write ? host : at::Tensor(), storage});
    return host;
  }

  void arguments_to_host() {
    for (const auto& a : op_.looked_at) {
      IValue& value = (*stack_)[base_ + a.index];
      switch (a.kind) {
        case Kind::Tensor:
          if (C10_LIKELY(value.isTensor())) tensor_to_host(a, value);
          break;
        case Kind::TensorList:
          if (value.isTensorList()) list_to_host(a, value);
          break;
        case Kind::OptionalTensorList:
          if (value.isList()) optional_list_to_host(a, value);
          break;
        case Kind::Device:
          if (value.isDevice() && value.toDevice().type() == kDipu) {
            if (device_ < 0) device_ = resolve_device(value.toDevice().index());
            reachable_ = !on_copies_ && host_reachable(device_);
            value = c10::Device(c10::DeviceType::CPU);
          }
          break;
        case Kind::Generator:
          break;
      }
    }
    if (device_ < 0) {
      device_ = resolve_device(-1);
      reachable_ = !on_copies_ && host_reachable(device_);
    }
    TORCH_CHECK(
        !saw_host_tensor_ || op_.takes_host_tensors,
        "Expected all tensors to be on the same device, but found at least two devices, dipu:", device_,
        " and cpu! (in ", op_.name, ")");
    TORCH_CHECK(  // a device index into a host tensor, as on CUDA
        !saw_host_tensor_ || (!moved_.empty() && moved_[0].argument == 0),
        "indices should be either on cpu or on the same device as the indexed tensor (cpu)");
    const bool runs = C10_LIKELY(!sparse_)
        ? op_.has_host_kernel
        : op_.target.hasComputedKernelForDispatchKey(host_key_);
    TORCH_CHECK(
        runs, "Could not run '", op_.name, "' on the DIPU device: it has no kernel of its own, and the CPU ",
        "has none to fall back to");
  }
  void tensor_to_host(const Argument& a, IValue& value) {
    const at::Tensor& t = value.toTensor();
    if (C10_UNLIKELY(!t.defined())) return;
    if (C10_LIKELY(t.unsafeGetTensorImpl()->device().type() == kDipu)) value = move(a, -1, std::move(value).toTensor());
    else saw_host_tensor_ |= t.dim() > 0;
  }
  void list_to_host(const Argument& a, IValue& value) {
    auto list = value.toTensorList();
    c10::List<at::Tensor> host;
    host.reserve(list.size());
    for (size_t i = 0; i < list.size(); i++) {
      at::Tensor t = list.get(i);
      if (on_device(t)) t = move(a, static_cast<int16_t>(i), std::move(t));
      else saw_host_tensor_ |= t.defined() && t.dim() > 0;
      host.push_back(std::move(t));
    }
    value = std::move(host);
  }
  void optional_list_to_host(const Argument& a, IValue& value) {
    auto list = value.toList();
    c10::List<std::optional<at::Tensor>> host;
    host.reserve(list.size());
    for (size_t i = 0; i < list.size(); i++) {
      IValue element = list.get(i);
      std::optional<at::Tensor> t;
      if (element.isTensor() && element.toTensor().defined()) t = element.toTensor();
      if (t && on_device(*t)) t = move(a, static_cast<int16_t>(i), *t);
      host.push_back(std::move(t));
    }
    value = std::move(host);
  }

  void lend_generator() {
    IValue& value = (*stack_)[base_ + op_.generator];
    value = host_generator(value.isNone() ? std::nullopt : std::optional<at::Generator>(value.toGenerator()), device_);
  }
  void insert_bias_sizes() {
    const auto weight = (*stack_)[base_ + 2].toTensor();
    const bool transposed = (*stack_)[base_ + 6].toBool();
    const int64_t groups = (*stack_)[base_ + 8].toInt();
    std::vector<int64_t> sizes{transposed ? weight.size(1) * groups : weight.size(0)};
    stack_->insert(stack_->begin() + static_cast<int64_t>(base_) + 3, IValue(std::optional<std::vector<int64_t>>(sizes)));
  }

  void write_back(const Moved& m) {
    if (C10_UNLIKELY(!m.host.has_storage())) {
      assign_sparse(m.host, m.device, [this](const at::Tensor& member) { return to_device(member); });
      return;
    }
    if (C10_LIKELY(reachable_)) dipu::write_back(m.host, m.device);
    else copy_back(m.host, m.device);
  }
  static void copy_back(const at::Tensor& host, const at::Tensor& device) {
    auto* from = host.storage().unsafeGetStorageImpl();
    auto* to = device.storage().unsafeGetStorageImpl();
    if (from->nbytes() != to->nbytes()) resize_storage(to, from->nbytes());
    if (from->nbytes() > 0) device_allocator()->copy_data(to->mutable_data(), from->data(), from->nbytes());
    write_back_geometry(host, device);
  }

  at::Tensor to_device(const at::Tensor& t) {
    if (!t.defined() || !t.device().is_cpu()) return t;
    for (auto& m : moved_) if (m.host.defined() && m.host.is_same(t)) return m.device;
    if (C10_UNLIKELY(!t.has_storage())) {
      if (!is_sparse_layout(t)) return t;
      return convert_sparse(t, dipu_device(device_), [this](const at::Tensor& member) { return to_device(member); });
    }
    auto* storage = t.storage().unsafeGetStorageImpl();
    for (auto& m : moved_) if (m.host_storage == storage) return device_view(m.device.storage(), t);
    for (auto& [host, device] : made_) if (host == storage) return device_view(device, t);
    auto result = adopt_host(t, device_);
    made_.emplace_back(storage, result.storage());
    return result;
  }
  void results_to_device() {
    const size_t first = stack_->size() - op_.returns;
    for (size_t i = 0; i < op_.returns; i++) {
      IValue& result = (*stack_)[first + i];
      if (op_.return_of[i] >= 0 && return_argument(op_.return_of[i], result)) continue;
      if (result.isTensor()) {
        if (C10_UNLIKELY(op_.host_returns >> i & 1)) continue;
        result = to_device(result.toTensor());
      } else if (result.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const at::Tensor& t : result.toTensorVector()) list.push_back(to_device(t));
        result = std::move(list);
      }
    }
  }
  bool return_argument(int argument, IValue& result) {
    for (auto& m : moved_) {
      if (m.argument == argument && m.element < 0) {
        result = std::move(m.device);
        return true;
      }
    }
    return false;
  }
};

}  // namespace

void run_on_host(Operator& op, Stack* stack, c10::DispatchKey host_key, bool on_copies) {
  HostCall(op, stack, host_key, on_copies).run();
}

static void look_at(const at::Tensor& t, bool takes_host, Where& found) {
  if (!t.defined()) return;
  if (t.device().type() == kDipu) {
    found.mixed |= found.device >= 0 && found.device != t.device().index();
    found.device = t.device().index();
  } else if (t.dim() == 0) {
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
    if (a.kind == Kind::Tensor && value.isTensor()) look_at(value.toTensor(), op.takes_host_tensors, found);
    if (a.kind == Kind::TensorList && value.isTensorList()) {
      for (const at::Tensor& t : value.toTensorVector()) look_at(t, op.takes_host_tensors, found);
    }
    if (a.kind == Kind::OptionalTensorList && value.isList()) {
      for (const IValue& element : value.toListRef()) if (element.isTensor()) look_at(element.toTensor(), op.takes_host_tensors, found);
    }
    if (a.kind == Kind::Device && value.isDevice() && value.toDevice().type() == kDipu && found.device < 0) {
      found.device = resolve_device(value.toDevice().index());
    }
  }
  return found;
}

static bool run_routes(Operator& op, Stack* stack) {
  for (Route* route : *op.routes.load(std::memory_order_acquire)) {
    std::optional<Span> span;  // what is put together of kernels has none: each of them has its own
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
  if (what & kWatched) return run_callable(op, op.watcher, stack, host_key);
  if (what & kHooked) {
    const Span span(op, *stack);  // what a fault adds is the kernel's too
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

// The device's dispatch keys, and where the host has the kernels for each.
struct KeyPair {
  c10::DispatchKey device, host;
};
constexpr KeyPair kDense{c10::DispatchKey::PrivateUse1, c10::DispatchKey::CPU};
constexpr KeyPair kSparse{c10::DispatchKey::SparsePrivateUse1, c10::DispatchKey::SparseCPU};
constexpr KeyPair kCompressed{c10::DispatchKey::SparseCsrPrivateUse1, c10::DispatchKey::SparseCsrCPU};

// The kernel of one operator, with what is known of it at hand.
struct Kernel final : c10::OperatorKernel {
  Kernel(Operator& op, c10::DispatchKey host_key) : op_(op), host_key_(host_key) {}
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, Stack* stack) {
    run(op_, stack, host_key_);
  }

 private:
  Operator& op_;
  const c10::DispatchKey host_key_;
};

// Operators that came after us (custom operators with a CPU kernel, say).
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

// Every operator that has a kernel on the CPU gets ours, so that composites which would hide it
// (functional overloads, layer norm, …) are not taken and results are the CPU's own.
void register_engine() {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto* keys : {&kDense, &kSparse, &kCompressed}) {
    auto* library = new torch::Library(torch::Library::IMPL, "aten", keys->device, __FILE__, __LINE__);  // for good
    for (const auto& name : dispatcher.getAllOpNames()) {
      if (name.getNamespace() != "aten") continue;
      const auto handle = dispatcher.findSchema(name);
      if (!handle || !handle->hasKernelForDispatchKey(keys->host)) continue;
      if (handle->hasKernelForDispatchKey(keys->device)) continue;  // the device's own
      register_operator(*library, *handle, *keys);
    }
    if (keys != &kDense) continue;
    for (const char* name : {"aten::convolution_overrideable", "aten::convolution_backward_overrideable"}) {
      register_operator(*library, dispatcher.findSchemaOrThrow(name, ""), *keys);
    }
  }
}

std::vector<std::string> known_operators() {
  std::lock_guard<std::mutex> lock(g_operators_mutex);
  std::vector<std::string> names;
  for (auto& [name, op] : operators()) names.push_back(full_name(name));
  return names;
}

// ---- what is set from outside

static void mark(Operator& op, Special what, bool on) {
  if (on) op.special.fetch_or(what);
  else op.special.fetch_and(static_cast<uint8_t>(~what));
}

template <class Change>
static void change_operators(const std::vector<std::string>& names, Change change) {
  const std::set<std::string> wanted(names.begin(), names.end());
  std::lock_guard<std::mutex> lock(g_operators_mutex);
  for (auto& [name, op] : operators()) if (wanted.count(full_name(name)) > 0) change(*op);
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

// What torch itself makes of an operator for a device without a kernel: other operators.
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

// An operator that a composite would have answered on the device becomes one of the engine's; the
// composite stays its last route.
Operator& take_operator(const std::string& name) {
  static auto* library = new torch::Library(torch::Library::IMPL, "aten", kDense.device, __FILE__, __LINE__);  // for good
  const auto dot = name.find('.');
  const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(
      name.substr(0, dot).c_str(), dot == std::string::npos ? "" : name.substr(dot + 1).c_str());
  auto& op = operator_of(handle);
  if (handle.hasKernelForDispatchKey(kDense.device)) return op;
  if (!handle.hasKernelForDispatchKey(kDense.host)) op.composite = make_composite_route(handle);
  register_operator(*library, handle, kDense);
  return op;
}

void store_routes(Operator& op, Routes routes) {
  if (op.composite != nullptr) routes.push_back(op.composite);
  op.routes.store(new Routes(std::move(routes)), std::memory_order_release);  // for good: a call may be reading the last one
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
