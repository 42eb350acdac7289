// SPDX-License-Identifier: Apache-2.0
// The device's own operators: allocation, views, storage, copies, and reading one value.
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/TensorUtils.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/Resize.h>
#include <ATen/native/ResizeCommon.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/fill.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "graphs/capture.h"
#include "profiler/span.h"

namespace dipu {

using at::Tensor;
using c10::IntArrayRef;

// ---- allocation

static int wanted_device(const std::optional<at::Device>& device) {
  return resolve_device(device.has_value() ? device->index() : -1);
}
static std::atomic<int> g_refused{-1};  // a dtype that this chip does not support
void refuse_dtype(std::optional<at::ScalarType> dtype) {
  g_refused = dtype ? static_cast<int>(*dtype) : -1;
}
bool is_refused(at::ScalarType dtype) {
  return static_cast<int>(dtype) == g_refused.load(std::memory_order_relaxed);
}
static void check_factory(
    const std::optional<at::ScalarType>& dtype, const std::optional<at::Layout>& layout, const std::optional<bool>& pin) {
  const auto type = c10::dtype_or_default(dtype);
  TORCH_CHECK(
      C10_LIKELY(!is_refused(type)), "DIPU: ", type,
      " tensors are not supported by this device");
  TORCH_CHECK(!pin.value_or(false), "Only dense CPU tensors can be pinned");
  TORCH_CHECK(layout.value_or(at::kStrided) == at::kStrided, "DIPU: only strided tensors are allocated here");
}
static bool fills_new_memory() {
  auto& context = at::globalContext();
  return C10_UNLIKELY(context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory());
}
static Tensor fill_if_deterministic(Tensor t) {
  return fills_new_memory() ? at::native::fill_empty_deterministic_(t) : t;
}

static Tensor empty(
    IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
    std::optional<at::Device> device, std::optional<bool> pin, std::optional<at::MemoryFormat> format) {
  check_factory(dtype, layout, pin);
  c10::DeviceGuard guard(dipu_device(wanted_device(device)));
  constexpr c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return fill_if_deterministic(
      at::detail::empty_generic(size, device_allocator(), keys, c10::dtype_or_default(dtype), format));
}
static Tensor empty_strided(
    IntArrayRef size, IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
    std::optional<at::Device> device, std::optional<bool> pin) {
  check_factory(dtype, layout, pin);
  c10::DeviceGuard guard(dipu_device(wanted_device(device)));
  constexpr c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return fill_if_deterministic(
      at::detail::empty_strided_generic(size, stride, device_allocator(), keys, c10::dtype_or_default(dtype)));
}

// ---- views and storage

static Tensor as_strided(const Tensor& self, IntArrayRef size, IntArrayRef stride, std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}
static Tensor view(const Tensor& self, IntArrayRef size) {
  return at::native::view(self, size);
}
static Tensor reshape_alias(const Tensor& self, IntArrayRef size, IntArrayRef stride) {
  return at::native::_reshape_alias(self, size, stride);
}
static void grow_storage(const Tensor& t) {
  auto* impl = t.unsafeGetTensorImpl();
  const size_t needed = at::detail::computeStorageNbytes(
      impl->sizes(), impl->strides(), impl->dtype().itemsize(), impl->storage_offset());
  if (impl->numel() > 0 && needed > impl->unsafe_storage().nbytes()) {
    resize_storage(impl->unsafe_storage().unsafeGetStorageImpl(), needed);
  }
}
static Tensor& set_storage(Tensor& self, at::Storage source, int64_t offset, IntArrayRef size, IntArrayRef stride) {
  at::native::checkSetStorage(self, source, offset, size, stride);
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_offset(offset);
  if (stride.empty() && !size.empty()) impl->set_sizes_contiguous(size);
  else impl->set_sizes_and_strides(size, stride);
  grow_storage(self);
  return self;
}
static Tensor& set_empty(Tensor& self) {
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), 0, c10::DataPtr(nullptr, self.device()), device_allocator(), true);
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(c10::Storage(std::move(storage)));
  impl->set_storage_offset(0);
  impl->set_sizes_contiguous({0});
  return self;
}
static const Tensor& resize(const Tensor& self, IntArrayRef size, std::optional<at::MemoryFormat> format) {
  auto* impl = self.unsafeGetTensorImpl();
  const auto bytes_before = static_cast<int64_t>(impl->unsafe_storage().nbytes());
  if (!impl->sizes().equals(size)) {
    impl->set_sizes_contiguous(size);
    grow_storage(self);
  }
  if (format.has_value()) {
    TORCH_CHECK(*format != at::MemoryFormat::Preserve, "Unsupported memory format ", *format);
    impl->empty_tensor_restride(*format);
  }
  if (fills_new_memory()) at::native::fill_resize_deterministic_(self, bytes_before);
  return self;
}
static void record_stream(Tensor& self, c10::Stream stream) {
  TORCH_CHECK(stream.device_type() == kDipu, "record_stream: expected a DIPU stream, found ", stream.device_type());
  device_allocator()->recordStream(self.storage().data_ptr(), stream);
}
// Lets Module.to() put the new bytes into the same Parameter, as between CPU and CUDA: otherwise
// the optimizer would keep updating the old ones.
static bool has_compatible_shallow_copy_type(const Tensor& self, const Tensor& from) {
  const auto dense = [](const Tensor& t) {
    return t.layout() == at::kStrided && t.has_storage() && (t.is_cpu() || t.device().type() == kDipu) &&
        !t.unsafeGetTensorImpl()->is_python_dispatch();
  };
  return (dense(self) && dense(from)) || self.unsafeGetTensorImpl()->has_compatible_shallow_copy_type(from.key_set());
}

// ---- copies

