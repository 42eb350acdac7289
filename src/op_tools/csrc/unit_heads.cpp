// The start of a call's line, without a line of Python.
#include "heads.h"

#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include "counting.h"

namespace op_tools {

constexpr size_t kForward = 1 << 16;  // forward calls that are remembered for their backward
constexpr uint64_t kNodes = 8;        // that one function makes at most

static py::object word(const char* text) { return py::reinterpret_steal<py::object>(PyUnicode_InternFromString(text)); }

static std::atomic<uint64_t> made{0};

Heads::Heads(py::object modules, py::object local, py::function works, py::function programs, py::function site, py::function quoted)
    : number_(++made), modules_(std::move(modules)), local_(std::move(local)), works_(std::move(works)), programs_(std::move(programs)),
      site_(std::move(site)), quoted_(std::move(quoted)), stack_key_(word("stack")), busy_key_(word("busy")),
      frames_known_(frames_are_known()), forward_(new Remembered[kForward]) {
  for (auto& kind : kinds_) kind = -1;
}

Heads::~Heads() {
  py::gil_scoped_acquire gil;  // it may be a call in another thread that held it last
  for (auto* object : {&modules_, &local_, &stack_key_, &busy_key_}) *object = py::object();
  for (auto* function : {&works_, &programs_, &site_, &quoted_}) *function = py::function();
}

static size_t slot(const void* address) { return (reinterpret_cast<uint64_t>(address) * 0x9E3779B97F4A7C15ull) >> 56; }

Heads::Own& Heads::own() {
  static thread_local Own found;
  return found;
}

std::optional<Head> Heads::head(const std::string* name, c10::DeviceType kind, bool below, Count* count) {
  Own& own = this->own();
  if (own.of != number_) {  // what it knows is of another
    own.codes = {}, own.sites = {}, own.counted = {}, own.module = nullptr;
    own.of = number_;
  }
  Now now;
  if (!look(own, kind, now)) {
    py::gil_scoped_acquire gil;
    look_up(own, kind, now);
  }
  if (now.busy || !now.works) return std::nullopt;
  const bool backward = torch::autograd::get_current_graph_task_id() != -1;
  Where& where = now.where;
  if (backward) {  // no line of the program is on the stack; in a recomputation, its modules are
    const auto node = torch::autograd::get_current_node();
    const Where known = node ? forward_of(node->sequence_nr()) : Where();
    if (where.module == nullptr) where.module = known.module;
    if (where.site == nullptr) where.site = known.site;
  } else {
    remember(own, below, where);
  }
  if (count == nullptr) {
    auto& counted = own.counted[slot(name)];
    if (counted.name != name) counted = {name, count_of(name)};
    count = counted.count;
  }
  count->fetch_add(1, std::memory_order_relaxed);
  return Head{next_id.fetch_add(1, std::memory_order_relaxed), current_step.load(), name, where.module, where.site, backward};
}

// Hot path. What a thread has in Python stands still while it is here: it is read without the GIL.
bool Heads::look(Own& own, c10::DeviceType kind, Now& now) {
  if (!frames_known_) return false;
  PyThreadState* state = PyGILState_GetThisThreadState();  // null: nothing of Python's is in this thread
  if (state != nullptr && (!own.busy.is_known(state, local_) || !own.stack.is_known(state, modules_))) return false;
  now.busy = state != nullptr && own.busy.peek(busy_key_.ptr()) == Py_True;
  if (now.busy) return true;  // so it is in a forked child, where another thread may have had the lock
  const int8_t works = kinds_[static_cast<size_t>(kind)].load(std::memory_order_relaxed);
  if (works < 0) return false;
  now.works = works > 0;
  if (!now.works || state == nullptr) return true;
  return look_at_module(own, now) && look_at_site(own, state, now);
}

bool Heads::look_at_module(Own& own, Now& now) {
  PyObject* stack = own.stack.peek(stack_key_.ptr());
  const Py_ssize_t depth = stack == nullptr ? 0 : PyList_GET_SIZE(stack);
  if (depth == 0) return true;
  PyObject* path = PyTuple_GET_ITEM(PyList_GET_ITEM(stack, depth - 1), 1);
  if (!PyUnicode_IS_COMPACT_ASCII(path)) return false;
  const std::string_view text(reinterpret_cast<const char*>(PyUnicode_1BYTE_DATA(path)), static_cast<size_t>(PyUnicode_GET_LENGTH(path)));
  if (text.empty()) return true;
  if (own.module == nullptr || own.path != text) {
    std::lock_guard hold(lock_);
    const auto quoted = quotes_.find(text);
    if (quoted == quotes_.end()) return false;
    own.path = text, own.module = quoted->second;
  }
  now.where.module = own.module;
  return true;
}

bool Heads::look_at_site(Own& own, const PyThreadState* state, Now& now) {
  bool known = true;
  const auto is_torchs = [&](const PyCodeObject* code) {
    const auto found = programs(own, code);
    known = found.has_value();
    return known && !*found;
  };
  each_own_frame(state, is_torchs, [&](const Frame& frame) {
    if (known) now.where.site = site_of(own, frame), known = now.where.site != nullptr;
    return false;
  });
  return known;
}

std::optional<bool> Heads::programs(Own& own, const PyCodeObject* code) {
  const auto address = reinterpret_cast<uint64_t>(code);
  uint64_t& found = own.codes[slot(code)];
  if ((found & ~uint64_t{1}) == address) return (found & 1) != 0;
  std::lock_guard hold(lock_);
  const auto known = codes_.find(reinterpret_cast<PyObject*>(const_cast<PyCodeObject*>(code)));
  if (known == codes_.end()) return std::nullopt;
  found = address | uint64_t{known->second};
  return known->second;
}

const std::string* Heads::site_of(Own& own, const Frame& frame) {
  const uint64_t at = reinterpret_cast<uint64_t>(frame.code) + static_cast<uint64_t>(frame.instruction);
  auto& found = own.sites[slot(reinterpret_cast<const void*>(at))];
  if (found.at == at) return found.site;
  std::lock_guard hold(lock_);
  const auto known = sites_.find({reinterpret_cast<PyObject*>(frame.code), frame.instruction});
  if (known == sites_.end()) return nullptr;
  found = {at, known->second};
  return found.site;
}

Heads::Count* Heads::count_of(const std::string* name) {
  std::lock_guard hold(lock_);
  return &counts_[name];
}

void Heads::look_up(Own& own, c10::DeviceType kind, Now& now) {
  now = {};
  now.busy = own.busy.get(local_, busy_key_.ptr()) == Py_True;
  if (now.busy) return;
  now.works = works_on(kind);
  if (now.works) now.where = {module(own), site()};
}

bool Heads::works_on(c10::DeviceType kind) {
  auto& known = kinds_[static_cast<size_t>(kind)];
  if (known.load() < 0) known = works_(c10::DeviceTypeName(kind, true)).cast<bool>();
  return known.load() > 0;
}

const std::string* Heads::module(Own& own) {
  PyObject* stack = own.stack.get(modules_, stack_key_.ptr());
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
void Heads::remember(Own& own, bool below, const Where& where) {
  const uint64_t next = at::sequence_number::peek();
  const uint64_t sequence = below && next != own.last && next > 0 ? next - 1 : next;
  own.last = next;
  Remembered& to = forward_[sequence % kForward];
  to.sequence.store(UINT64_MAX, std::memory_order_relaxed);
  to.module.store(where.module, std::memory_order_release);
  to.site.store(where.site, std::memory_order_release);
  to.sequence.store(sequence, std::memory_order_release);
}

// Of the nearest call at or before a node: a function makes several of them.
Heads::Where Heads::forward_of(uint64_t sequence) const {
  for (uint64_t back = 0; back < kNodes && back <= sequence; back++) {
    const Remembered& found = forward_[(sequence - back) % kForward];
    if (found.sequence.load(std::memory_order_acquire) != sequence - back) continue;
    const Where where{found.module.load(std::memory_order_acquire), found.site.load(std::memory_order_acquire)};
    if (found.sequence.load(std::memory_order_acquire) == sequence - back) return where;
  }
  return {};
}

py::dict Heads::counts() {
  std::vector<std::pair<const std::string*, int64_t>> found;
  {
    std::lock_guard hold(lock_);
    for (auto& [name, count] : counts_) found.emplace_back(name, count.exchange(0));
  }
  py::dict made;
  for (const auto& [name, count] : found)
    if (count > 0) made[py::str(*name)] = count;
  return made;
}

void bind_heads(py::module_& m) {
  py::class_<Heads, std::shared_ptr<Heads>>(m, "Heads")
      .def(py::init<py::object, py::object, py::function, py::function, py::function, py::function>())
      .def("counts", &Heads::counts);
}

}  // namespace op_tools
