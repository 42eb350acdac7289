// A route of the engine that runs a vendor's C functions, without Python on the way: each parameter
// from the stack by a plan that was made when the library was loaded (torch_dipu/ckernels.py).
#include "c_route.h"

#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/result_type.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/flat_hash_map.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/csrc/utils/pybind.h>

#include <map>

#include "c_call.h"
#include "engine.h"

namespace py = pybind11;

namespace dipu {
namespace {

using c10::IValue;
using torch::jit::Stack;

// ---- the plan

// Where a value comes from: an argument on the stack, or a constant of the plan (-1 is the first).
using Source = int;

struct CParameter {
  char code;      // how the value becomes a parameter: see CFunction::convert
  char letter;    // how it is passed: see diopi_shapes.h
  int16_t source;
  int16_t filled; // of a result that the function changes in place: where its values come from
  bool nullable;
};
// An argument that the function does not take: what it has to be.
struct Condition {
  int source;
  char kind;  // 'z': zeros; '=': none, or the constant
  IValue expected;
};

enum class Form : uint8_t { Functional, Out, InPlace };

struct Geometry {
  at::DimVector sizes, strides;
  at::ScalarType type = at::ScalarType::Undefined;  // undefined: no tensor
};
using Geometries = c10::SmallVector<Geometry, 2>;

struct Plan {
  Form form;
  bool pointwise, dynamic;
  int mask;                                    // the argument that says which results are wanted, or -1
  std::vector<int> results;                    // the argument that each result goes into, or -1: a new tensor
  std::optional<c10::OperatorHandle> functional;  // what tells the results' sizes
  std::vector<Source> sources;                 // its arguments
  std::vector<IValue> constants;
  uint64_t refused = 0;                        // types that are converted elsewhere: a bit each
};

const IValue& value_of(const Plan& plan, const IValue* arguments, Source source) {
  return source >= 0 ? arguments[source] : plan.constants[static_cast<size_t>(-source - 1)];
}

bool is_none(const IValue& value) {
  return value.isNone() || (value.isTensor() && !value.toTensor().defined());
}
bool is_number(const IValue& value) {
  return value.isScalar() || (value.isTensor() && value.toTensor().defined() && value.toTensor().is_cpu() && value.toTensor().dim() == 0);
}
at::Scalar number_of(const IValue& value) {
  return value.isTensor() ? value.toTensor().item() : value.toScalar();
}

// ---- what a call returns: sizes, strides and types, from torch's own meta kernel, remembered

using Key = c10::SmallVector<int64_t, 48>;

void describe(const at::Tensor& t, Key& key) {
  if (!t.defined()) return key.push_back(-1);
  const auto* impl = t.unsafeGetTensorImpl();
  key.push_back(static_cast<int64_t>(t.scalar_type()) | impl->dim() << 8 | int64_t{impl->is_wrapped_number()} << 16 |
                int64_t{t.is_cpu()} << 17);
  key.append(impl->sizes().begin(), impl->sizes().end());
  key.append(impl->strides().begin(), impl->strides().end());
}
// False: nothing to remember it by.
bool describe(const IValue& value, Key& key) {
  if (value.isTensor()) describe(value.toTensor(), key);
  else if (value.isNone() || value.isGenerator() || value.isDevice()) key.push_back(-2);
  else if (value.isInt()) key.append({-3, value.toInt()});
  else if (value.isBool()) key.append({-4, value.toBool()});
  else if (value.isDouble() || value.isComplexDouble()) key.push_back(value.isDouble() ? -5 : -6);  // no size depends on it
  else if (value.isString()) key.append({-7, static_cast<int64_t>(std::hash<std::string_view>{}(value.toStringView()))});
  else if (value.isIntList()) {
    const auto list = value.toIntVector();
    key.append({-8, static_cast<int64_t>(list.size())});
    key.append(list.begin(), list.end());
  } else if (value.isBoolList()) {
    for (bool one : value.toBoolList()) key.push_back(one ? -9 : -10);
  } else if (value.isTensorList()) {
    key.push_back(-11);
    for (const at::Tensor& one : value.toTensorVector()) describe(one, key);
  } else return false;
  return true;
}

at::Tensor without_data(const at::Tensor& t) {
  if (!on_device(t)) return t;
  auto made = at::detail::empty_strided_meta(t.sizes(), t.strides(), t.scalar_type());
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) made.unsafeGetTensorImpl()->set_wrapped_number(true);
  return made;
}
IValue without_data(const IValue& value) {
  if (value.isTensor()) return without_data(value.toTensor());
  if (value.isDevice()) return c10::Device(c10::DeviceType::Meta);
  if (value.isGenerator()) return IValue();
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& one : value.toTensorVector()) list.push_back(without_data(one));
    return list;
  }
  if (value.isList() && !value.toListRef().empty() && (value.toListRef()[0].isTensor() || value.toListRef()[0].isNone())) {
    c10::List<std::optional<at::Tensor>> list;
    for (const IValue& one : value.toListRef()) {
      list.push_back(one.isNone() ? std::nullopt : std::optional<at::Tensor>(without_data(one.toTensor())));
    }
    return list;
  }
  return value;
}

