// OpTimeMeasure around a call, for the calls that are like one that Python has seen: device, shapes
// and where they are made are known by comparison, and nothing is put into words before the end.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "graph.h"
#include "seen.h"

#include <ATen/SequenceNumber.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/autograd/graph_task.h>

#include <cmath>
#include <cstdio>
#include <map>

namespace py = pybind11;

namespace op_tools {
namespace {

// Numbers for values that are the same, and the values.
template <class Key, class Hash = std::hash<Key>>
struct Numbers {
  std::unordered_map<Key, int, Hash> of;
  std::vector<PyObject*> values;  // held

  int add(const Key& key, PyObject* value) {
    values.push_back(value);
    return of[key] = int(values.size()) - 1;
  }
  void clear() {
    of.clear();
    for (PyObject* value : values) Py_XDECREF(value);
    values.clear();
  }
};

// The times of some calls, as `Times` of timings.py keeps them.
struct Sums {
  int64_t count = 0;
  double total = 0, first = 0, least = INFINITY, most = 0;  // least: of those after the first
  std::map<int, int64_t> classes;

  void add(double ms) {
    if (count == 0) first = ms;
    else least = std::min(least, ms);
    most = std::max(most, ms);
    count++;
    total += ms;
    classes[ms > 0 ? int(std::nearbyint(std::log(ms) * 50)) : -1'000'000]++;
  }
  py::tuple told() const { return py::make_tuple(count, total, first, least, most, classes); }
};

}  // namespace

// One run of the tool. Everything but the hooks is done under the GIL.
class Timer {
 public:
  // `host` has what Python gives to it by name; see timer.py.
  Timer(py::object host, size_t limit)
      : limit(limit), works_on_(host.attr("works_on")), places_of_(host.attr("places_of")), new_site_(host.attr("new_site")),
        shape_of_(host.attr("shape_of")), collect_(host.attr("collect")), problem_(host.attr("problem")), counted_(host.attr("counted")),
        local_(host.attr("local")), paths_(host.attr("paths")), forward_(host.attr("forward")), trim_(host.attr("trim")),
        ids_(host.attr("ids")) {}

  ~Timer() { close(); }

  PyObject* run(PyObject* name, bool brief, PyObject* admit, PyObject* python, PyObject* func, PyObject* args, PyObject* kwargs);

  // Of the rows that are over: [(id, its line)], {group: (sums of forward, of backward)}. The cells
  // are Python's, once for each kind: cells(group, result, grads or None) -> (before, after the times).
  py::tuple take(bool everything, const py::function& cells) {
    std::deque<std::shared_ptr<Row>> rows, kept;
    rows.swap(rows_);
    std::vector<Done> done;
    {
      py::gil_scoped_release release;  // what a device waits for may need it
      for (auto& row : rows) {
        if (everything || (row->complete() && row->ready())) done.push_back(resolved(*row));
        else kept.push_back(row);
      }
    }
    rows_.insert(rows_.begin(), kept.begin(), kept.end());
    std::sort(done.begin(), done.end(), [](const Done& a, const Done& b) { return a.id < b.id; });
    py::list lines;
    std::map<int, std::pair<Sums, Sums>> times;
    for (const Done& row : done) {
      auto& [forward, backward] = times[row.group];
      forward.add(row.forward);
      if (row.spans != 0) backward.add(row.backward);
      lines.append(py::make_tuple(row.id, line_of(row, cells)));
    }
    py::dict sums;
    for (const auto& [group, pair] : times) sums[py::int_(group)] = py::make_tuple(pair.first.told(), pair.second.told());
    return py::make_tuple(lines, sums);
  }

  // name, key of shapes, module, site
  py::tuple group(int number) const { return py::reinterpret_borrow<py::tuple>(groups_.values[number]); }
  py::object result(int number) const { return py::reinterpret_borrow<py::object>(results_.values[number]); }
  py::tuple grads(int number) const { return py::cast(grads_list_[number]); }
  int64_t spent() const { return *cost_; }
  size_t waiting() const { return rows_.size(); }

  void close() {
    keys_.clear();
    groups_.clear();
    results_.clear();
  }

  size_t limit;

 private:
  struct GroupKey {
    int key;
    PyObject *path, *site;
    bool operator==(const GroupKey& o) const { return key == o.key && path == o.path && site == o.site; }
  };
  struct GroupHash {
    size_t operator()(const GroupKey& k) const { return size_t(k.key) * 0x9E3779B97F4A7C15ull ^ size_t(k.path) * 31 ^ size_t(k.site); }
  };

  struct Done {
    int64_t id;
    int group, result, grads;
    size_t spans;
    double forward, backward;
  };

