// Operators that the layer meets without boxes: arithmetic, products, sums and indices.
#include "typed.h"

#include <ATen/ops/add_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/argmax_ops.h>
#include <ATen/ops/baddbmm_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/cat_ops.h>
#include <ATen/ops/cos_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/embedding_ops.h>
#include <ATen/ops/embedding_dense_backward_ops.h>
#include <ATen/ops/eq_ops.h>
#include <ATen/ops/exp_ops.h>
#include <ATen/ops/gather_ops.h>
#include <ATen/ops/ge_ops.h>
#include <ATen/ops/gt_ops.h>
#include <ATen/ops/index_ops.h>
#include <ATen/ops/index_put_ops.h>
#include <ATen/ops/linalg_vector_norm_ops.h>
#include <ATen/ops/lt_ops.h>
#include <ATen/ops/masked_fill_ops.h>
#include <ATen/ops/mean_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/neg_ops.h>
#include <ATen/ops/pow_ops.h>
#include <ATen/ops/reciprocal_ops.h>
#include <ATen/ops/rsqrt_ops.h>
#include <ATen/ops/sigmoid_ops.h>
#include <ATen/ops/sin_ops.h>
#include <ATen/ops/stack_ops.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/sum_ops.h>
#include <ATen/ops/tanh_ops.h>
#include <ATen/ops/where_ops.h>

namespace op_tools {
namespace {

namespace of = at::_ops;

void meet_all(torch::Library& m) {
  meet<of::add_Tensor, of::add__Tensor, of::sub_Tensor, of::sub__Tensor, of::mul_Tensor, of::mul__Tensor,
       of::mul_Scalar, of::div_Tensor, of::div__Tensor, of::div_Scalar, of::neg, of::reciprocal, of::rsqrt, of::exp,
       of::pow_Tensor_Scalar, of::cos, of::sin, of::sigmoid, of::tanh, of::mm, of::addmm, of::bmm, of::baddbmm,
       of::sum, of::sum_dim_IntList, of::mean, of::mean_dim, of::linalg_vector_norm, of::masked_fill_Scalar,
       of::where_self, of::eq_Scalar, of::gt_Scalar, of::cat, of::stack, of::index_Tensor, of::gather, of::embedding,
       of::embedding_dense_backward, of::index_put_, of::argmax, of::lt_Scalar, of::ge_Scalar>(m);
}

}  // namespace
}  // namespace op_tools

TORCH_LIBRARY_IMPL(aten, Fake, m) { op_tools::meet_all(m); }
