// Operators that the layer meets without boxes: views of memory, new memory and copies.
#include "typed.h"

#include <ATen/ops/_local_scalar_dense_ops.h>
#include <ATen/ops/_reshape_alias_ops.h>
#include <ATen/ops/_to_copy_ops.h>
#include <ATen/ops/_unsafe_view_ops.h>
#include <ATen/ops/alias_ops.h>
#include <ATen/ops/as_strided_ops.h>
#include <ATen/ops/clone_ops.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/detach_ops.h>
#include <ATen/ops/empty_ops.h>
#include <ATen/ops/empty_like_ops.h>
#include <ATen/ops/empty_strided_ops.h>
#include <ATen/ops/expand_ops.h>
#include <ATen/ops/fill_ops.h>
#include <ATen/ops/full_like_ops.h>
#include <ATen/ops/lift_fresh_ops.h>
#include <ATen/ops/ones_like_ops.h>
#include <ATen/ops/permute_ops.h>
#include <ATen/ops/select_ops.h>
#include <ATen/ops/slice_ops.h>
#include <ATen/ops/split_ops.h>
#include <ATen/ops/split_with_sizes_ops.h>
#include <ATen/ops/squeeze_ops.h>
#include <ATen/ops/t_ops.h>
#include <ATen/ops/transpose_ops.h>
#include <ATen/ops/unbind_ops.h>
#include <ATen/ops/unsqueeze_ops.h>
#include <ATen/ops/view_ops.h>
#include <ATen/ops/zero_ops.h>
#include <ATen/ops/zeros_like_ops.h>

namespace op_tools {
namespace {

namespace of = at::_ops;

void meet_all(torch::Library& m) {
  meet<of::view, of::_unsafe_view, of::t, of::transpose_int, of::expand, of::permute, of::as_strided, of::unsqueeze,
       of::squeeze, of::squeeze_dim, of::select_int, of::slice_Tensor, of::detach, of::alias, of::_reshape_alias,
       of::unbind_int, of::split_Tensor, of::split_with_sizes, of::empty_memory_format, of::empty_like,
       of::empty_strided, of::zeros_like, of::ones_like, of::full_like, of::fill__Scalar, of::zero_, of::copy_,
       of::clone, of::_to_copy, of::_local_scalar_dense, of::lift_fresh>(m);
}

}  // namespace
}  // namespace op_tools

TORCH_LIBRARY_IMPL(aten, Fake, m) { op_tools::meet_all(m); }