  std::string line_of(const Done& row, const py::function& cells) {
    const auto [at, fresh] = cells_.try_emplace({row.group, row.result, row.spans == 0 ? -1 : row.grads});
    if (fresh) {
      py::object grads = row.spans == 0 ? py::object(py::none()) : py::object(py::int_(row.grads));
      at->second = cells(row.group, row.result, grads).cast<std::pair<std::string, std::string>>();
    }
    char times[128];
    if (row.spans == 0) std::snprintf(times, sizeof times, ",%lld,%.8f,-,ms,", static_cast<long long>(row.id), row.forward);
    else std::snprintf(times, sizeof times, ",%lld,%.8f,%.8f,ms,", static_cast<long long>(row.id), row.forward, row.backward);
    return at->second.first + times + at->second.second + "\r\n";
  }

  static Done resolved(Row& row) {
    std::lock_guard hold(row.lock);
    row.closed = true;  // a second backward pass has nobody to tell
    Done done{row.id, row.group, row.result, row.grads, row.spans.size(), row.clock->between(row.start, row.end), 0};
    for (const auto& [start, end] : row.spans) {
      done.backward += row.clock->between(start, end);
      row.clock->free(start);
      row.clock->free(end);
    }
    row.clock->free(row.start);
    row.clock->free(row.end);
    return done;
  }

  // What times the calls on a device.
  struct By {
    std::shared_ptr<Clock> clock;  // null: Python's, or
    bool nobody = false;           // the tool does not work there
  };

  const By& by(c10::Device device) {
    const auto key = std::make_pair(int(device.type()), int(device.index()));
    const auto found = clocks_.find(key);
    if (found != clocks_.end()) return found->second;
    const py::object ours = works_on_(py::reinterpret_steal<py::object>(THPDevice_New(device)));
    if (ours.is_none()) return clocks_[key] = {nullptr, true};
    return clocks_[key] = {ours.cast<bool>() ? std::make_shared<Clock>(device) : nullptr};
  }

  PyObject* site();  // borrowed; null: none
  PyObject* path();  // new; null with an error
  void follow(const Given& given, Seen& made, uint64_t sequence, const std::shared_ptr<Row>& row);
  void note(PyObject* path, PyObject* site, uint64_t sequence);
  int group_of(int key, PyObject* name, PyObject* path, PyObject* site);
  int result_of(Seen& made, PyObject* result);
  void tell(PyObject* name, const char* what);

