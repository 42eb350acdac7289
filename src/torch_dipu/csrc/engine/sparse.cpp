// SPDX-License-Identifier: Apache-2.0
// Sparse tensors: their members are dense tensors, which are moved between device and host one by one.
#include "engine/sparse.h"

#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/native/SparseTensorUtils.h>
#include <torch/library.h>

namespace dipu {

using at::Tensor;

static at::SparseTensorImpl* coo(const Tensor& t) {
  return at::sparse::get_sparse_impl(t);
}
static at::SparseCsrTensorImpl* compressed(const Tensor& t) {
  return at::sparse_csr::get_sparse_csr_impl(t);
}

void assign_sparse(const Tensor& from, const Tensor& to, const Convert& convert) {
  if (from.layout() == at::kSparse) {
    coo(to)->raw_resize_(coo(from)->sparse_dim(), coo(from)->dense_dim(), from.sizes());
    coo(to)->set_indices_and_values_unsafe(convert(coo(from)->indices()), convert(coo(from)->values()));
    coo(to)->set_coalesced(coo(from)->coalesced());
  } else {
    auto* source = compressed(from);
    compressed(to)->set_layout(from.layout());
    compressed(to)->set_member_tensors(
        convert(source->compressed_indices()), convert(source->plain_indices()), convert(source->values()), from.sizes());
  }
}

Tensor convert_sparse(const Tensor& from, c10::Device device, const Convert& convert) {
  const bool on_host = device.is_cpu();
  Tensor result;
  if (from.layout() == at::kSparse) {
    const auto key = on_host ? c10::DispatchKey::SparseCPU : c10::DispatchKey::SparsePrivateUse1;
    result = at::detail::make_tensor<at::SparseTensorImpl>(c10::DispatchKeySet(key), from.dtype());
  } else {
    const auto key = on_host ? c10::DispatchKey::SparseCsrCPU : c10::DispatchKey::SparseCsrPrivateUse1;
    result = at::detail::make_tensor<at::SparseCsrTensorImpl>(c10::DispatchKeySet(key), device, from.layout(), from.dtype());
  }
  assign_sparse(from, result, convert);
  return result;
}

bool is_sparse_layout(const Tensor& t) {
  return t.layout() != at::kStrided && t.layout() != at::kMkldnn && t.layout() != at::kJagged;
}

// Copies the members: host memory must never back a device tensor, nor the reverse.
static Tensor& copy_sparse(Tensor& self, const Tensor& src, bool non_blocking) {
  TORCH_CHECK(
      self.layout() == src.layout(), "copy_ between ", self.layout(), " and ", src.layout(), " tensors is not supported on DIPU");
  if (self.is_same(src)) return self;
  assign_sparse(src, self, [&](const Tensor& member) {
    const auto dtype = member.scalar_type() == src.scalar_type() ? self.scalar_type() : member.scalar_type();
    return member.to(self.device(), dtype, non_blocking, /*copy=*/true);
  });
  return self;
}

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  m.impl("copy_", copy_sparse);
}
TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  m.impl("copy_", copy_sparse);
}

}  // namespace dipu
