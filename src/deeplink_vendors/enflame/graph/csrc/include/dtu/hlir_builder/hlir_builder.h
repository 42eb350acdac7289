/* SPDX-License-Identifier: Apache-2.0 */
// The part of TopsGraph's builder interface that topsgraph's sources use: declarations only, against
// which a compiler checks them. hlir_sim.cpp defines them as a recorder; the SDK has its own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#pragma GCC visibility push(default)

namespace builder {

class Op;
class Type;
using Ints = std::vector<int64_t>;

class Builder : public std::enable_shared_from_this<Builder> {
 public:
  Builder();
  Op CreateInput(const Type& type, const std::string& func_name = "main");
  void SetOutput(const std::vector<Op>& outputs, const std::string& func_name = "main");
  void SetShapeInference(bool enable_flag);
  std::string GetModuleStr(uint32_t flags = 0);

  class Impl;
  std::shared_ptr<Impl> GetImpl() const;

 private:
  std::shared_ptr<Impl> impl_;
};

class PrimitiveType {
 public:
  static PrimitiveType NONE();
  static PrimitiveType PRED();
  static PrimitiveType S8();
  static PrimitiveType S16();
  static PrimitiveType S32();
  static PrimitiveType S64();
  static PrimitiveType F16();
  static PrimitiveType BF16();
  static PrimitiveType F32();
  static PrimitiveType F64();

  class Impl;
  explicit PrimitiveType(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> GetImpl() const;

 private:
  std::shared_ptr<Impl> impl_;
};

class Type {
 public:
  explicit Type(PrimitiveType primitive_type = PrimitiveType::NONE());
  Type(const Ints& shape, const PrimitiveType& primitive_type);
  Type(const std::vector<Ints>& shapes, const std::vector<PrimitiveType>& primitive_types);

  class Impl;
  std::shared_ptr<Impl> GetImpl() const;

 private:
  std::shared_ptr<Impl> impl_;
};

class Op {
 public:
  class Impl;
  Op() = default;
  Op(std::shared_ptr<Builder> builder, std::shared_ptr<Impl> impl);
  std::shared_ptr<Builder> GetBuilder() const;
  std::shared_ptr<Impl> GetImpl() const;

 private:
  std::shared_ptr<Builder> builder_ = nullptr;
  std::shared_ptr<Impl> impl_ = nullptr;
};

class DotDimensionNumbers {
 public:
  DotDimensionNumbers(Ints lhs_batching_dimensions = {}, Ints rhs_batching_dimensions = {},
                      Ints lhs_contracting_dimensions = {}, Ints rhs_contracting_dimensions = {});
  Ints get_lhs_batching_dimensions() const;
  Ints get_rhs_batching_dimensions() const;
  Ints get_lhs_contracting_dimensions() const;
  Ints get_rhs_contracting_dimensions() const;

 private:
  std::vector<Ints> parts_;
};

class GatherDimensionNumbers {
 public:
  GatherDimensionNumbers(Ints offset_dims = {}, Ints collapsed_slice_dims = {},
                         Ints start_index_map = {}, int64_t index_vector_dim = 0);
  Ints get_offset_dims() const;
  Ints get_collapsed_slice_dims() const;
  Ints get_start_index_map() const;
  int64_t get_index_vector_dim() const;