  py::object works_on_, places_of_, new_site_, shape_of_, collect_, problem_, counted_, local_, paths_, forward_, trim_, ids_;
  std::map<std::pair<int, int>, By> clocks_;
  std::map<std::tuple<int, int, int>, std::pair<std::string, std::string>> cells_;
  std::deque<std::shared_ptr<Row>> rows_;
  std::shared_ptr<std::atomic<int64_t>> cost_ = std::make_shared<std::atomic<int64_t>>(0);
  Numbers<Words, WordsHash> keys_;  // null: not for us
  Numbers<GroupKey, GroupHash> groups_;
  Numbers<Words, WordsHash> results_;
  std::map<std::vector<int>, int> grads_of_;
  std::vector<std::vector<int>> grads_list_;
  std::unordered_map<PyObject*, PyObject*> codes_;  // code -> dict of sites by instruction, or None
};

namespace {
PyObject* word(const char* text) { return PyUnicode_InternFromString(text); }

struct Owned {  // a reference that is let go of
  PyObject* object;
  explicit Owned(PyObject* object) : object(object) {}
  Owned(const Owned&) = delete;
  ~Owned() { Py_XDECREF(object); }
};
}  // namespace

PyObject* Timer::site() {
  PyFrameObject* frame = PyEval_GetFrame();
  Py_XINCREF(frame);
  PyObject* found = nullptr;
  while (frame != nullptr && found == nullptr) {
    Owned code(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
    auto known = codes_.find(code.object);
    if (known == codes_.end()) {
      py::object places = places_of_(py::handle(code.object));  // held, with the code, by Python
      known = codes_.emplace(code.object, places.ptr()).first;
    }
    if (known->second != Py_None) {
      Owned at(PyLong_FromLong(PyFrame_GetLasti(frame)));
      found = PyDict_GetItem(known->second, at.object);  // borrowed
      if (found == nullptr) {
        py::object made = new_site_(py::handle(code.object), PyFrame_GetLasti(frame), PyFrame_GetLineNumber(frame));
        found = made.ptr();  // held by that dict
      }
    }
    PyFrameObject* back = found == nullptr ? PyFrame_GetBack(frame) : nullptr;
    Py_DECREF(frame);
    frame = back;
  }
  Py_XDECREF(frame);
  return found == nullptr ? Py_None : found;
}

PyObject* Timer::path() {
  static PyObject* const stack_word = word("stack");
  Owned stack(PyObject_GetAttr(paths_.ptr(), stack_word));
  if (stack.object == nullptr) throw py::error_already_set();
  const Py_ssize_t depth = PyList_GET_SIZE(stack.object);
  static PyObject* const nowhere = word("");
  PyObject* found = depth == 0 ? nowhere : PyTuple_GET_ITEM(PyList_GET_ITEM(stack.object, depth - 1), 1);
  Py_INCREF(found);
  return found;
}

// For what the backward pass calls: which module and line it comes from; see modules.py.
void Timer::note(PyObject* path, PyObject* site, uint64_t sequence) {
  Owned number(PyLong_FromUnsignedLongLong(sequence)), pair(PyTuple_Pack(2, path, site));
  if (PyObject_SetItem(forward_.ptr(), number.object, pair.object) < 0) throw py::error_already_set();
  if (PyDict_Size(forward_.ptr()) > 50'000) trim_();
}

int Timer::group_of(int key, PyObject* name, PyObject* path, PyObject* site) {
  const GroupKey wanted{key, path, site};
  const auto found = groups_.of.find(wanted);
  if (found != groups_.of.end()) return found->second;
  // holds path and site, so that their addresses stay theirs
  return groups_.add(wanted, PyTuple_Pack(4, name, keys_.values[key], path, site));
}

int Timer::result_of(Seen& made, PyObject* result) {
  if (made.plain) {
    const auto found = results_.of.find(made.words);
    if (found != results_.of.end()) return found->second;
  }
  PyObject* shape = shape_of_(py::handle(result)).release().ptr();
  if (made.plain) return results_.add(made.words, shape);
  results_.values.push_back(shape);
  return int(results_.values.size()) - 1;
}

void Timer::follow(const Given& given, Seen& made, uint64_t sequence, const std::shared_ptr<Row>& row) {
  const Part part(given, made.tensors, sequence);
  if (part.nodes.empty()) return;
  const auto stretches = part.stretches();
  const auto [at, fresh] = grads_of_.try_emplace(part.places, int(grads_list_.size()));
  if (fresh) grads_list_.push_back(part.places);
  row->grads = at->second;
  auto nodes = std::make_shared<Nodes>();
  nodes->row = row;
  nodes->cost = cost_;
  nodes->waiting = int(stretches.size());
  row->nodes = nodes;
  for (const auto& [first, last] : stretches) {
    auto stretch = std::make_shared<Stretch>();
    stretch->nodes = nodes;
    first->add_pre_hook(std::make_unique<Enter>(stretch));
    last->add_post_hook(std::make_unique<Leave>(stretch));
  }
}

void Timer::tell(PyObject* name, const char* what) {
  try {
    problem_(py::handle(name), what);
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("op_tools");
  }
}

namespace {
bool inside_functorch() { return c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode); }

struct Begun {  // what is known of a call before it is made
  std::shared_ptr<Row> row;
  std::unique_ptr<Given> given;
  uint64_t sequence = 0;
};
}  // namespace

PyObject* Timer::run(PyObject* name, bool brief, PyObject* admit, PyObject* python, PyObject* func, PyObject* args, PyObject* kwargs) {
  const int64_t entered = now();
  static PyObject* const busy_word = word("busy");
  Begun begun;
  try {
    Owned busy(PyObject_GetAttr(local_.ptr(), busy_word));
    if (busy.object == nullptr) throw py::error_already_set();
    if (busy.object != Py_False) return PyObject_Call(func, args, kwargs);
    Seen seen;
    seen.brief = brief;
    seen.words.push_back(uint64_t(name));  // held by the plan
    see(args, seen);
    PyObject *key, *value;
    for (Py_ssize_t at = 0; seen.plain && PyDict_Next(kwargs, &at, &key, &value);) {
      see_hashed(key, 10, seen);
      see(value, seen);
    }
    c10::Device device(c10::kCPU);
    for (const at::Tensor* tensor : seen.tensors)
      if (!tensor->is_cpu()) {
        device = tensor->device();
        break;
      }
    const bool by_python = !seen.plain || seen.tensors.empty() || device.is_meta() || inside_functorch() ||
                           torch::autograd::get_current_graph_task_id() != -1;
    if (!by_python && by(device).nobody) return PyObject_Call(func, args, kwargs);
    const std::shared_ptr<Clock> marks = by_python ? nullptr : by(device).clock;
    if (marks != nullptr) {
      auto known = keys_.of.find(seen.words);
      if (known == keys_.of.end()) {  // the first of its kind goes through Python, which sizes it up
        Owned all(PyTuple_Pack(3, func, args, kwargs));
        PyObject* result = PyObject_Call(python, all.object, nullptr);
        if (result == nullptr) return nullptr;
        Owned kind(PyObject_CallFunctionObjArgs(admit, args, kwargs, nullptr));
        if (kind.object == nullptr) PyErr_WriteUnraisable(admit);
        const bool ours = kind.object != nullptr && kind.object != Py_None;
        keys_.add(seen.words, ours ? (Py_INCREF(kind.object), kind.object) : nullptr);
        return result;
      }
      if (keys_.values[known->second] != nullptr) {
        begun.row = std::make_shared<Row>();
        begun.row->clock = marks;
        begun.sequence = at::sequence_number::peek();
        if (!brief && c10::GradMode::is_enabled()) begun.given = std::make_unique<Given>(seen.tensors);
        Owned where(path());
        PyObject* line = site();
        note(where.object, line, begun.sequence);
        begun.row->group = group_of(known->second, name, where.object, line);
        Owned id(PyIter_Next(ids_.ptr()));
        begun.row->id = PyLong_AsLongLong(id.object);
        counted_();
        *cost_ += now() - entered;
        begun.row->start = marks->mark();
      }
    }
  } catch (std::exception& error) {  // a tool must not kill the program that it watches
    PyErr_Clear();
    tell(name, error.what());
    begun.row = nullptr;
    return PyObject_Call(func, args, kwargs);
  }
  if (begun.row == nullptr) {
    Owned all(PyTuple_Pack(3, func, args, kwargs));
    return PyObject_Call(python, all.object, nullptr);
  }
  PyObject* result = PyObject_Call(func, args, kwargs);
  if (result == nullptr) {
    begun.row->clock->free(begun.row->start);
    return nullptr;
  }
  try {
    begun.row->end = begun.row->clock->mark();
    const int64_t returned = now();
    Seen made;
    made.brief = brief;
    see(result, made);
    begun.row->result = result_of(made, result);
    if (begun.given != nullptr && begun.given->wanted()) {
      begun.given->find_leaves();
      follow(*begun.given, made, begun.sequence, begun.row);
    }
    rows_.push_back(begun.row);
    if (rows_.size() >= limit) collect_();
    *cost_ += now() - returned;
  } catch (std::exception& error) {
    PyErr_Clear();
    tell(name, error.what());
  }
  return result;
}

namespace {

// What a plan calls: `timed(func, args, kwargs)`, for one operator.
struct Timed {
  PyObject_HEAD
  std::shared_ptr<Timer>* timer;
  PyObject *name, *admit, *python;
  bool brief;
};

PyObject* timed_call(PyObject* self, PyObject* args, PyObject*) {
  auto* timed = reinterpret_cast<Timed*>(self);
  if (PyTuple_GET_SIZE(args) != 3) {
    PyErr_SetString(PyExc_TypeError, "a function, its arguments and those by name");
    return nullptr;
  }
  auto timer = *timed->timer;  // it may be stopped meanwhile
  return timer->run(timed->name, timed->brief, timed->admit, timed->python, PyTuple_GET_ITEM(args, 0), PyTuple_GET_ITEM(args, 1),
                    PyTuple_GET_ITEM(args, 2));
}

void timed_free(PyObject* self) {
  auto* timed = reinterpret_cast<Timed*>(self);
  PyTypeObject* type = Py_TYPE(self);
  delete timed->timer;
  Py_XDECREF(timed->name);
  Py_XDECREF(timed->admit);
  Py_XDECREF(timed->python);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* timed_type() {
  static PyType_Slot slots[] = {{Py_tp_call, reinterpret_cast<void*>(timed_call)}, {Py_tp_dealloc, reinterpret_cast<void*>(timed_free)}, {0, nullptr}};
  static PyType_Spec spec{"op_tools._C.Timed", sizeof(Timed), 0, Py_TPFLAGS_DEFAULT, slots};
  static PyObject* type = PyType_FromSpec(&spec);
  return type;
}

py::object timed(std::shared_ptr<Timer> timer, py::object name, bool brief, py::object admit, py::object python) {
  auto* type = reinterpret_cast<PyTypeObject*>(timed_type());
  PyObject* made = type->tp_alloc(type, 0);
  auto* own = reinterpret_cast<Timed*>(made);
  own->timer = new std::shared_ptr<Timer>(std::move(timer));
  own->name = name.release().ptr();
  own->admit = admit.release().ptr();
  own->python = python.release().ptr();
  own->brief = brief;
  return py::reinterpret_steal<py::object>(made);
}

}  // namespace

void bind_timing(py::module_& m) {
  py::class_<Timer, std::shared_ptr<Timer>>(m, "Timer")
      .def(py::init<py::object, size_t>())
      .def("timed", &timed)
      .def("take", &Timer::take)
      .def("group", &Timer::group)
      .def("result", &Timer::result)
      .def("grads", &Timer::grads)
      .def_property_readonly("spent", &Timer::spent)
      .def_property_readonly("waiting", &Timer::waiting)
      .def_readwrite("limit", &Timer::limit);
}

}  // namespace op_tools
