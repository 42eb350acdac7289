// Operators that the layer meets without boxes: what optimizers call on lists of tensors.
#include "typed.h"

#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale_ops.h>
#include <ATen/ops/_amp_update_scale_ops.h>
#include <ATen/ops/_foreach_add_ops.h>
#include <ATen/ops/_foreach_addcdiv_ops.h>
#include <ATen/ops/_foreach_addcmul_ops.h>
#include <ATen/ops/_foreach_div_ops.h>
#include <ATen/ops/_foreach_lerp_ops.h>
#include <ATen/ops/_foreach_maximum_ops.h>
#include <ATen/ops/_foreach_mul_ops.h>
#include <ATen/ops/_foreach_norm_ops.h>
#include <ATen/ops/_foreach_sqrt_ops.h>
#include <ATen/ops/_fused_adam_ops.h>
#include <ATen/ops/_fused_adamw_ops.h>

namespace op_tools {
namespace {

namespace of = at::_ops;

void meet_all(torch::Library& m) {
  meet<of::_foreach_add__Scalar, of::_foreach_add__List, of::_foreach_add__Tensor, of::_foreach_add_Scalar,
       of::_foreach_mul__Scalar, of::_foreach_mul__List, of::_foreach_mul__Tensor, of::_foreach_div__Scalar,
       of::_foreach_div__ScalarList, of::_foreach_lerp__Scalar, of::_foreach_addcmul__Scalar,
       of::_foreach_addcdiv__Scalar, of::_foreach_addcdiv__ScalarList, of::_foreach_sqrt, of::_foreach_norm_Scalar,
       of::_fused_adam_, of::_fused_adamw_, of::_amp_foreach_non_finite_check_and_unscale_, of::_amp_update_scale_,
       of::_foreach_add_List, of::_foreach_mul_Scalar, of::_foreach_div__List, of::_foreach_maximum__List>(m);
}

}  // namespace
}  // namespace op_tools

TORCH_LIBRARY_IMPL(aten, Fake, m) { op_tools::meet_all(m); }
