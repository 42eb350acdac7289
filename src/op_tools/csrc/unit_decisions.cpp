// What is decided about each operator.
#include "decisions.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <array>
#include <unordered_map>

namespace op_tools {
namespace {

using Old = std::vector<std::unique_ptr<const Decision>>;

PyObject* decide_call = nullptr;  // so that no thread outlives it
auto& slots = *new std::unordered_map<const char*, Slot>;  // for good: threads may outlive what is static
std::mutex slots_lock;                                      // and that of what is old

// A function that torch takes apart for every device is none of a device's kernels.
bool is_kernel(const c10::OperatorHandle& op) {
  return !op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

Decision unpacked(PyObject* found, const c10::FunctionSchema& schema) {
  if (!PyTuple_Check(found)) return {found, &schema};
  const auto parts = py::reinterpret_steal<py::tuple>(found);
  Decision made{py::object(parts[0]).release().ptr(), &schema, parts[1].cast<std::shared_ptr<Recorder>>()};
  made.name = lasting(parts[3].cast<std::string>());
  if (py::isinstance<Heads>(parts[2])) made.heads = parts[2].cast<std::shared_ptr<Heads>>(), made.count = made.heads->count_of(made.name);
  else made.head = py::object(parts[2]).release().ptr();
  return made;
}

Decision decided(const std::optional<c10::OperatorName>& name) {  // under the GIL
  Decision made;
  if (!name) return made;
  const auto op = c10::Dispatcher::singleton().findSchema(*name);
  if (!op || !is_kernel(*op)) return made;
  const auto full = name->overload_name.empty() ? name->name : name->name + "." + name->overload_name;
  PyObject* function = PyObject_CallFunction(decide_call, "s", full.c_str());
  if (function == nullptr) PyErr_WriteUnraisable(decide_call);
  else if (function == Py_None) Py_DECREF(function);
  else made = unpacked(function, op->schema()), made.read_schema();
  return made;
}

}  // namespace

const Decision Slot::unwanted_;

void Decision::read_schema() {
  for (size_t i = 0; i < schema->arguments().size(); i++) {
    const auto* alias = schema->arguments()[i].alias_info();
    if (alias != nullptr && alias->isWrite()) written |= uint64_t{1} << std::min<size_t>(i, 63);
  }
  returns = schema->returns().size();
  of_torch = schema->name().starts_with("aten::");
  of_lists = schema->name().starts_with("aten::_foreach_");
}

void Slot::decide(const std::optional<c10::OperatorName>& name) {
  py::gil_scoped_acquire gil;
  auto made = std::make_unique<const Decision>(decided(name));
  const Decision* expected = nullptr;
  const Decision* found = made->function == nullptr ? &unwanted_ : made.get();
  if (now_.compare_exchange_strong(expected, found) && found != &unwanted_) made.release();  // else another thread was faster
}

void Slot::forget(Old& to) {
  const Decision* last = now_.exchange(nullptr);
  if (last != nullptr && last != &unwanted_) old_.emplace_back(last);
  has_old_.store(!old_.empty());  // before users are looked for: the last one looks here
  if (old_.empty() || users_.load() > 0) return;
  std::move(old_.begin(), old_.end(), std::back_inserter(to));
  old_.clear();
}

void Slot::give_back() {
  Old gone;  // given back after the lock: it may ask for the GIL
  std::unique_lock lock(slots_lock);
  if (users_.load() == 0) gone.swap(old_);
  has_old_.store(!old_.empty());
  lock.unlock();
}

Slot& slot_of(const char* name) {
  struct Asked {
    const char* name = nullptr;
    Slot* slot = nullptr;
  };
  constexpr size_t kAsked = 1024;
  static thread_local std::array<Asked, kAsked> asked;
  Asked& own = asked[(reinterpret_cast<uint64_t>(name) * 0x9E3779B97F4A7C15ull) >> 54];
  if (own.name == name) return *own.slot;
  std::lock_guard lock(slots_lock);
  own = {name, &slots[name]};
  return *own.slot;
}

void decide_by(PyObject* decide) { decide_call = decide; }

void forget_decisions() {
  Old gone;  // given back after the lock; the functions are torch's own and live as long as it does
  std::unique_lock lock(slots_lock);
  for (auto& [name, slot] : slots) slot.forget(gone);
}

}  // namespace op_tools
