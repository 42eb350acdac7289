// What op_tools asks of torch for its own ends: nobody sees it.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

namespace op_tools {

// Below autograd, the program's modes and whoever watches kernels.
struct Unseen {
  at::AutoDispatchBelowADInplaceOrView below;
  c10::impl::ExcludeDispatchKeyGuard modes{c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot})};
  at::DisableRecordFunctionGuard unwatched;
};

inline at::Tensor over(const c10::Storage& storage, c10::DispatchKeySet keys, caffe2::TypeMeta type, int64_t offset,
                       at::IntArrayRef sizes, at::IntArrayRef strides) {
  auto made = c10::make_intrusive<at::TensorImpl>(c10::Storage(storage), keys, type);
  made->set_sizes_and_strides(sizes, strides, offset);
  return at::Tensor(std::move(made));
}

inline c10::DispatchKeySet keys_of(c10::Device device, c10::ScalarType type) {
  return c10::DispatchKeySet(at::TensorOptions().device(device).dtype(type).computeDispatchKey());
}

}  // namespace op_tools
