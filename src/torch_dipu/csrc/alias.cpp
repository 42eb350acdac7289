// Device tensor <-> host tensor on the same bytes, without a copy.
#include <c10/core/CPUAllocator.h>

#include "core.h"

namespace dipu {

void copy_geometry(const at::Tensor& from, c10::TensorImpl* to) {
  auto* source = from.unsafeGetTensorImpl();
  to->set_storage_offset(source->storage_offset());
  to->set_sizes_and_strides(source->sizes(), source->strides());
}

static at::Tensor on_storage(c10::Storage storage, c10::DispatchKey key, const at::Tensor& like) {
  auto* source = like.unsafeGetTensorImpl();
  auto result = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), source->dtype());
  auto* impl = result.unsafeGetTensorImpl();
  copy_geometry(like, impl);
  if (C10_UNLIKELY(source->is_wrapped_number())) impl->set_wrapped_number(true);
  if (C10_UNLIKELY(like.is_conj())) impl->_set_conj(true);
  if (C10_UNLIKELY(like.is_neg())) impl->_set_neg(true);
  return result;
}

at::Tensor alias_host(const at::Tensor& t) {  // hot path
  auto* storage = t.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  return on_storage(c10::Storage(host_storage(storage)), c10::DispatchKey::CPU, t);
}

at::Tensor device_view(c10::Storage storage, const at::Tensor& like) {
  return on_storage(std::move(storage), c10::DispatchKey::PrivateUse1, like);
}

at::Tensor adopt_host(const at::Tensor& host, int device) {
  auto* storage = host.storage().unsafeGetStorageImpl();
  const size_t bytes = storage->nbytes();
  c10::DataPtr data;
  // one reference: nobody but this tensor (and us, holding no other) can see the bytes later
  if (host.storage().use_count() == 1) data = adopt_redirected(storage);
  if (data.get() == nullptr) {
    data = allocate(bytes, device);
    if (bytes > 0) {
      if (storage->data() != nullptr) device_allocator()->copy_data(data.get(), storage->data(), bytes);
      else device_allocator()->copy_data(data.get(), std::vector<char>(bytes, 0).data(), bytes);  // a zero tensor without bytes
    }
  }
  auto adopted = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, std::move(data), device_allocator(), /*resizable=*/true);
  return device_view(c10::Storage(std::move(adopted)), host);
}

}  // namespace dipu