 private:
  std::vector<Ints> parts_;
  int64_t index_vector_dim_;
};

// functions of one tensor
Op Abs(Op operand, Type resultType = Type());
Op Acos(Op operand, Type resultType = Type());
Op Asin(Op operand, Type resultType = Type());
Op Asinh(Op operand, Type resultType = Type());
Op Atan(Op operand, Type resultType = Type());
Op Atanh(Op operand, Type resultType = Type());
Op Ceil(Op operand, Type resultType = Type());
Op Convert(Op input, Type resultType = Type());
Op Cos(Op operand, Type resultType = Type());
Op Elu(Op operand, float alpha = 1, Type resultType = Type());
Op Erf(Op operand, Type resultType = Type());
Op Exp(Op operand, Type resultType = Type());
Op Expm1(Op operand, Type resultType = Type());
Op Floor(Op operand, Type resultType = Type());
Op Gelu(Op operand, bool approximate = true, Type resultType = Type());
Op IsFinite(Op operand, Type resultType = Type());
Op LeakyRelu(Op operand, float alpha = 0.01, Type resultType = Type());
Op Log(Op operand, Type resultType = Type());
Op Log1p(Op operand, Type resultType = Type());
Op Neg(Op operand, Type resultType = Type());
Op Not(Op operand, Type resultType = Type());
Op Reciprocal(Op operand, Type resultType = Type());
Op Relu(Op operand, Type resultType = Type());
Op Rsqrt(Op operand, Type resultType = Type());
Op Sigmoid(Op input, Type resultType = Type());
Op Sign(Op operand, Type resultType = Type());
Op Sin(Op operand, Type resultType = Type());
Op Sinh(Op operand, Type resultType = Type());
Op Sqrt(Op operand, Type resultType = Type());
Op Square(Op operand, Type resultType = Type());
Op Swish(Op input, Type resultType = Type());
Op Tanh(Op operand, Type resultType = Type());

// functions of two tensors
Op Add(Op lhs, Op rhs, Ints broadcast_dimensions = {}, Type resultType = Type());
Op And(Op lhs, Op rhs, Ints broadcast_dimensions = {}, Type resultType = Type());
Op Atan2(Op lhs, Op rhs, Ints broadcast_dimensions = {}, Type resultType = Type());
Op Div(Op lhs, Op rhs, Ints broadcast_dimensions = {}, Type resultType = Type());
Op Equal(Op lhs, Op rhs, Ints broadcast_dimensions = {}, Type resultType = Type());
Op Greater(Op lhs, Op rhs, Ints broadcast_dimensions = {}, Type resultType = Type());
Op GreaterEqual(Op lhs, Op rhs, Ints broadcast_dimensions = {}, Type resultType = Type());
Op Less(Op lhs, Op rhs, Ints broadcast_dimensions = {}, Type resultType = Type());
Op LessEqual(Op lhs, Op rhs, Ints broadcast_dimensions = {}, Type resultType = Type());
Op Max(Op lhs, Op rhs, Ints broadcast_dimensions = {}, Type resultType = Type());
Op Min(Op lhs, Op rhs, Ints broadcast_dimensions = {}, Type resultType = Type());
Op Mul(Op lhs, Op rhs, Ints broadcast_dimensions = {}, Type resultType = Type());
Op NotEqual(Op lhs, Op rhs, Ints broadcast_dimensions = {}, Type resultType = Type());
Op Or(Op lhs, Op rhs, Ints broadcast_dimensions = {}, Type resultType = Type());
Op Pow(Op lhs, Op rhs, Ints broadcast_dimensions = {}, Type resultType = Type());
Op Rem(Op lhs, Op rhs, Ints broadcast_dimensions = {}, Type resultType = Type());
Op Select(Op pred, Op on_true, Op on_false, Type resultType = Type());
Op Sub(Op lhs, Op rhs, Ints broadcast_dimensions = {}, Type resultType = Type());
Op Xor(Op lhs, Op rhs, Ints broadcast_dimensions = {}, Type resultType = Type());

// shapes
Op BroadcastInDim(Op operand, Ints broadcast_dimensions, Type resultType);
Op Concatenate(std::vector<Op> val, int64_t dimension, Type resultType = Type());
Op Const(std::shared_ptr<Builder> builder, void* value, Type resultType);
Op Gather(Op operand, Op start_indices, GatherDimensionNumbers dimension_numbers, Ints slice_sizes,
          bool indices_are_sorted = false, Type resultType = Type());
Op GetTupleElement(Op input, int32_t index, Type resultType = Type());
Op Iota(std::shared_ptr<Builder> builder, int64_t iota_dimension, Type resultType);
Op Pad(Op operand, Op padding_value, int64_t mode, Ints edge_padding_low, Ints edge_padding_high,
       Ints interior_padding, Type resultType = Type());
Op Reshape(Op operand, Type resultType);
Op Reverse(Op operand, Ints dimensions, Type resultType = Type());
Op Slice(Op operand, Ints start_indices, Ints limit_indices, Ints strides,
         Type resultType = Type());
Op Transpose(Op operand, Ints permutation, Type resultType = Type());
Op Trilu(Op input, bool upper = true, int64_t k = 0, Type resultType = Type());

// reductions
Op ArgMax(Op data, int64_t axis = 0, bool keepdims = true, bool select_last_index = false,
          Type resultType = Type());
Op ArgMin(Op data, int64_t axis = 0, bool keepdims = true, bool select_last_index = false,
          Type resultType = Type());
Op ReduceMax(Op input, bool keepdims = false, Ints axis = {}, Type resultType = Type());
Op ReduceMean(Op input, bool keepdims = false, Ints axis = {}, Type resultType = Type());
Op ReduceMin(Op input, bool keepdims = false, Ints axis = {}, Type resultType = Type());
Op ReduceProd(Op input, bool keepdims = false, Ints axis = {}, Type resultType = Type());
Op ReduceSum(Op input, bool keepdims = false, Ints axis = {}, Type resultType = Type());
Op Softmax(Op logits, int64_t axis = -1, bool accurate = false, bool logarithmic = false,
           float epsilon = 0, Type resultType = Type());
Op TopK(Op input, Op k, int64_t axis = -1, bool sorted = true, bool largest = true,
        Type resultType = Type());

// products, convolutions, pools, norms
Op AveragePool(Op input, Ints dims, Ints kernel_shape, bool ceil_mode = false,
               bool count_include_pad = false, Ints strides = {}, Ints padding = {},
               std::string auto_pad = "", Type resultType = Type());
Op AveragePool(Op input, Ints dims, Ints kernel_shape, bool ceil_mode = false,
               bool count_include_pad = false, Ints strides = {},
               std::vector<Ints> padding = {{}}, std::string auto_pad = "",
               Type resultType = Type());
Op BatchNormInference(Op operand, Op scale, Op offset, Op mean, Op variance, float epsilon,
                      int64_t feature_index, Type resultType = Type());
Op Conv2D(std::vector<Op> input, int64_t group = 1, std::string auto_pad = "NOTSET",
          std::string layout = "NHWC", Ints stride = {}, Ints padding = {}, Ints dilation = {},
          Type resultType = Type());
Op DotGeneral(Op lhs, Op rhs, DotDimensionNumbers dot_dimension_numbers,
              std::vector<std::string> precision_config = {}, Type resultType = Type());
Op DotGeneralBias(Op lhs, Op rhs, std::vector<Op> bias, DotDimensionNumbers dot_dimension_numbers,
                  std::vector<std::string> precision_config = {}, Type resultType = Type());
Op LayerNormInference(Op operand, Op gamma_constraint, Op beta_constraint, int64_t axis,
                      float epsilon, Type resultType = Type());
Op MaxPool2D(Op input, Ints ksize, bool ceil_mode = false, bool return_indices = false,
             std::string auto_pad = "NOTSET", std::string layout = "NHWC", Ints stride = {},
             Ints padding = {}, Ints dilation = {}, Type resultType = Type());

}  // namespace builder

#pragma GCC visibility pop
