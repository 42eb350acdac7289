// SPDX-License-Identifier: Apache-2.0
#include "op_table.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <array>
#include <mutex>
#include <unordered_map>

namespace op_tools {
namespace {

PyObject* decider = nullptr;  // never released: threads may outlive the module
auto& slots = *new std::unordered_map<const char*, Slot>();  // leaked for the same reason
std::mutex slots_lock;

Decision decided_by_python(PyObject* found, const c10::FunctionSchema& schema) {
  if (!PyTuple_Check(found)) return {found, &schema};
  const auto parts = py::reinterpret_steal<py::tuple>(found);
  Decision made{py::object(parts[0]).release().ptr(), &schema};
  made.sink = parts[1].cast<std::shared_ptr<Sink>>();
  made.headers = parts[2].cast<std::shared_ptr<CallHeaders>>();
  made.name = interned(parts[3].cast<std::string>());
  return made;
}

Decision decided(const Slot::Name& name) {  // with the GIL
  Decision made;
  if (!name) return made;
  const auto op = c10::Dispatcher::singleton().findSchema(*name);
  // torch decomposes a composite operator for every device: no device has a kernel for it
  if (!op || op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) return made;
  const auto full =
      name->overload_name.empty() ? name->name : name->name + "." + name->overload_name;
  PyObject* function = PyObject_CallFunction(decider, "s", full.c_str());
  if (function == nullptr) {
    PyErr_WriteUnraisable(decider);
  } else if (function == Py_None) {
    Py_DECREF(function);
  } else {
    made = decided_by_python(function, op->schema());
    made.read_schema();
  }
  return made;
}

}  // namespace

void Decision::read_schema() {
  for (size_t i = 0; i < schema->arguments().size(); i++) {
    const auto* alias = schema->arguments()[i].alias_info();
    if (alias != nullptr && alias->isWrite()) written |= uint64_t{1} << std::min<size_t>(i, 63);
  }
  of_torch = schema->name().starts_with("aten::");
}

std::shared_ptr<const Decision> Slot::decide(const Name& name) {
  py::gil_scoped_acquire gil;
  auto made = std::make_shared<const Decision>(decided(name));
  decision_.store(made);
  return made;
}

Slot& slot_of(const char* name) {
  struct Cached {
    const char* name = nullptr;
    Slot* slot = nullptr;
  };
  static thread_local std::array<Cached, 1024> cache;
  Cached& own = cache[(reinterpret_cast<uint64_t>(name) * 0x9E3779B97F4A7C15ull) >> 54];
  if (own.name != name) {
    std::lock_guard lock(slots_lock);
    own = {name, &slots[name]};
  }
  return *own.slot;
}

void set_decider(PyObject* decide) { decider = decide; }

void reset_decisions() {
  std::lock_guard lock(slots_lock);
  for (auto& [name, slot] : slots) slot.reset();
}

}  // namespace op_tools
