// SPDX-License-Identifier: Apache-2.0
// The runtime interface for a vendor's C functions: tensor handles, memory for the duration of a
// call, streams, generators. Calls made by Python (diopi.handles) are forwarded to Python's table.
#include "routes/c_call.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <c10/util/Exception.h>

#include <cstring>

#include "runtime/core.h"

namespace dipu {

// indexed by diopiDtype_t
static constexpr std::array<at::ScalarType, 19> kDtypes = {
    at::kChar, at::kByte, at::kShort, at::kUInt16, at::kInt, at::kUInt32, at::kLong, at::kUInt64, at::kHalf, at::kFloat,
    at::kDouble, at::kBool, at::kBFloat16, at::ScalarType::Undefined /* tfloat32 */, at::kComplexHalf, at::kComplexFloat,
    at::kComplexDouble, at::kFloat8_e4m3fn, at::kFloat8_e5m2};

int32_t c_dtype(at::ScalarType type) {
  static const auto codes = [] {
    std::array<int32_t, static_cast<size_t>(at::ScalarType::NumOptions)> table;
    table.fill(diopi_dtype_unsupported);
    for (size_t i = 0; i < kDtypes.size(); i++) {
      if (kDtypes[i] != at::ScalarType::Undefined) table[static_cast<size_t>(kDtypes[i])] = static_cast<int32_t>(i);
    }
    return table;
  }();
  return codes[static_cast<size_t>(type)];
}
std::optional<at::ScalarType> torch_dtype(int32_t code) {
  if (code < 0 || code >= static_cast<int32_t>(kDtypes.size())) return std::nullopt;
  if (kDtypes[code] == at::ScalarType::Undefined) return std::nullopt;
  return kDtypes[code];
}

// ---- one call

constexpr int32_t kOurs = 0x64697075;  // in `reserved`: marks a context of this file, not of Python

CCall::CCall(int device) : context{0, device, kOurs} {}

static void describe(const at::Tensor& t, diopiTensor& to) {  // hot path
  const auto* impl = t.unsafeGetTensorImpl();
  const auto& storage = impl->unsafe_storage();
  const bool on_device = impl->device().type() == kDipu;
  to.storage = storage.mutable_data();
  to.storage_offset = impl->storage_offset();
  to.itemsize = static_cast<int64_t>(impl->itemsize());
  to.data = to.storage == nullptr ? nullptr : static_cast<char*>(to.storage) + to.storage_offset * to.itemsize;
  to.shape = impl->sizes().data();
  to.stride = impl->strides().data();
  to.rank = impl->dim();
  to.numel = impl->numel();
  to.storage_nbytes = storage.nbytes();
  to.dtype = c_dtype(t.scalar_type());
  to.device = on_device ? diopi_device : diopi_host;
  to.device_index = on_device ? impl->device().index() : 0;
  to.reserved = 0;
}

void* CCall::handle(const at::Tensor& tensor) {
  if (C10_LIKELY(used_ < kInline)) {
    describe(tensor, handles_[used_]);
    tensors_[used_] = &tensor;
    return &handles_[used_++];
  }
  auto& one = rest().further.emplace_back(Further{{}, &tensor});
  describe(tensor, one.handle);
  return &one.handle;
}
void* CCall::keep(at::Tensor tensor) {
  return handle(rest().kept.emplace_back(std::move(tensor)));
}
at::Tensor CCall::tensor_of(const void* handle) const {
  for (size_t i = 0; i < used_; i++) if (&handles_[i] == handle) return *tensors_[i];
  if (rest_ == nullptr) return {};
  for (const auto& one : rest_->further) if (&one.handle == handle) return *one.tensor;
  return {};
}
void** CCall::array(size_t length) {
  return rest().arrays.emplace_back(std::max<size_t>(length, 1), nullptr).data();
}
int64_t* CCall::numbers(size_t length) {
  return rest().numbers.emplace_back(std::max<size_t>(length, 1), 0).data();
}
const char* CCall::text(std::string value) {
  return rest().texts.emplace_back(std::move(value)).c_str();
}
diopiScalar_t* CCall::number(const at::Scalar& value) {
  diopiScalar_t* to = scalars_used_ < scalars_.size() ? &scalars_[scalars_used_++] : &rest().scalars.emplace_back();
  if (value.isBoolean()) {
    to->stype = diopi_dtype_bool;
    to->ival = value.toBool() ? 1 : 0;
  } else if (value.isIntegral(false)) {
    to->stype = diopi_dtype_int64;
    to->ival = value.toLong();
  } else if (value.isComplex()) {
    const auto found = value.toComplexDouble();
    to->stype = diopi_dtype_complex128;
    to->cval[0] = found.real();
    to->cval[1] = found.imag();
  } else {
    to->stype = diopi_dtype_float64;
    to->fval = value.toDouble();
  }
  return to;
}
diopiGeneratorHandle_t CCall::generator(const std::optional<at::Generator>& generator) {
  return reinterpret_cast<diopiGeneratorHandle_t>(&rest().generators.emplace_back(generator));
}
at::Generator CCall::generator_of(const void* handle) const {
  for (size_t i = 0; rest_ != nullptr && i < rest_->generators.size(); i++) {
    if (&rest_->generators[i] == handle) return device_generator(rest_->generators[i], device());
  }
  return device_generator(std::nullopt, device());
}
at::Tensor CCall::temporary(
    at::IntArrayRef sizes, std::optional<at::IntArrayRef> strides, at::ScalarType type, bool on_host) {
  at::DimVector contiguous;
  if (!strides) {
    int64_t step = 1;
    contiguous.resize(sizes.size());
    for (size_t i = sizes.size(); i-- > 0; step *= std::max<int64_t>(sizes[i], 1)) contiguous[i] = step;
    strides = contiguous;
  }
  if (on_host) return at::detail::empty_strided_cpu(sizes, *strides, type);
  return at::detail::empty_strided_generic(
      sizes, *strides, device_allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), type);
}

