// SPDX-License-Identifier: Apache-2.0
// One call on the host: device tensors become host tensors on the same bytes, the host kernel runs,
// and its results are in device memory already. Memory that the host cannot reach is copied.
#include <c10/core/CPUAllocator.h>

#include <optional>

#include "engine/engine.h"
#include "engine/sparse.h"
#include "profiler/span.h"

namespace dipu {

using c10::IValue;
using torch::jit::Stack;

namespace {

struct Moved {
  uint16_t argument;
  int16_t element;  // index in a list, else -1
  at::Tensor device;
  at::Tensor host;  // set only for written arguments: the others are not needed after the call
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
  std::optional<HostEngine> numbers_;  // set for an operator with a generator argument
  c10::SmallVector<Moved, 6> moved_;
  c10::SmallVector<std::pair<c10::StorageImpl*, c10::Storage>, 2> copied_;  // device storage -> its host copy
  c10::SmallVector<std::pair<c10::StorageImpl*, c10::Storage>, 2> members_;  // host storage of a sparse argument's member -> device storage
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
        members_.emplace_back(host.storage().unsafeGetStorageImpl(), member.storage());
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
  // Returns the host tensor of an earlier argument that is this same tensor, as in mul(x, y, out=x):
  // torch's kernels refuse to resize a result that they read.
  at::Tensor host_of_same(const at::Tensor& t) const {
    for (const auto& m : moved_) {
      if (C10_LIKELY(!m.device.is_same(t))) continue;
      const IValue& value = (*stack_)[base_ + m.argument];
      if (m.element < 0) return value.toTensor();
      if (value.isTensorList()) return value.toTensorList().get(m.element);
    }
    return {};
  }
  at::Tensor move(const Argument& a, int16_t element, at::Tensor t) {
    at::Tensor host;
    if (a.write && element < 0) host = host_of_same(t);
    if (!host.defined()) host = host_of(t);
    // sparse kernels save intermediate results only if a gradient is required
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
    else saw_host_tensor_ |= a.write || t.dim() > 0;  // a number may be read, never written
  }
  void list_to_host(const Argument& a, IValue& value) {
    auto list = value.toTensorList();
    c10::List<at::Tensor> host;
    host.reserve(list.size());
    for (size_t i = 0; i < list.size(); i++) {
      at::Tensor t = list.get(i);
      if (on_device(t)) t = move(a, static_cast<int16_t>(i), std::move(t));
      else saw_host_tensor_ |= t.defined() && (a.write || t.dim() > 0);
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
    numbers_.emplace(value.isNone() ? std::nullopt : std::optional<at::Generator>(value.toGenerator()), device_);
    value = numbers_->engine();
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
  // A kernel may resize a member of a sparse argument: its host storage then has other memory.
  void write_back_member(c10::StorageImpl* host, c10::StorageImpl* device) {
    if (reachable_) write_back_storage(host, device);
    else copy_back_storage(host, device);
  }
  static void copy_back(const at::Tensor& host, const at::Tensor& device) {
    copy_back_storage(host.storage().unsafeGetStorageImpl(), device.storage().unsafeGetStorageImpl());
    write_back_geometry(host, device);
  }
  static void copy_back_storage(const c10::StorageImpl* from, c10::StorageImpl* to) {
    if (from->nbytes() != to->nbytes()) resize_storage(to, from->nbytes());
    if (from->nbytes() > 0) device_allocator()->copy_data(to->mutable_data(), from->data(), from->nbytes());
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
    for (auto& [host, device] : members_) {
      if (host != storage) continue;
      write_back_member(host, device.unsafeGetStorageImpl());
      return device_view(device, t);
    }
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

}  // namespace dipu