static c10::Stream current_stream_on(int device) {
  return c10::Stream(c10::Stream::UNSAFE, dipu_device(device), reinterpret_cast<c10::StreamId>(current_stream(device)));
}
static void synchronize_current(int device) {
  check(runtime().stream_synchronize(device, current_stream(device)), "stream_synchronize");
}
// Returns a host tensor with the device tensor's bytes: an alias where the host can reach them.
static Tensor readable_on_host(const Tensor& t) {
  if (!on_device(t)) return t;
  if (host_reachable(t.device().index())) return alias_host(t);
  auto* storage = t.storage().unsafeGetStorageImpl();
  auto bytes = at::detail::empty_cpu({static_cast<int64_t>(storage->nbytes())}, at::kByte);
  device_allocator()->copy_data(bytes.data_ptr(), storage->data(), storage->nbytes());
  return host_view(bytes.storage(), t);
}
static bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes().equals(b.sizes()) && a.strides().equals(b.strides()) &&
      a.is_non_overlapping_and_dense() && a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

static void record_copy(const CapturePtr& capture, const Tensor& src, const Tensor& dst, bool non_blocking) {
  for (const Tensor* host : {&src, &dst}) {
    TORCH_CHECK(
        on_device(*host) || (non_blocking && is_pinned(host->const_data_ptr())), "DIPU: a copy between the device and ",
        "host memory that is not pinned, or that blocks, is not permitted while a graph captures the stream. ",
        "Hint: copy it before the capture, or use pin_memory() and non_blocking=True");
  }
  note_read(capture, src, "copy_");
  note_written(capture, dst, "copy_");
  {
    const CapturePause pause;
    copy_tensor(src, dst, non_blocking);
  }
  const auto held = [](const Tensor& t) { return on_device(t) ? unowned(t) : t; };
  record_run(capture, "copy_", [source = held(src), target = held(dst), non_blocking] { copy_tensor(source, target, non_blocking); });
}

void copy_tensor(const Tensor& src, const Tensor& dst, bool non_blocking) {
  if (dst.numel() == 0) return;
  const int from = on_device(src) ? src.device().index() : DIPU_HOST;
  const int to = on_device(dst) ? dst.device().index() : DIPU_HOST;
  const int owner = to >= 0 ? to : from;
  const bool crosses = from != to;
  if (const auto capture = recording(owner)) return record_copy(capture, src, dst, non_blocking);
  if ((crosses || !host_reachable(owner)) && same_bytes(src, dst)) {
    // a copy of pageable memory always blocks, as on CUDA
    const Tensor& host = from < 0 ? src : dst;
    const bool late = non_blocking && (from >= 0 && to >= 0 ? true : is_pinned(host.const_data_ptr()));
    DipuCopy copy{dst.mutable_data_ptr(), src.const_data_ptr(), dst.nbytes(), to, from, owner, late ? 0 : 1, current_stream(owner)};
    const Span span(copy);
    check(runtime().memory_copy(&copy), "memory_copy");
    if (late && (from < 0 || to < 0)) {
      pinned_allocator()->record_event(const_cast<void*>(host.const_data_ptr()), nullptr, current_stream_on(owner));
    }
    return;
  }
  if (crosses) synchronize_current(owner);
  Tensor target = readable_on_host(dst);
  target.copy_(readable_on_host(src));
  if (to >= 0 && !host_reachable(to)) {
    device_allocator()->copy_data(dst.storage().mutable_data(), target.storage().data(), dst.storage().nbytes());
  }
}

static Tensor copy_from(const Tensor& src, const Tensor& dst, bool non_blocking) {
  copy_tensor(src, dst, non_blocking);
  return dst;
}
static Tensor copy_from_and_resize(const Tensor& src, const Tensor& dst) {
  dst.resize_(src.sizes());
  copy_tensor(src, dst, false);
  return dst;
}
static at::Scalar local_scalar_dense(const Tensor& self) {
  TORCH_CHECK(self.numel() > 0, "_local_scalar_dense: Empty tensor not supported");
  refuse_in_capture(self.device().index(), current_stream(self.device().index()), ".item()");
  synchronize_current(self.device().index());
  return readable_on_host(self).item();
}

// ---- attention: the CPU's choice of the algorithm, so that results are the CPU's own

static int64_t sdp_choice(
    const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& mask, double dropout,
    bool causal, std::optional<double> scale, bool gqa) {
  // depends on shapes alone: uses tensors without bytes, which no mode (of torch.compile) sees
  const c10::impl::ExcludeDispatchKeyGuard unseen(c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
  const auto host = [](const Tensor& t) {
    const Tensor layout = at::from_blob(
        nullptr, C10_AS_INTARRAYREF_SLOW_ALLOC(t.sym_sizes()), C10_AS_INTARRAYREF_SLOW_ALLOC(t.sym_strides()),
        t.options().device(at::kCPU));
    return t.requires_grad() ? layout.set_requires_grad(true) : layout;
  };
  const std::optional<Tensor> host_mask = mask.has_value() && mask->defined() ? std::optional<Tensor>(host(*mask)) : std::nullopt;
  return at::_fused_sdp_choice(host(query), host(key), host(value), host_mask, dropout, causal, scale, gqa);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", as_strided);
  m.impl("view", view);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("set_.source_Tensor", at::native::set_tensor_);
  m.impl("set_.source_Storage", TORCH_FN(at::native::set_));
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("set_", set_empty);
  m.impl("resize_", resize);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar_dense);
  m.impl("record_stream", record_stream);
  m.impl("_has_compatible_shallow_copy_type", has_compatible_shallow_copy_type);
}
// copies handle the lazy bits; without this the math-bit fallbacks recurse through clone()
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

}  // namespace dipu

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &dipu::sdp_choice)
}  // namespace at::native
