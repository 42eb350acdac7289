// Operators that the layer meets without boxes: layers of networks and their gradients.
#include "typed.h"

#include <ATen/ops/_fused_rms_norm_ops.h>
#include <ATen/ops/_fused_rms_norm_backward_ops.h>
#include <ATen/ops/_log_softmax_ops.h>
#include <ATen/ops/_log_softmax_backward_data_ops.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_ops.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward_ops.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_ops.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward_ops.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_ops.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward_ops.h>
#include <ATen/ops/_softmax_ops.h>
#include <ATen/ops/_softmax_backward_data_ops.h>
#include <ATen/ops/convolution_ops.h>
#include <ATen/ops/convolution_backward_ops.h>
#include <ATen/ops/cudnn_batch_norm_ops.h>
#include <ATen/ops/cudnn_batch_norm_backward_ops.h>
#include <ATen/ops/gelu_ops.h>
#include <ATen/ops/gelu_backward_ops.h>
#include <ATen/ops/max_pool2d_with_indices_ops.h>
#include <ATen/ops/max_pool2d_with_indices_backward_ops.h>
#include <ATen/ops/native_batch_norm_ops.h>
#include <ATen/ops/native_batch_norm_backward_ops.h>
#include <ATen/ops/native_dropout_ops.h>
#include <ATen/ops/native_dropout_backward_ops.h>
#include <ATen/ops/native_group_norm_ops.h>
#include <ATen/ops/native_group_norm_backward_ops.h>
#include <ATen/ops/native_layer_norm_ops.h>
#include <ATen/ops/native_layer_norm_backward_ops.h>
#include <ATen/ops/nll_loss_backward_ops.h>
#include <ATen/ops/nll_loss_forward_ops.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/silu_ops.h>
#include <ATen/ops/silu_backward_ops.h>
#include <ATen/ops/threshold_backward_ops.h>

namespace op_tools {
namespace {

namespace of = at::_ops;

void meet_all(torch::Library& m) {
  meet<of::native_layer_norm, of::native_layer_norm_backward, of::native_batch_norm, of::native_batch_norm_backward,
       of::cudnn_batch_norm, of::cudnn_batch_norm_backward, of::convolution, of::convolution_backward,
       of::max_pool2d_with_indices, of::max_pool2d_with_indices_backward, of::_softmax, of::_softmax_backward_data,
       of::_log_softmax, of::_log_softmax_backward_data, of::gelu, of::gelu_backward, of::relu, of::relu_,
       of::threshold_backward, of::silu, of::silu_backward, of::native_dropout, of::native_dropout_backward,
       of::nll_loss_forward, of::nll_loss_backward, of::_scaled_dot_product_flash_attention,
       of::_scaled_dot_product_flash_attention_backward, of::_scaled_dot_product_efficient_attention,
       of::_scaled_dot_product_efficient_attention_backward, of::_scaled_dot_product_cudnn_attention,
       of::_scaled_dot_product_cudnn_attention_backward, of::_fused_rms_norm, of::_fused_rms_norm_backward,
       of::native_group_norm, of::native_group_norm_backward>(m);
}

}  // namespace
}  // namespace op_tools

TORCH_LIBRARY_IMPL(aten, Fake, m) { op_tools::meet_all(m); }
