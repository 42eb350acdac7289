// SPDX-License-Identifier: Apache-2.0
// Aliases: a device tensor and a host tensor on the same bytes, without a copy.
#include <c10/core/CPUAllocator.h>

#include "runtime/core.h"

namespace dipu {

void copy_geometry(const at::Tensor& from, c10::TensorImpl* to) {
  auto* source = from.unsafeGetTensorImpl();
  to->set_sizes_and_strides(source->sizes(), source->strides(), source->storage_offset());
}

// Gives `result` the geometry and the lazy bits of `like`.
static at::Tensor dress(at::Tensor result, const at::Tensor& like) {
  auto* source = like.unsafeGetTensorImpl();
  auto* impl = result.unsafeGetTensorImpl();
  copy_geometry(like, impl);
  if (C10_UNLIKELY(source->is_wrapped_number())) impl->set_wrapped_number(true);
  constexpr c10::DispatchKeySet lazy_bits({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});
  if (C10_UNLIKELY(source->key_set().has_any(lazy_bits))) {
    impl->_set_conj(like.is_conj());
    impl->_set_neg(like.is_neg());
  }
  return result;
}

static c10::Storage host_storage_of(const at::Tensor& t) {
  return c10::Storage(host_storage(t.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()));
}

at::Tensor host_view(c10::Storage storage, const at::Tensor& like) {
  return dress(
      at::detail::make_tensor<c10::TensorImpl>(
          std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), like.unsafeGetTensorImpl()->dtype()),
      like);
}

at::Tensor alias_host(const at::Tensor& t) {
  return host_view(host_storage_of(t), t);
}

at::Tensor alias_for_kernel(const at::Tensor& t) {  // hot path
  // no keys but CPU: no version counter to allocate, no autocast inside the kernel
  return dress(
      at::detail::make_tensor<c10::TensorImpl>(
          c10::TensorImpl::VIEW, host_storage_of(t), c10::DispatchKeySet(c10::DispatchKey::CPU), t.unsafeGetTensorImpl()->dtype()),
      t);
}

at::Tensor device_view(c10::Storage storage, const at::Tensor& like) {
  return dress(
      at::detail::make_tensor<c10::TensorImpl>(
          std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), like.unsafeGetTensorImpl()->dtype()),
      like);
}

at::Tensor adopt_host(const at::Tensor& host, int device) {
  auto* storage = host.storage().unsafeGetStorageImpl();
  const size_t bytes = storage->nbytes();
  c10::DataPtr data;
  // one reference: no other tensor can read or write the bytes later
  if (host.storage().use_count() == 1) data = adopt_redirected(storage);
  if (data.get() == nullptr) {
    data = allocate(bytes, device);
    if (bytes > 0) {
      if (storage->data() != nullptr) device_allocator()->copy_data(data.get(), storage->data(), bytes);
      // a zero tensor without memory
      else device_allocator()->copy_data(data.get(), std::vector<char>(bytes, 0).data(), bytes);
    }
  }
  auto adopted = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, std::move(data), device_allocator(), /*resizable=*/true);
  return device_view(c10::Storage(std::move(adopted)), host);
}

void write_back_geometry(const at::Tensor& host, const at::Tensor& device) {
  auto* from = host.unsafeGetTensorImpl();
  auto* to = device.unsafeGetTensorImpl();
  if (C10_UNLIKELY(
          !to->sizes().equals(from->sizes()) || !to->strides().equals(from->strides()) ||
          to->storage_offset() != from->storage_offset())) {
    copy_geometry(host, to);
  }
  if (C10_UNLIKELY(host.is_conj() != device.is_conj())) to->_set_conj(host.is_conj());
  if (C10_UNLIKELY(host.is_neg() != device.is_neg())) to->_set_neg(host.is_neg());
}

void write_back_storage(c10::StorageImpl* from, c10::StorageImpl* to) {  // hot path
  const void* expected = to->data() == nullptr ? nullptr : to_host(to->data());
  if (C10_LIKELY(from->data() == expected)) return;
  const size_t bytes = from->nbytes();
  auto data = adopt_redirected(from);
  if (data.get() == nullptr) {
    data = allocate(bytes, to->device().index());
    if (bytes > 0) device_allocator()->copy_data(data.get(), from->data(), bytes);
  }
  to->set_data_ptr_noswap(std::move(data));
  to->set_nbytes(bytes);
}

void write_back(const at::Tensor& host, const at::Tensor& device) {  // hot path
  write_back_storage(
      host.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl(),
      device.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
  write_back_geometry(host, device);
}

}  // namespace dipu
