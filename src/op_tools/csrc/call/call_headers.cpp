// SPDX-License-Identifier: Apache-2.0
#include "call_headers.h"

#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <mutex>
#include <unordered_set>

#include "ids.h"

namespace op_tools {

const std::string* interned(std::string_view text) {
  static std::mutex lock;
  static auto* const all =
      new std::unordered_set<std::string>();  // leaked: threads may outlive static objects
  std::lock_guard hold(lock);
  return &*all->emplace(text).first;
}

CallHeaders::CallHeaders(py::object module_stack, py::object local, py::function works_on,
                         py::function is_program, py::function site, py::function quote)
    : module_stack_(std::move(module_stack)),
      local_(std::move(local)),
      works_on_(std::move(works_on)),
      is_program_(std::move(is_program)),
      site_(std::move(site)),
      quote_(std::move(quote)),
      origins_(new Origin[kOrigins]) {
  devices_.fill(-1);
}

CallHeaders::~CallHeaders() {
  py::gil_scoped_acquire gil;  // the last owner may be a call in another thread
  for (const auto& [code, is_program] : codes_) Py_DECREF(code);
  for (auto* object : {&module_stack_, &local_}) *object = py::object();
  for (auto* function : {&works_on_, &is_program_, &site_, &quote_}) *function = py::function();
}

std::optional<CallHeader> CallHeaders::make(const std::string* op, c10::DeviceType device) {
  py::gil_scoped_acquire gil;
  if (busy() || !works_on(device)) return std::nullopt;
  CallHeader made;
  made.op = op, made.module = module(), made.site = site();
  made.backward = torch::autograd::get_current_graph_task_id() != -1;
  if (made.backward) {  // no line of the program is on the stack; in a recomputation, its modules
                        // are
    const auto node = torch::autograd::get_current_node();
    if (const Origin* origin = node ? origin_of(node->sequence_nr()) : nullptr) {
      if (made.module == nullptr) made.module = origin->module;
      if (made.site == nullptr) made.site = origin->site;
    }
  } else {
    remember(made.module, made.site);
  }
  counts_[op]++;
  made.id = next_id.fetch_add(1, std::memory_order_relaxed);
  made.step = current_step.load();
  return made;
}

bool CallHeaders::busy() {
  static PyObject* const name = PyUnicode_InternFromString("busy");
  thread_local LocalDict dict;
  return dict.get(local_, name) == Py_True;
}

bool CallHeaders::works_on(c10::DeviceType device) {
  int8_t& known = devices_[static_cast<size_t>(device)];
  if (known < 0) known = works_on_(c10::DeviceTypeName(device, true)).cast<bool>();
  return known > 0;
}

const std::string* CallHeaders::module() {
  static PyObject* const name = PyUnicode_InternFromString("stack");
  thread_local LocalDict dict;
  PyObject* stack = dict.get(module_stack_, name);
  const Py_ssize_t depth = stack == nullptr ? 0 : PyList_GET_SIZE(stack);
  if (depth == 0) return nullptr;
  Py_ssize_t size = 0;
  const char* text =
      PyUnicode_AsUTF8AndSize(PyTuple_GET_ITEM(PyList_GET_ITEM(stack, depth - 1), 1), &size);
  if (text == nullptr) throw py::error_already_set();
  if (size == 0) return nullptr;
  auto& known = modules_[std::string(text, static_cast<size_t>(size))];
  if (known == nullptr)
    known = interned(quote_(std::string(text, static_cast<size_t>(size))).cast<std::string>());
  return known;
}

// The innermost line of the program: neither torch's, nor Python's, nor ours.
const std::string* CallHeaders::site() {
  const std::string* found = nullptr;
  each_frame([&](Frame frame) {
    if (!is_program(frame.code)) return true;
    auto& known = sites_[{frame.code, frame.instruction}];
    if (known == nullptr)
      known = interned(site_(py::handle(reinterpret_cast<PyObject*>(frame.code)), frame.line())
                           .cast<std::string>());
    found = known;
    return false;
  });
  return found;
}

bool CallHeaders::is_program(PyCodeObject* code) {
  const auto found = codes_.find(code);
  if (found != codes_.end()) return found->second;
  const bool is = is_program_(py::handle(reinterpret_cast<PyObject*>(code))).cast<bool>();
  Py_INCREF(code);
  return codes_.emplace(code, is).first->second;
}

// Autograd gives the node of a call the next sequence number.
void CallHeaders::remember(const std::string* module, const std::string* site) {
  const uint64_t sequence = at::sequence_number::peek();
  origins_[sequence % kOrigins] = {sequence, module, site};
}

// The nearest call at or before a node: a call may make several nodes.
const CallHeaders::Origin* CallHeaders::origin_of(uint64_t sequence) const {
  for (uint64_t back = 0; back < kNodes && back <= sequence; back++) {
    const Origin& found = origins_[(sequence - back) % kOrigins];
    if (found.sequence == sequence - back) return &found;
  }
  return nullptr;
}

py::dict CallHeaders::take_counts() {
  py::dict made;
  for (const auto& [name, count] : std::exchange(counts_, {})) made[py::str(*name)] = count;
  return made;
}

void bind_call_headers(py::module_& m) {
  py::class_<CallHeaders, std::shared_ptr<CallHeaders>>(m, "CallHeaders")
      .def(py::init<py::object, py::object, py::function, py::function, py::function,
                    py::function>())
      .def("take_counts", &CallHeaders::take_counts);
}

}  // namespace op_tools