Geometries infer(const Plan& plan, const IValue* arguments) {
  // no mode (a tool's, torch.compile's) hears of tensors without data
  const c10::impl::ExcludeDispatchKeyGuard unseen(
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
  Stack stack;
  for (const Source source : plan.sources) stack.push_back(without_data(value_of(plan, arguments, source)));
  plan.functional->redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
  Geometries found;
  for (const auto& result : stack) {
    auto& one = found.emplace_back();
    if (!result.isTensor() || !result.toTensor().defined()) continue;
    const at::Tensor& t = result.toTensor();
    one.sizes.assign(t.sizes().begin(), t.sizes().end());
    one.strides.assign(t.strides().begin(), t.strides().end());
    one.type = t.scalar_type();
  }
  return found;
}

struct Remembered {
  Key key;
  Geometries found;
};
at::Tensor empty_result(const Geometry& geometry) {  // on the current device
  constexpr c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(geometry.sizes, geometry.strides, device_allocator(), keys, geometry.type);
}

// The results of these arguments; nullptr: the arguments are wrong, and the host will say how.
const Geometries* results_of(const Plan& plan, const IValue* arguments) {  // hot path
  static thread_local ska::flat_hash_map<uint64_t, Remembered> known;
  static thread_local Geometries last;
  Key key;
  key.append({reinterpret_cast<intptr_t>(&plan), static_cast<int64_t>(c10::typeMetaToScalarType(c10::get_default_dtype()))});
  bool rememberable = true;
  for (const Source source : plan.sources) rememberable &= describe(value_of(plan, arguments, source), key);
  uint64_t hash = 1469598103934665603ull;
  for (const int64_t part : key) hash = (hash ^ static_cast<uint64_t>(part)) * 0x9E3779B97F4A7C15ull + (hash >> 29);
  const auto place = rememberable ? known.find(hash) : known.end();
  if (C10_LIKELY(place != known.end() && place->second.key == key)) return &place->second.found;
  try {
    last = infer(plan, arguments);
  } catch (const std::exception&) {
    return nullptr;
  }
  if (!rememberable) return &last;
  if (known.size() > 4096) known.clear();
  auto& slot = known[hash];
  slot = {key, last};
  return &slot.found;
}

// ---- one function

struct CFunction {
  std::string name;
  void* address;
  Thunk thunk;
  std::vector<CParameter> parameters;
  std::vector<Condition> conditions;
  bool in_place;

  bool applies(const Plan& plan, const IValue* arguments) const {
    for (const auto& condition : conditions) {
      const IValue& value = value_of(plan, arguments, condition.source);
      if (condition.kind == 'z') {
        for (int64_t one : value.toIntVector()) if (one != 0) return false;
      } else if (!is_none(value) && !same(value, condition.expected)) {
        return false;
      }
    }
    return true;
  }

  // Fills in the parameters; false: a value is not what the function takes.
  bool convert(const Plan& plan, const IValue* arguments, c10::ArrayRef<at::Tensor> results, bool wrap, CCall& call, Arg* to) const {
    to[0].p = &call.context;
    for (size_t i = 0; i < parameters.size(); i++) {
      if (!convert(parameters[i], plan, arguments, results, wrap, call, to[i + 1])) return false;
    }
    return true;
  }

 private:
  static bool same(const IValue& value, const IValue& expected) {
    if (value.isScalar() && expected.isScalar()) return value.toScalar().toComplexDouble() == expected.toScalar().toComplexDouble();
    if (value.isString() && expected.isString()) return value.toStringView() == expected.toStringView();
    if (value.isIntList() && expected.isIntList()) return value.toIntVector() == expected.toIntVector();
    return expected.isNone() && value.isIntList() && value.toIntList().empty();
  }

  static void integer(char letter, int64_t value, Arg& to) {
    if (letter == 'I') to.i = static_cast<int32_t>(value);
    else to.l = value;
  }

  bool convert(
      const CParameter& p, const Plan& plan, const IValue* arguments, c10::ArrayRef<at::Tensor> results, bool wrap, CCall& call,
      Arg& to) const {
    if (p.code == 'R') {  // a result
      const auto& result = results[p.source];
      to.p = result.defined() ? call.handle(result) : nullptr;
      return true;
    }
    if (p.code == 'A') {  // a place for a result that the function makes
      to.p = call.array(1);
      return true;
    }
    const IValue& value = value_of(plan, arguments, p.source);
    if (!p.nullable && is_none(value)) return false;
    switch (p.code) {
      case 'T':
        return tensor(plan, arguments, value, wrap, call, to);
      case 'L':
        return list(value, call, to);
      case 'N':
        integer(p.letter, value.isNone() ? 0 : static_cast<int64_t>(value.isList() ? value.toListRef().size() : 0), to);
        return true;
      case 'G':
        to.p = call.generator(value.isNone() ? std::nullopt : std::optional<at::Generator>(value.toGenerator()));
        return true;
      case 'S':
        if (value.isNone()) to.p = nullptr;
        else if (is_number(value)) to.p = call.number(number_of(value));
        else return false;
        return true;
      case 'I':
        if (!value.isNone() && !value.isInt() && !value.isBool()) return false;
        integer(p.letter, value.isNone() ? 0 : value.isBool() ? value.toBool() : value.toInt(), to);
        return true;
      case 'D': {
        if (!value.isNone() && !value.isScalar()) return false;
        const double number = value.isNone() ? 0 : value.toScalar().toDouble();
        if (p.letter == 'F') to.f = static_cast<float>(number);
        else to.d = number;
        return true;
      }
      case 'B':
        to.b = value.isBool() ? value.toBool() : value.isInt() && value.toInt() != 0;
        return true;
      case 'l': case 'd': case 'b': case 'y': case 'f':  // a pointer to one, or null
        return pointer(p.code, value, call, to);
      case 'Z': case 'z':
        return sizes(p.code == 'z', value, call, to);
      case 'x': case 'm':  // an array of doubles, of bools
        return array(p.code, value, call, to);
      case 'C':
        to.p = value.isNone() ? nullptr : const_cast<char*>(call.text(value.toStringRef()));
        return true;
      case 'Y':
        to.i = c_dtype(static_cast<at::ScalarType>(value.toInt()));
        return true;
      case 'F':
        to.i = value.isNone() ? Contiguous : memory_format(value);
        return true;
      case 'O':  // a way to round
        to.i = value.isNone() ? RoundModeNone : value.toStringView() == "trunc" ? RoundModeTrunc : RoundModeFloor;
        return true;
      default:
        return false;
    }
  }

  // A number has the type that it gets beside the other tensors; kernels compute halves in float32.
  static at::ScalarType type_beside(const Plan& plan, const IValue* arguments, const at::Tensor& number) {
    for (const Source source : plan.sources) {
      const IValue& other = value_of(plan, arguments, source);
      if (!other.isTensor() || !on_device(other.toTensor())) continue;
      const auto type = at::result_type(other.toTensor(), number);
      return type == at::kHalf || type == at::kBFloat16 ? at::kFloat : type;
    }
    return number.scalar_type();
  }
  static bool tensor(const Plan& plan, const IValue* arguments, const IValue& value, bool wrap, CCall& call, Arg& to) {
    if (value.isNone() || (value.isTensor() && !value.toTensor().defined())) {
      to.p = nullptr;
      return true;
    }
    if (C10_LIKELY(value.isTensor() && on_device(value.toTensor()))) {
      to.p = call.handle(value.toTensor());
      return true;
    }
    if (!wrap || !is_number(value)) return false;
    at::Tensor number = value.isTensor() ? value.toTensor() : at::scalar_tensor(value.toScalar(), value.toScalar().type());
    if (!value.isTensor()) number.unsafeGetTensorImpl()->set_wrapped_number(true);
    to.p = call.keep(number.to(dipu_device(call.device()), type_beside(plan, arguments, number)));
    return true;
  }
  static bool list(const IValue& value, CCall& call, Arg& to) {
    if (value.isNone()) {
      to.p = nullptr;
      return true;
    }
    if (!value.isList()) return false;
    const auto items = value.toListRef();
    void** handles = call.array(items.size());
    for (size_t i = 0; i < items.size(); i++) {
      if (items[i].isNone() || !items[i].toTensor().defined()) continue;
      if (!on_device(items[i].toTensor())) return false;
      handles[i] = call.handle(items[i].toTensor());
    }
    to.p = handles;
    return true;
  }
  static bool pointer(char code, const IValue& value, CCall& call, Arg& to) {
    if (value.isNone()) {
      to.p = nullptr;
      return true;
    }
    int64_t* place = call.numbers(1);
    to.p = place;
    if (code == 'l') *place = value.toInt();
    else if (code == 'd') *reinterpret_cast<double*>(place) = value.toScalar().toDouble();
    else if (code == 'b') *reinterpret_cast<bool*>(place) = value.toBool();
    else *reinterpret_cast<int32_t*>(place) = code == 'y' ? c_dtype(static_cast<at::ScalarType>(value.toInt())) : memory_format(value);
    return true;
  }
  static int32_t memory_format(const IValue& value) {
    switch (static_cast<at::MemoryFormat>(value.toInt())) {
      case at::MemoryFormat::ChannelsLast: return ChannelsLast;
      case at::MemoryFormat::ChannelsLast3d: return ChannelsLast3d;
      case at::MemoryFormat::Preserve: return Preserve;
      default: return Contiguous;
    }
  }
  static bool sizes(bool pointed, const IValue& value, CCall& call, Arg& to) {
    if (pointed && value.isNone()) {
      to.p = nullptr;
      return true;
    }
    std::vector<int64_t> found;
    if (value.isInt()) found = {value.toInt()};
    else if (value.isIntList()) found = value.toIntVector();
    else if (!value.isNone()) return false;
    int64_t* numbers = call.numbers(found.size() + 2);
    std::copy(found.begin(), found.end(), numbers + 2);
    const diopiSize_t size{numbers + 2, static_cast<int64_t>(found.size())};
    if (!pointed) {
      to.z = size;
      return true;
    }
    static_assert(sizeof(diopiSize_t) == 2 * sizeof(int64_t));
    *reinterpret_cast<diopiSize_t*>(numbers) = size;
    to.p = numbers;
    return true;
  }
  static bool array(char code, const IValue& value, CCall& call, Arg& to) {
    if (value.isNone()) {
      to.p = nullptr;
      return true;
    }
    if (code == 'x' && value.isDoubleList()) {
      const auto found = value.toDoubleVector();
      auto* numbers = reinterpret_cast<double*>(call.numbers(found.size()));
      std::copy(found.begin(), found.end(), numbers);
      to.p = numbers;
      return true;
    }
    if (code != 'm' || !value.isBoolList()) return false;
    const auto found = value.toBoolList();
    auto* flags = reinterpret_cast<bool*>(call.numbers(found.size()));
    for (size_t i = 0; i < found.size(); i++) flags[i] = found.get(i);
    to.p = flags;
    return true;
  }
};

// ---- the route

constexpr size_t kMostParameters = 40;
using LastError = const char* (*)();

struct CRoute final : Route {
  CRoute(std::string who, std::string vendor, Plan plan, std::vector<CFunction> functions, LastError last_error)
      : Route("kernel", std::move(who)), vendor_(std::move(vendor)), plan_(std::move(plan)), functions_(std::move(functions)),
        last_error_(last_error) {}

  bool run(Operator& op, Stack* stack) override {
    const IValue* arguments = stack->data() + (stack->size() - op.arguments);
    const int device = look(op, arguments);
    if (device < 0) return false;
    const DeviceScope scope(device);
    c10::SmallVector<at::Tensor, 3> results;
    if (!prepare(arguments, results)) {  // the host has the words that users know, and what is left to do
      run_on_host(op, stack, c10::DispatchKey::CPU);
      return true;
    }
    if (!call_fitting(op, arguments, device, results)) return false;
    finish(op, stack, results);
    return true;
  }

 private:
  const std::string vendor_;
  const Plan plan_;
  const std::vector<CFunction> functions_;
  const LastError last_error_;

  struct DeviceScope {
    explicit DeviceScope(int device) : previous(exchange_device(device)) {}
    ~DeviceScope() { exchange_device(previous); }
    const int previous;
  };

  // Dense tensors of one device, and numbers: the device; anything else: -1.
  int look(const Operator& op, const IValue* arguments) const {
    int device = -1;
    const auto fits = [&](const at::Tensor& t) {
      if (!t.defined()) return true;
      const auto* impl = t.unsafeGetTensorImpl();
      if (C10_UNLIKELY(impl->device().type() != kDipu)) return t.is_cpu() && t.dim() == 0;
      if (C10_UNLIKELY(t.layout() != at::kStrided || t.is_conj() || t.is_neg() || t._is_zerotensor())) return false;
      if (C10_UNLIKELY(plan_.refused >> static_cast<int>(t.scalar_type()) & 1)) return false;
      if (device < 0) device = impl->device().index();
      return device == impl->device().index();
    };
    for (const auto& a : op.looked_at) {
      const IValue& value = arguments[a.index];
      if (value.isTensor()) {
        if (!fits(value.toTensor())) return -1;
      } else if (a.kind == Kind::Device) {
        if (value.isDevice() && value.toDevice().type() == kDipu && device < 0) device = resolve_device(value.toDevice().index());
      } else if (a.kind == Kind::TensorList || a.kind == Kind::OptionalTensorList) {
        if (!value.isList()) continue;
        for (const IValue& one : value.toListRef()) if (one.isTensor() && !fits(one.toTensor())) return -1;
      }
    }
    return device;
  }

  bool wanted(const IValue* arguments, size_t result) const {
    if (plan_.mask < 0) return true;
    const auto mask = arguments[plan_.mask].toBoolList();
    return result >= mask.size() || mask.get(result);
  }

  // The tensors that the results go into.
  bool prepare(const IValue* arguments, c10::SmallVectorImpl<at::Tensor>& results) const {
    if (plan_.dynamic || plan_.results.empty()) {
      results.resize(plan_.results.size());
      return plan_.form == Form::Functional || plan_.results.empty();
    }
    const Geometries* found = results_of(plan_, arguments);
    if (found == nullptr || found->size() < plan_.results.size()) return false;
    for (size_t i = 0; i < plan_.results.size(); i++) {
      const Geometry& geometry = (*found)[i];
      if (!wanted(arguments, i) || geometry.type == at::ScalarType::Undefined) {
        results.emplace_back();
      } else if (plan_.results[i] < 0) {
        results.push_back(empty_result(geometry));
      } else {
        at::Tensor given = arguments[plan_.results[i]].toTensor();
        if (!receives(given, geometry, arguments)) return false;
        const bool apart = plan_.form == Form::InPlace && !plan_.pointwise;  // the function may read what it has written
        results.push_back(apart ? empty_result(geometry) : std::move(given));
      }
    }
    return true;
  }
  bool receives(const at::Tensor& given, const Geometry& geometry, const IValue* arguments) const {
    if (!on_device(given) || given.scalar_type() != geometry.type) return false;
    if (!given.sizes().equals(geometry.sizes)) {
      if (plan_.form == Form::InPlace) return false;
      at::native::resize_output(given, geometry.sizes);
    }
    return given.is_non_overlapping_and_dense() ? !shares(given, arguments) : false;
  }
  // Whether an input lies on the same memory in another way than element on element.
  bool shares(const at::Tensor& given, const IValue* arguments) const {
    const auto* storage = given.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
    for (const Source source : plan_.sources) {
      const IValue& value = value_of(plan_, arguments, source);
      const auto overlaps = [&](const at::Tensor& t) {
        if (!on_device(t) || t.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() != storage) return false;
        const bool itself = t.storage_offset() == given.storage_offset() && t.sizes().equals(given.sizes()) && t.strides().equals(given.strides());
        return !(itself && (plan_.pointwise || plan_.form == Form::InPlace));
      };
      if (value.isTensor() && overlaps(value.toTensor())) return true;
      if (!value.isTensorList()) continue;
      for (const IValue& one : value.toListRef()) if (overlaps(one.toTensor())) return true;
    }
    return false;
  }

  bool call_fitting(const Operator& op, const IValue* arguments, int device, c10::SmallVectorImpl<at::Tensor>& results) const {
    std::array<Arg, kMostParameters> to;
    uint64_t refused = 0;                    // by those that were called
    for (const bool wrap : {false, true}) {  // a number becomes a tensor where no function takes the number
      for (size_t i = 0; i < functions_.size(); i++) {
        const auto& function = functions_[i];
        if (C10_UNLIKELY(refused >> i & 1)) continue;
        CCall call(device);
        if (!function.applies(plan_, arguments) || !function.convert(plan_, arguments, results, wrap, call, to.data())) continue;
        fill(function, arguments, results);
        const int32_t status = function.thunk(function.address, to.data());
        if (C10_LIKELY(status == diopiSuccess)) {
          if (C10_UNLIKELY(plan_.dynamic)) take_made(function, call, to.data(), results);
          return true;
        }
        if (status == diopiForceFallbackToCPU) return false;
        if (status != diopiNoImplement && status != diopiDtypeNotSupported) fail(op, function, status, call);
        refused |= uint64_t{1} << i;
      }
    }
    return false;
  }
  // A function that works in place gets what it changes into the result first.
  void fill(const CFunction& function, const IValue* arguments, c10::ArrayRef<at::Tensor> results) const {
    if (C10_LIKELY(!function.in_place)) return;
    for (const auto& p : function.parameters) {
      if (p.code != 'R' || p.filled == INT16_MIN || !results[p.source].defined()) continue;
      const at::Tensor& from = value_of(plan_, arguments, p.filled).toTensor();
      if (!from.is_same(results[p.source])) results[p.source].copy_(from);
    }
  }
  static void take_made(const CFunction& function, const CCall& call, const Arg* to, c10::SmallVectorImpl<at::Tensor>& results) {
    for (size_t i = 0; i < function.parameters.size(); i++) {
      if (function.parameters[i].code != 'A') continue;
      results[function.parameters[i].source] = call.tensor_of(*static_cast<void**>(to[i + 1].p));
    }
  }
  [[noreturn]] void fail(const Operator& op, const CFunction& function, int32_t status, const CCall& call) const {
    static const char* names[] = {"diopiSuccess", "diopiErrorOccurred", "diopiNoImplement", "diopiDtypeNotSupported",
                                  "diopiInvalidArgument", "diopiOutOfMemory"};
    const std::string code = status >= 0 && status < 6 ? names[status] : "status " + std::to_string(status);
    std::string said = call.error;
    if (said.empty() && last_error_ != nullptr && last_error_() != nullptr) said = last_error_();
    if (said.empty()) said = "it gave no reason";
    TORCH_CHECK_WITH(
        OutOfMemoryError, status != diopiOutOfMemory, vendor_, "'s ", function.name, " failed with ", code, ": ", said, ".");
    TORCH_CHECK(false, vendor_, "'s ", function.name, " failed with ", code, ": ", said, ". (in ", op.name, ")");
  }

  void finish(const Operator& op, Stack* stack, c10::SmallVectorImpl<at::Tensor>& results) const {
    const size_t base = stack->size() - op.arguments;
    c10::SmallVector<IValue, 3> returned;
    for (size_t i = 0; i < op.returns; i++) {
      if (plan_.form == Form::Functional) {
        returned.emplace_back(std::move(results[i]));
        continue;
      }
      IValue& argument = (*stack)[base + plan_.results[i]];
      if (results[i].defined() && !results[i].is_same(argument.toTensor())) argument.toTensor().copy_(results[i]);
      returned.push_back(argument);
    }
    torch::jit::drop(*stack, op.arguments);
    for (auto& one : returned) stack->push_back(std::move(one));
  }
};

// ---- from Python

IValue constant(const py::handle& value) {
  if (value.is_none()) return {};
  if (py::isinstance<py::bool_>(value)) return value.cast<bool>();
  if (py::isinstance<py::int_>(value)) return value.cast<int64_t>();
  if (py::isinstance<py::float_>(value)) return value.cast<double>();
  if (py::isinstance<py::str>(value)) return value.cast<std::string>();
  const auto items = value.cast<py::sequence>();
  if (items.size() > 0 && py::isinstance<py::bool_>(py::object(items[0]))) return value.cast<std::vector<bool>>();
  if (items.size() > 0 && py::isinstance<py::float_>(py::object(items[0]))) return value.cast<std::vector<double>>();
  return value.cast<std::vector<int64_t>>();
}

c10::OperatorHandle find_operator(const std::string& name) {
  const auto dot = name.find('.');
  return c10::Dispatcher::singleton().findSchemaOrThrow(
      name.substr(0, dot).c_str(), dot == std::string::npos ? "" : name.substr(dot + 1).c_str());
}

CFunction function_of(const py::dict& d) {
  CFunction made{d["name"].cast<std::string>(), reinterpret_cast<void*>(d["address"].cast<uintptr_t>()), nullptr, {}, {}, false};
  const auto shape = d["shape"].cast<std::string>();
  made.thunk = thunk_of(shape);
  TORCH_CHECK(made.thunk != nullptr && shape.size() <= kMostParameters, made.name, ": no call of the shape ", shape);
  size_t at = 1;
  for (const auto& row : d["parameters"].cast<py::list>()) {
    const auto [code, source, filled, nullable] = row.cast<std::tuple<std::string, int, int, bool>>();
    made.parameters.push_back({code[0], shape[at++], static_cast<int16_t>(source), static_cast<int16_t>(filled), nullable});
    made.in_place |= code[0] == 'R' && filled != INT16_MIN;
  }
  for (const auto& row : d["conditions"].cast<py::list>()) {
    const auto parts = row.cast<py::tuple>();
    made.conditions.push_back({parts[0].cast<int>(), parts[1].cast<std::string>()[0], constant(parts[2])});
  }
  return made;
}

Route* c_route(const std::string& vendor, const py::dict& d, uintptr_t last_error) {
  static const std::map<std::string, Form> forms = {{"functional", Form::Functional}, {"out", Form::Out}, {"inplace", Form::InPlace}};
  Plan plan{forms.at(d["form"].cast<std::string>()), d["pointwise"].cast<bool>(), d["dynamic"].cast<bool>(), d["mask"].cast<int>(),
            d["results"].cast<std::vector<int>>(), std::nullopt, d["sources"].cast<std::vector<int>>(), {}};
  if (!plan.dynamic) plan.functional = find_operator(d["functional"].cast<std::string>());
  for (const auto& value : d["constants"].cast<py::list>()) plan.constants.push_back(constant(value));
  for (const int code : d["refused"].cast<std::vector<int>>()) plan.refused |= uint64_t{1} << static_cast<int>(*torch_dtype(code));
  std::vector<CFunction> functions;
  std::string names;
  for (const auto& one : d["functions"].cast<py::list>()) {
    functions.push_back(function_of(one.cast<py::dict>()));
    names += (names.empty() ? "" : ", ") + functions.back().name;
  }
  return new CRoute(names, vendor, std::move(plan), std::move(functions), reinterpret_cast<LastError>(last_error));  // for good
}

}  // namespace

void bind_c_routes(py::module_& m) {
  m.def("c_route", &c_route, py::return_value_policy::reference);
  m.def("take_c_runtime", [](uintptr_t table) { take_c_runtime(reinterpret_cast<diopiRuntime_t*>(table)); });
}

}  // namespace dipu
