// SPDX-License-Identifier: Apache-2.0
// The builder of topsgraph's simulation: it records each call as a line of JSON, with the names of
// the parameters; GetModuleStr returns the lines. Nothing is computed here.
#include "dtu/hlir_builder/hlir_builder.h"

#include <cstdio>
#include <stdexcept>

namespace builder {

using Strings = std::vector<std::string>;
using Ops = std::vector<Op>;

class Builder::Impl {
 public:
  std::string lines;
  int count = 0;
};

class PrimitiveType::Impl {
 public:
  std::string name;
  int64_t bytes;
};

class Type::Impl {
 public:
  std::vector<Ints> shapes;
  std::vector<PrimitiveType> types;
  bool tuple = false;
};

class Op::Impl {
 public:
  int number;
};

namespace {

// JSON of a call's arguments

std::string json(int64_t value) { return std::to_string(value); }
std::string json(int32_t value) { return std::to_string(value); }
std::string json(bool value) { return value ? "true" : "false"; }
std::string json(const std::string& value) { return '"' + value + '"'; }

std::string json(float value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

std::string json(const Op& op) {
  if (!op.GetImpl()) throw std::invalid_argument("an operand that no operator made");
  return "\"%" + std::to_string(op.GetImpl()->number) + '"';
}

template <class T>
std::string json(const std::vector<T>& values) {
  std::string text = "[";
  for (const auto& value : values) text += (text.size() > 1 ? ", " : "") + json(value);
  return text + "]";
}

std::string json(const Type& type) {
  const auto& impl = *type.GetImpl();
  std::string text;
  for (size_t i = 0; i < impl.types.size(); ++i) {
    text += (i ? ", [" : "[") + json(impl.types[i].GetImpl()->name) + ", " +
            json(impl.shapes[i]) + "]";
  }
  return impl.tuple ? "[" + text + "]" : text;
}

std::string json(const DotDimensionNumbers& d) {
  return json(std::vector<Ints>{d.get_lhs_batching_dimensions(), d.get_rhs_batching_dimensions(),
                                d.get_lhs_contracting_dimensions(),
                                d.get_rhs_contracting_dimensions()});
}

std::string json(const GatherDimensionNumbers& d) {
  return json(std::vector<Ints>{d.get_offset_dims(), d.get_collapsed_slice_dims(),
                                d.get_start_index_map(), Ints{d.get_index_vector_dim()}});
}

Op add(std::shared_ptr<Builder> builder, const std::string& fields) {
  auto& impl = *builder->GetImpl();
  int number = impl.count++;
  impl.lines += "{\"id\": \"%" + std::to_string(number) + "\", " + fields + "}\n";
  return Op(builder, std::make_shared<Op::Impl>(Op::Impl{number}));
}

// the names in `a, b, c`, one for each argument
std::string named(const char*) { return ""; }

template <class T, class... Rest>
std::string named(const char* names, const T& value, const Rest&... rest) {
  std::string name;
  while (*names == ' ') ++names;
  while (*names && *names != ',') name += *names++;
  return ", \"" + name + "\": " + json(value) + named(*names ? names + 1 : names, rest...);
}

const Op& first(const Op& op) { return op; }
const Op& first(const Ops& ops) { return ops.at(0); }

template <class T, class... Rest>
Op record(const char* function, const char* names, const T& operand, const Rest&... rest) {
  auto builder = first(operand).GetBuilder();
  return add(builder, "\"op\": " + json(std::string(function)) + named(names, operand, rest...));
}

std::string hex(const void* data, int64_t size) {
  std::string text;
  char pair[3];
  for (int64_t i = 0; i < size; ++i) {
    std::snprintf(pair, sizeof pair, "%02x", static_cast<const unsigned char*>(data)[i]);
    text += pair;
  }
  return text;
}

}  // namespace

#define RECORD(function, ...) return record(#function, #__VA_ARGS__, __VA_ARGS__)
#define OF_ONE(function, operand) \
  Op function(Op operand, Type resultType) { RECORD(function, operand, resultType); }
#define OF_TWO(function)                                                              \
  Op function(Op lhs, Op rhs, Ints broadcast_dimensions, Type resultType) {           \
    RECORD(function, lhs, rhs, broadcast_dimensions, resultType);                     \
  }
#define FOLD(function)                                                  \
  Op function(Op input, bool keepdims, Ints axis, Type resultType) {    \
    RECORD(function, input, keepdims, axis, resultType);                \
  }

Builder::Builder() : impl_(std::make_shared<Impl>()) {}
std::shared_ptr<Builder::Impl> Builder::GetImpl() const { return impl_; }
void Builder::SetShapeInference(bool) {}
std::string Builder::GetModuleStr(uint32_t) { return impl_->lines; }

Op Builder::CreateInput(const Type& type, const std::string&) {
  return add(shared_from_this(), "\"op\": \"Input\", \"resultType\": " + json(type));
}

void Builder::SetOutput(const Ops& outputs, const std::string&) {
  add(shared_from_this(), "\"op\": \"Output\", \"val\": " + json(outputs));
}

#define PRIMITIVE(name, bytes)                                              \
  PrimitiveType PrimitiveType::name() {                                     \
    return PrimitiveType(std::make_shared<Impl>(Impl{#name, bytes}));       \
  }
PRIMITIVE(NONE, 0)
PRIMITIVE(PRED, 1)
PRIMITIVE(S8, 1)
PRIMITIVE(S16, 2)
PRIMITIVE(S32, 4)
PRIMITIVE(S64, 8)
PRIMITIVE(F16, 2)
PRIMITIVE(BF16, 2)
PRIMITIVE(F32, 4)
PRIMITIVE(F64, 8)
PrimitiveType::PrimitiveType(std::shared_ptr<Impl> impl) : impl_(impl) {}
std::shared_ptr<PrimitiveType::Impl> PrimitiveType::GetImpl() const { return impl_; }

Type::Type(PrimitiveType type) : Type(Ints{}, type) {}
Type::Type(const Ints& shape, const PrimitiveType& type)
    : impl_(std::make_shared<Impl>(Impl{{shape}, {type}, false})) {}
Type::Type(const std::vector<Ints>& shapes, const std::vector<PrimitiveType>& types)
    : impl_(std::make_shared<Impl>(Impl{shapes, types, true})) {}
std::shared_ptr<Type::Impl> Type::GetImpl() const { return impl_; }

Op::Op(std::shared_ptr<Builder> builder, std::shared_ptr<Impl> impl)
    : builder_(builder), impl_(impl) {}
std::shared_ptr<Builder> Op::GetBuilder() const { return builder_; }
std::shared_ptr<Op::Impl> Op::GetImpl() const { return impl_; }

DotDimensionNumbers::DotDimensionNumbers(Ints a, Ints b, Ints c, Ints d) : parts_{a, b, c, d} {}
Ints DotDimensionNumbers::get_lhs_batching_dimensions() const { return parts_[0]; }
Ints DotDimensionNumbers::get_rhs_batching_dimensions() const { return parts_[1]; }
Ints DotDimensionNumbers::get_lhs_contracting_dimensions() const { return parts_[2]; }
Ints DotDimensionNumbers::get_rhs_contracting_dimensions() const { return parts_[3]; }

GatherDimensionNumbers::GatherDimensionNumbers(Ints a, Ints b, Ints c, int64_t d)
    : parts_{a, b, c}, index_vector_dim_(d) {}
Ints GatherDimensionNumbers::get_offset_dims() const { return parts_[0]; }
Ints GatherDimensionNumbers::get_collapsed_slice_dims() const { return parts_[1]; }
Ints GatherDimensionNumbers::get_start_index_map() const { return parts_[2]; }
int64_t GatherDimensionNumbers::get_index_vector_dim() const { return index_vector_dim_; }

OF_ONE(Abs, operand)
OF_ONE(Acos, operand)
OF_ONE(Asin, operand)
OF_ONE(Asinh, operand)
OF_ONE(Atan, operand)
OF_ONE(Atanh, operand)
OF_ONE(Ceil, operand)
OF_ONE(Convert, input)
OF_ONE(Cos, operand)
OF_ONE(Erf, operand)
OF_ONE(Exp, operand)
OF_ONE(Expm1, operand)
OF_ONE(Floor, operand)
OF_ONE(IsFinite, operand)
OF_ONE(Log, operand)
OF_ONE(Log1p, operand)
OF_ONE(Neg, operand)
OF_ONE(Not, operand)
OF_ONE(Reciprocal, operand)
OF_ONE(Relu, operand)
OF_ONE(Reshape, operand)
OF_ONE(Rsqrt, operand)
OF_ONE(Sigmoid, input)
OF_ONE(Sign, operand)
OF_ONE(Sin, operand)
OF_ONE(Sinh, operand)
OF_ONE(Sqrt, operand)
OF_ONE(Square, operand)
OF_ONE(Swish, input)
OF_ONE(Tanh, operand)
Op Elu(Op operand, float alpha, Type resultType) { RECORD(Elu, operand, alpha, resultType); }
Op Gelu(Op operand, bool approximate, Type resultType) {
  RECORD(Gelu, operand, approximate, resultType);
}
Op LeakyRelu(Op operand, float alpha, Type resultType) {
  RECORD(LeakyRelu, operand, alpha, resultType);
}

OF_TWO(Add)
OF_TWO(And)
OF_TWO(Atan2)
OF_TWO(Div)
OF_TWO(Equal)
OF_TWO(Greater)
OF_TWO(GreaterEqual)
OF_TWO(Less)
OF_TWO(LessEqual)
OF_TWO(Max)
OF_TWO(Min)
OF_TWO(Mul)
OF_TWO(NotEqual)
OF_TWO(Or)
OF_TWO(Pow)
OF_TWO(Rem)
OF_TWO(Sub)
OF_TWO(Xor)
Op Select(Op pred, Op on_true, Op on_false, Type resultType) {
  RECORD(Select, pred, on_true, on_false, resultType);
}

Op BroadcastInDim(Op operand, Ints broadcast_dimensions, Type resultType) {
  RECORD(BroadcastInDim, operand, broadcast_dimensions, resultType);
}
Op Concatenate(Ops val, int64_t dimension, Type resultType) {
  RECORD(Concatenate, val, dimension, resultType);
}
Op Const(std::shared_ptr<Builder> builder, void* value, Type resultType) {
  int64_t size = resultType.GetImpl()->types[0].GetImpl()->bytes;
  for (int64_t length : resultType.GetImpl()->shapes[0]) size *= length;
  return add(builder, "\"op\": \"Const\", \"value\": " + json(hex(value, size)) +
                          ", \"resultType\": " + json(resultType));
}
Op Gather(Op operand, Op start_indices, GatherDimensionNumbers dimension_numbers, Ints slice_sizes,
          bool indices_are_sorted, Type resultType) {
  RECORD(Gather, operand, start_indices, dimension_numbers, slice_sizes, indices_are_sorted,
         resultType);
}
Op GetTupleElement(Op input, int32_t index, Type resultType) {
  RECORD(GetTupleElement, input, index, resultType);
}
Op Iota(std::shared_ptr<Builder> builder, int64_t iota_dimension, Type resultType) {
  return add(builder, "\"op\": \"Iota\"" + named("iota_dimension, resultType", iota_dimension,
                                                 resultType));
}
Op Pad(Op operand, Op padding_value, int64_t mode, Ints edge_padding_low, Ints edge_padding_high,
       Ints interior_padding, Type resultType) {
  RECORD(Pad, operand, padding_value, mode, edge_padding_low, edge_padding_high, interior_padding,
         resultType);
}
Op Reverse(Op operand, Ints dimensions, Type resultType) {
  RECORD(Reverse, operand, dimensions, resultType);
}
Op Slice(Op operand, Ints start_indices, Ints limit_indices, Ints strides, Type resultType) {
  RECORD(Slice, operand, start_indices, limit_indices, strides, resultType);
}
Op Transpose(Op operand, Ints permutation, Type resultType) {
  RECORD(Transpose, operand, permutation, resultType);
}
Op Trilu(Op input, bool upper, int64_t k, Type resultType) {
  RECORD(Trilu, input, upper, k, resultType);
}

Op ArgMax(Op data, int64_t axis, bool keepdims, bool select_last_index, Type resultType) {
  RECORD(ArgMax, data, axis, keepdims, select_last_index, resultType);
}
Op ArgMin(Op data, int64_t axis, bool keepdims, bool select_last_index, Type resultType) {
  RECORD(ArgMin, data, axis, keepdims, select_last_index, resultType);
}
FOLD(ReduceMax)
FOLD(ReduceMean)
FOLD(ReduceMin)
FOLD(ReduceProd)
FOLD(ReduceSum)
Op Softmax(Op logits, int64_t axis, bool accurate, bool logarithmic, float epsilon,
           Type resultType) {
  RECORD(Softmax, logits, axis, accurate, logarithmic, epsilon, resultType);
}
Op TopK(Op input, Op k, int64_t axis, bool sorted, bool largest, Type resultType) {
  RECORD(TopK, input, k, axis, sorted, largest, resultType);
}

Op AveragePool(Op input, Ints dims, Ints kernel_shape, bool ceil_mode, bool count_include_pad,
               Ints strides, Ints padding, std::string auto_pad, Type resultType) {
  RECORD(AveragePool, input, dims, kernel_shape, ceil_mode, count_include_pad, strides, padding,
         auto_pad, resultType);
}
Op AveragePool(Op input, Ints dims, Ints kernel_shape, bool ceil_mode, bool count_include_pad,
               Ints strides, std::vector<Ints> padding, std::string auto_pad, Type resultType) {
  RECORD(AveragePool, input, dims, kernel_shape, ceil_mode, count_include_pad, strides, padding,
         auto_pad, resultType);
}
Op BatchNormInference(Op operand, Op scale, Op offset, Op mean, Op variance, float epsilon,
                      int64_t feature_index, Type resultType) {
  RECORD(BatchNormInference, operand, scale, offset, mean, variance, epsilon, feature_index,
         resultType);
}
Op Conv2D(Ops input, int64_t group, std::string auto_pad, std::string layout, Ints stride,
          Ints padding, Ints dilation, Type resultType) {
  RECORD(Conv2D, input, group, auto_pad, layout, stride, padding, dilation, resultType);
}
Op DotGeneral(Op lhs, Op rhs, DotDimensionNumbers dot_dimension_numbers, Strings precision_config,
              Type resultType) {
  RECORD(DotGeneral, lhs, rhs, dot_dimension_numbers, precision_config, resultType);
}
Op DotGeneralBias(Op lhs, Op rhs, Ops bias, DotDimensionNumbers dot_dimension_numbers,
                  Strings precision_config, Type resultType) {
  RECORD(DotGeneralBias, lhs, rhs, bias, dot_dimension_numbers, precision_config, resultType);
}
Op LayerNormInference(Op operand, Op gamma_constraint, Op beta_constraint, int64_t axis,
                      float epsilon, Type resultType) {
  RECORD(LayerNormInference, operand, gamma_constraint, beta_constraint, axis, epsilon,
         resultType);
}
Op MaxPool2D(Op input, Ints ksize, bool ceil_mode, bool return_indices, std::string auto_pad,
             std::string layout, Ints stride, Ints padding, Ints dilation, Type resultType) {
  RECORD(MaxPool2D, input, ksize, ceil_mode, return_indices, auto_pad, layout, stride, padding,
         dilation, resultType);
}

}  // namespace builder
