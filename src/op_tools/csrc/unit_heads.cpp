// The start of a call's line, without a line of Python.
#include "heads.h"

#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

namespace op_tools {

constexpr size_t kForward = 1 << 16;  // forward calls that are remembered for their backward
constexpr uint64_t kNodes = 8;        // that one function makes at most

static py::object word(const char* text) { return py::reinterpret_steal<py::object>(PyUnicode_InternFromString(text)); }

static py::object attribute(const py::object& of, const py::object& name) {
  auto found = py::reinterpret_steal<py::object>(PyObject_GetAttr(of.ptr(), name.ptr()));
  if (!found) throw py::error_already_set();
  return found;
}

Heads::Heads(py::object ids, py::dict steps, py::object modules, py::object local, py::function works,
             py::function site, py::function quoted)
    : ids_(std::move(ids)), modules_(std::move(modules)), local_(std::move(local)), steps_(std::move(steps)),
      works_(std::move(works)), site_(std::move(site)), quoted_(std::move(quoted)), step_key_(word("_step")),
      stack_key_(word("stack")), busy_key_(word("busy")), forward_(kForward) {}

std::optional<Head> Heads::head(const std::string* name, c10::DeviceType kind) {
  if (!works_on(kind) || attribute(local_, busy_key_).ptr() == Py_True) return std::nullopt;
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
  PyObject* step = PyDict_GetItemWithError(steps_.ptr(), step_key_.ptr());
  if (!id || step == nullptr) throw py::error_already_set();
  counts_[name]++;
  return Head{PyLong_AsLongLong(id.ptr()), PyLong_AsLongLong(step), name, where.module, where.site, backward};
}

bool Heads::works_on(c10::DeviceType kind) {
  const auto found = kinds_.find(kind);
  if (found != kinds_.end()) return found->second;
  const bool works = works_(c10::DeviceTypeName(kind, true)).cast<bool>();
  kinds_[kind] = works;
  return works;
}

const std::string* Heads::module() {
  const py::object stack = attribute(modules_, stack_key_);
  const Py_ssize_t depth = PyList_GET_SIZE(stack.ptr());
  if (depth == 0) return nullptr;
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(PyTuple_GET_ITEM(PyList_GET_ITEM(stack.ptr(), depth - 1), 1), &size);
  if (text == nullptr) throw py::error_already_set();
  if (size == 0) return nullptr;
  const std::string_view path(text, static_cast<size_t>(size));
  auto found = quotes_.find(path);
  if (found == quotes_.end()) found = quotes_.emplace(path, lasting(quoted_(std::string(path)).cast<std::string>())).first;
  return found->second;
}

// The innermost line that is neither torch's nor ours nor Python's own.
const std::string* Heads::site() {
  auto frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyThreadState_GetFrame(PyThreadState_Get())));
  while (frame) {
    auto* at = reinterpret_cast<PyFrameObject*>(frame.ptr());
    bool ours = false;
    const std::string* found = site_of(at, ours);
    if (!ours) return found;
    frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(at)));
  }
  return nullptr;
}

const std::string* Heads::site_of(PyFrameObject* frame, bool& ours) {
  const auto code = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
  const auto known = codes_.find(code.ptr());
  if (known != codes_.end() && !known->second) {
    ours = true;
    return nullptr;
  }
  const std::pair<PyObject*, int> key(code.ptr(), PyFrame_GetLasti(frame));
  const auto found = sites_.find(key);
  if (found != sites_.end()) return found->second;
  const py::object text = site_(py::handle(reinterpret_cast<PyObject*>(frame)));
  ours = text.is_none();
  if (known == codes_.end()) codes_.emplace(code.inc_ref().ptr(), !ours);
  return ours ? nullptr : sites_.emplace(key, lasting(text.cast<std::string>())).first->second;
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
      .def(py::init<py::object, py::dict, py::object, py::object, py::function, py::function, py::function>())
      .def("counts", &Heads::counts);
}

}  // namespace op_tools