// ---- functions that a library calls back

namespace {

diopiRuntime_t g_python{};  // the functions of Python's table before they were replaced

CCall* ours(diopiContextHandle_t context) {
  return context != nullptr && context->reserved == kOurs ? reinterpret_cast<CCall*>(context) : nullptr;
}

// An exception must not cross into C: it becomes a code, and its text is stored with the call.
template <class Body>
diopiError_t guarded(CCall* call, Body body) {
  try {
    return body();
  } catch (const c10::OutOfMemoryError& error) {
    call->error = error.what_without_backtrace();
    return diopiOutOfMemory;
  } catch (const c10::Error& error) {
    call->error = error.what_without_backtrace();
  } catch (const std::exception& error) {
    call->error = error.what();
  }
  return diopiInvalidArgument;
}

diopiError_t require_tensor(
    diopiContextHandle_t ctx, diopiTensorHandle_t* out, const diopiSize_t* size, const diopiSize_t* stride, int32_t dtype,
    int32_t device) {
  auto* call = ours(ctx);
  if (call == nullptr) return g_python.require_tensor(ctx, out, size, stride, dtype, device);
  return guarded(call, [&] {
    const auto type = torch_dtype(dtype);
    TORCH_CHECK(type.has_value(), "diopiRequireTensor: ", dtype, " is no dtype of torch");
    const at::IntArrayRef sizes(size->data, static_cast<size_t>(size->len));
    std::optional<at::IntArrayRef> strides;
    if (stride != nullptr) strides.emplace(stride->data, static_cast<size_t>(stride->len));
    *out = static_cast<diopiTensorHandle_t>(call->keep(call->temporary(sizes, strides, *type, device == diopi_host)));
    return diopiSuccess;
  });
}
diopiError_t require_buffer(diopiContextHandle_t ctx, diopiTensorHandle_t* out, int64_t bytes, int32_t device) {
  auto* call = ours(ctx);
  if (call == nullptr) return g_python.require_buffer(ctx, out, bytes, device);
  return guarded(call, [&] {
    *out = static_cast<diopiTensorHandle_t>(call->keep(call->temporary({bytes}, std::nullopt, at::kByte, device == diopi_host)));
    return diopiSuccess;
  });
}
diopiError_t get_stream(diopiContextHandle_t ctx, diopiStreamHandle_t* out) {
  auto* call = ours(ctx);
  if (call == nullptr) return g_python.get_stream(ctx, out);
  *out = current_stream(call->device());
  return diopiSuccess;
}
diopiError_t get_state(diopiContextHandle_t ctx, diopiConstGeneratorHandle_t generator, diopiTensorHandle_t* out) {
  auto* call = ours(ctx);
  if (call == nullptr) return g_python.generator_get_state(ctx, generator, out);
  return guarded(call, [&] {
    *out = static_cast<diopiTensorHandle_t>(call->keep(call->generator_of(generator).get_state()));
    return diopiSuccess;
  });
}
diopiError_t set_state(diopiContextHandle_t ctx, diopiGeneratorHandle_t generator, diopiConstTensorHandle_t state) {
  auto* call = ours(ctx);
  if (call == nullptr) return g_python.generator_set_state(ctx, generator, state);
  return guarded(call, [&] {
    auto found = call->generator_of(generator);
    std::lock_guard<std::mutex> lock(found.mutex());
    found.set_state(call->tensor_of(state).cpu());
    return diopiSuccess;
  });
}
// Each call gets a new seed, to be counted from 0: a kernel need not report how many numbers it used.
diopiError_t get_seed(diopiContextHandle_t ctx, diopiGeneratorHandle_t generator, uint64_t* seed, uint64_t* offset) {
  auto* call = ours(ctx);
  if (call == nullptr) return g_python.generator_get_seed(ctx, generator, seed, offset);
  return guarded(call, [&] {
    const HostEngine numbers(call->generator_of(generator), call->device());
    *seed = at::check_generator<at::CPUGeneratorImpl>(numbers.engine())->random64();
    *offset = 0;
    return diopiSuccess;
  });
}
diopiError_t set_seed(diopiContextHandle_t ctx, diopiGeneratorHandle_t generator, uint64_t seed, uint64_t offset) {
  if (ours(ctx) == nullptr) return g_python.generator_set_seed(ctx, generator, seed, offset);
  return diopiSuccess;  // see get_seed: the next seed is sampled
}

}  // namespace

// Libraries hold the address of Python's table, so its functions are replaced in place.
void take_c_runtime(diopiRuntime_t* table) {
  TORCH_CHECK(
      table->abi == DIOPI_ABI_VERSION && table->size == sizeof(diopiRuntime_t), "diopi's runtime speaks ABI ", table->abi,
      "; this torch_dipu speaks ABI ", DIOPI_ABI_VERSION);
  if (table->require_tensor == &require_tensor) return;
  g_python = *table;
  table->require_tensor = &require_tensor;
  table->require_buffer = &require_buffer;
  table->get_stream = &get_stream;
  table->generator_get_state = &get_state;
  table->generator_set_state = &set_state;
  table->generator_get_seed = &get_seed;
  table->generator_set_seed = &set_seed;
}

}  // namespace dipu
