// SPDX-License-Identifier: Apache-2.0
// A route of the engine that runs a vendor's C functions without Python: each parameter comes from
// the stack by a plan computed when the library is loaded (torch_dipu/c_kernels.py).
#include "routes/c_route.h"

#include <ATen/native/Resize.h>
#include <torch/csrc/utils/pybind.h>

#include <map>

#include "engine/engine.h"
#include "routes/c_function.h"

namespace py = pybind11;

namespace dipu {
namespace {

using torch::jit::Stack;

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
    if (!prepare(arguments, results)) {  // the host raises torch's own error, or handles the call
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

  // Returns the device of dense tensors on one device and numbers; -1 for anything else.
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

  // Collects the tensors that the results are written to.
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
        // the function may read elements that it has already written
        const bool apart = plan_.form == Form::InPlace && !plan_.pointwise;
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
  // Whether an input overlaps the result other than element by element.
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
    uint64_t refused = 0;  // by the functions that were tried
    // the second pass converts a number to a tensor for functions that take no number
    for (const bool wrap : {false, true}) {
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
  // Copies the initial values into the result of a function that works in place.
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
  // never freed: a call may be inside it
  return new CRoute(names, vendor, std::move(plan), std::move(functions), reinterpret_cast<LastError>(last_error));
}

}  // namespace

void bind_c_routes(py::module_& m) {
  m.def("c_route", &c_route, py::return_value_policy::reference);
  m.def("take_c_runtime", [](uintptr_t table) { take_c_runtime(reinterpret_cast<diopiRuntime_t*>(table)); });
}

}  // namespace dipu
