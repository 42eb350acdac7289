// The start of a call's line, without a line of Python.
#include "heads.h"

#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include "counting.h"
#include "frames.h"
#include "threads.h"

namespace op_tools {

constexpr size_t kForward = 1 << 16;  // forward calls that are remembered for their backward
constexpr uint64_t kNodes = 8;        // that one function makes at most

static thread_local OwnPart own_busy, own_stack;

static py::object word(const char* text) { return py::reinterpret_steal<py::object>(PyUnicode_InternFromString(text)); }

Heads::Heads(py::object modules, py::object local, py::function works, py::function programs, py::function site, py::function quoted)
    : modules_(std::move(modules)), local_(std::move(local)), works_(std::move(works)), programs_(std::move(programs)),
      site_(std::move(site)), quoted_(std::move(quoted)), stack_key_(word("stack")), busy_key_(word("busy")),
      frames_known_(frames_are_known()), forward_(kForward) {}

Heads::~Heads() {
  py::gil_scoped_acquire gil;  // it may be a call in another thread that held it last
  for (auto* object : {&modules_, &local_, &stack_key_, &busy_key_}) *object = py::object();
  for (auto* function : {&works_, &programs_, &site_, &quoted_}) *function = py::function();
}

std::optional<Head> Heads::head(const std::string* name, c10::DeviceType kind, bool below) {
  Now now;
  if (!look(kind, now)) {
    py::gil_scoped_acquire gil;
    look_up(kind, now);
  }
  if (now.busy || !now.works) return std::nullopt;
  const bool backward = torch::autograd::get_current_graph_task_id() != -1;
  Where where = now.where;
  const auto node = backward ? torch::autograd::get_current_node() : nullptr;
  std::lock_guard hold(lock_);
  if (backward) {  // no line of the program is on the stack; in a recomputation, its modules are
    const Where known = node ? forward_of(node->sequence_nr()) : Where();
    if (where.module == nullptr) where.module = known.module;
    if (where.site == nullptr) where.site = known.site;
  } else {
    remember(below, where);
  }
  counts_[name]++;
  return Head{next_id.fetch_add(1, std::memory_order_relaxed), current_step.load(), name, where.module, where.site, backward};
}

// Hot path. What a thread has in Python stands still while it is here: it is read without the GIL.
bool Heads::look(c10::DeviceType kind, Now& now) {
  if (!frames_known_) return false;
  PyThreadState* own = PyGILState_GetThisThreadState();  // null: nothing of Python's is in this thread
  if (own != nullptr && (!own_busy.is_known(own, local_) || !own_stack.is_known(own, modules_))) return false;
  now.busy = own != nullptr && own_busy.peek(busy_key_.ptr()) == Py_True;
  if (now.busy) return true;  // so it is in a forked child, where another thread may have had the lock
  std::lock_guard hold(lock_);
  const auto found = kinds_.find(kind);
  if (found == kinds_.end()) return false;
  now.works = found->second;
  if (!now.works || own == nullptr) return true;
  PyObject* stack = own_stack.peek(stack_key_.ptr());
  if (const Py_ssize_t depth = stack == nullptr ? 0 : PyList_GET_SIZE(stack)) {
    PyObject* path = PyTuple_GET_ITEM(PyList_GET_ITEM(stack, depth - 1), 1);
    if (!PyUnicode_IS_COMPACT_ASCII(path)) return false;
    const std::string_view text(reinterpret_cast<const char*>(PyUnicode_1BYTE_DATA(path)), static_cast<size_t>(PyUnicode_GET_LENGTH(path)));
    const auto quoted = quotes_.find(text);
    if (quoted == quotes_.end() && !text.empty()) return false;
    if (!text.empty()) now.where.module = quoted->second;
  }
  bool known = true;
  each_own_frame(own, [&](Frame frame) {
    auto* code = reinterpret_cast<PyObject*>(frame.code);
    const auto programs = codes_.find(code);
    known = programs != codes_.end();
    if (!known) return false;
    if (!programs->second) return true;
    const auto site = sites_.find({code, frame.instruction});
    known = site != sites_.end();
    if (known) now.where.site = site->second;
    return false;
  });
  return known;
}

void Heads::look_up(c10::DeviceType kind, Now& now) {
  now = {};
  now.busy = own_busy.get(local_, busy_key_.ptr()) == Py_True;
  if (now.busy) return;
  now.works = works_on(kind);
  if (now.works) now.where = {module(), site()};
}

bool Heads::works_on(c10::DeviceType kind) {
  {
    std::lock_guard hold(lock_);
    const auto found = kinds_.find(kind);
    if (found != kinds_.end()) return found->second;
  }
  const bool works = works_(c10::DeviceTypeName(kind, true)).cast<bool>();
  std::lock_guard hold(lock_);
  return kinds_[kind] = works;
}

const std::string* Heads::module() {
  PyObject* stack = own_stack.get(modules_, stack_key_.ptr());
  const Py_ssize_t depth = stack == nullptr ? 0 : PyList_GET_SIZE(stack);
  if (depth == 0) return nullptr;
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(PyTuple_GET_ITEM(PyList_GET_ITEM(stack, depth - 1), 1), &size);
  if (text == nullptr) throw py::error_already_set();
  if (size == 0) return nullptr;
  const std::string path(text, static_cast<size_t>(size));
  {
    std::lock_guard hold(lock_);
    const auto found = quotes_.find(path);
    if (found != quotes_.end()) return found->second;
  }
  const std::string* made = lasting(quoted_(path).cast<std::string>());
  std::lock_guard hold(lock_);
  return quotes_.emplace(path, made).first->second;
}

// The innermost line that is neither torch's nor ours nor Python's own.
const std::string* Heads::site() {
  const std::string* found = nullptr;
  each_frame([&](Frame frame) {
    if (!is_programs(frame.code)) return true;
    auto* code = reinterpret_cast<PyObject*>(frame.code);
    {
      std::lock_guard hold(lock_);
      const auto known = sites_.find({code, frame.instruction});
      if (known != sites_.end()) found = known->second;
    }
    if (found != nullptr) return false;
    found = lasting(site_(py::handle(code), frame.line()).cast<std::string>());
    std::lock_guard hold(lock_);
    sites_[{code, frame.instruction}] = found;
    return false;
  });
  return found;
}

bool Heads::is_programs(PyCodeObject* code) {
  auto* key = reinterpret_cast<PyObject*>(code);
  {
    std::lock_guard hold(lock_);
    const auto found = codes_.find(key);
    if (found != codes_.end()) return found->second;
  }
  const bool is = programs_(py::handle(key)).cast<bool>();
  std::lock_guard hold(lock_);
  if (codes_.emplace(key, is).second) Py_INCREF(key);
  return is;
}

// By the number of the node that autograd makes for the call: the next one. Below autograd it has been
// given, unless there is none: then no number was given since the last call.
void Heads::remember(bool below, const Where& where) {
  static thread_local uint64_t last = 0;
  const uint64_t next = at::sequence_number::peek();
  const uint64_t sequence = below && next != last && next > 0 ? next - 1 : next;
  last = next;
  forward_[sequence % kForward] = {sequence, where};
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
  Counts found;
  {
    std::lock_guard hold(lock_);
    found.swap(counts_);
  }
  py::dict made;
  for (const auto& [name, count] : found) made[py::str(*name)] = count;
  return made;
}

void bind_heads(py::module_& m) {
  py::class_<Heads, std::shared_ptr<Heads>>(m, "Heads")
      .def(py::init<py::object, py::object, py::function, py::function, py::function, py::function>())
      .def("counts", &Heads::counts);
}

}  // namespace op_tools
