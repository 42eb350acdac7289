// The start of a call's line, without a line of Python.
#include "heads.h"

#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include "frames.h"
#include "threads.h"

namespace op_tools {

constexpr size_t kForward = 1 << 16;  // forward calls that are remembered for their backward
constexpr uint64_t kNodes = 8;        // that one function makes at most

static thread_local OwnPart own_busy, own_stack;

static py::object word(const char* text) { return py::reinterpret_steal<py::object>(PyUnicode_InternFromString(text)); }

Heads::Heads(py::object ids, py::dict steps, py::object modules, py::object local, py::function works,
             py::function programs, py::function site, py::function quoted)
    : ids_(std::move(ids)), modules_(std::move(modules)), local_(std::move(local)), steps_(std::move(steps)),
      works_(std::move(works)), programs_(std::move(programs)), site_(std::move(site)), quoted_(std::move(quoted)), step_key_(word("_step")),
      stack_key_(word("stack")), busy_key_(word("busy")), forward_(kForward) {}

std::optional<Head> Heads::head(const std::string* name, c10::DeviceType kind) {
  if (!works_on(kind) || own_busy.get(local_, busy_key_.ptr()) == Py_True) return std::nullopt;
  const uint64_t sequence = at::sequence_number::peek();
  const bool backward = torch::autograd::get_current_graph_task_id() != -1;
  Where where{module(), site()};
  if (backward) {  // no line of the program is on the stack; in a recomputation, its modules are
    const auto node = torch::autograd::get_current_node();
    const Where known = node ? forward_of(node->sequence_nr()) : Where();
    if (where.module == nullptr) where.module = known.module;
    if (where.site == nullptr) where.site = known.site;
  } else {
    forward_[sequence % kForward] = {sequence, where};
  }
  const auto id = py::reinterpret_steal<py::object>(PyIter_Next(ids_.ptr()));
  if (!id) throw py::error_already_set();
  counts_[name]++;
  return Head{PyLong_AsLongLong(id.ptr()), step(), name, where.module, where.site, backward};
}

int64_t Heads::step() {
  PyObject* found = PyDict_GetItemWithError(steps_.ptr(), step_key_.ptr());
  if (found == nullptr) throw py::error_already_set();
  return PyLong_AsLongLong(found);
}

bool Heads::works_on(c10::DeviceType kind) {
  const auto found = kinds_.find(kind);
  if (found != kinds_.end()) return found->second;
  const bool works = works_(c10::DeviceTypeName(kind, true)).cast<bool>();
  kinds_[kind] = works;
  return works;
}

const std::string* Heads::module() {
  PyObject* stack = own_stack.get(modules_, stack_key_.ptr());
  const Py_ssize_t depth = stack == nullptr ? 0 : PyList_GET_SIZE(stack);
  if (depth == 0) return nullptr;
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(PyTuple_GET_ITEM(PyList_GET_ITEM(stack, depth - 1), 1), &size);
  if (text == nullptr) throw py::error_already_set();
  if (size == 0) return nullptr;
  const std::string_view path(text, static_cast<size_t>(size));
  auto found = quotes_.find(path);
  if (found == quotes_.end()) found = quotes_.emplace(path, lasting(quoted_(std::string(path)).cast<std::string>())).first;
  return found->second;
}

// The innermost line that is neither torch's nor ours nor Python's own.
const std::string* Heads::site() {
  const std::string* found = nullptr;
  each_frame([&](Frame frame) {
    auto* code = reinterpret_cast<PyObject*>(frame.code);
    auto known = codes_.find(code);
    if (known == codes_.end()) {
      Py_INCREF(code);
      known = codes_.emplace(code, programs_(py::handle(code)).cast<bool>()).first;
    }
    if (!known->second) return true;
    auto& text = sites_[{code, frame.instruction}];
    if (text == nullptr) text = lasting(site_(py::handle(code), frame.line()).cast<std::string>());
    found = text;
    return false;
  });
  return found;
}

// Of the nearest call at or before a node: a function makes several of them.
Heads::Where Heads::forward_of(uint64_t sequence) const {
  for (uint64_t back = 0; back < kNodes && back <= sequence; back++) {
    const Remembered& found = forward_[(sequence - back) % kForward];
    if (found.sequence == sequence - back) return found.where;
  }
  return {};
}

py::dict Heads::counts() {
  py::dict made;
  for (const auto& [name, count] : counts_) made[py::str(*name)] = count;
  counts_.clear();
  return made;
}

void bind_heads(py::module_& m) {
  py::class_<Heads, std::shared_ptr<Heads>>(m, "Heads")
      .def(py::init<py::object, py::dict, py::object, py::object, py::function, py::function, py::function, py::function>())
      .def("counts", &Heads::counts);
}

}  // namespace op_tools
