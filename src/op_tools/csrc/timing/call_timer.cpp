// OpTimeMeasure around a call, for the calls that are like one that Python has seen: device, shapes
// and where they are made are known by comparison, and nothing is put into words before the end.
#include "call_timer.h"

#include <pybind11/stl.h>

#include <ATen/SequenceNumber.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/autograd/graph_task.h>

#include <optional>

#include "../call/ids.h"
#include "../call/python_frames.h"

namespace op_tools {

Timer::Timer(py::object host, size_t limit)
    : works_on_(host.attr("works_on")), places_of_(host.attr("places_of")), new_site_(host.attr("new_site")),
      shape_of_(host.attr("shape_of")), collect_(host.attr("collect")), problem_(host.attr("problem")), local_(host.attr("local")),
      paths_(host.attr("paths")), ledger_(std::make_unique<Ledger>(limit)) {}

void Timer::close() {
  keys_.clear();
  groups_.clear();
  results_.clear();
  met_.clear();
  last_ = -1;
}

const Timer::By& Timer::by(c10::Device device) {
  const auto key = std::make_pair(int(device.type()), int(device.index()));
  const auto found = clocks_.find(key);
  if (found != clocks_.end()) return found->second;
  const py::object ours = works_on_(py::reinterpret_steal<py::object>(THPDevice_New(device)));
  if (ours.is_none()) return clocks_[key] = {nullptr, true};
  return clocks_[key] = {ours.cast<bool>() ? std::make_shared<Clock>(device) : nullptr};
}

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
  PyObject* found = Py_None;
  each_frame([&](Frame frame) {
    auto* code = reinterpret_cast<PyObject*>(frame.code);
    auto known = codes_.find(code);
    if (known == codes_.end()) known = codes_.emplace(code, Code{!places_of_(py::handle(code)).is_none(), {}}).first;
    if (!known->second.programs) return true;
    PyObject*& site = known->second.sites[frame.instruction];
    if (site == nullptr) site = new_site_(py::handle(code), frame.instruction, frame.line()).ptr();
    found = site;
    return false;
  });
  return found;
}

PyObject* Timer::path() {
  static PyObject* const stack_word = word("stack");
  static PyObject* const nowhere = word("");
  thread_local LocalDict dict;
  PyObject* stack = dict.get(paths_, stack_word);
  const Py_ssize_t depth = stack == nullptr ? 0 : PyList_GET_SIZE(stack);
  return depth == 0 ? nowhere : PyTuple_GET_ITEM(PyList_GET_ITEM(stack, depth - 1), 1);
}

bool Timer::busy() {
  static PyObject* const busy_word = word("busy");
  thread_local LocalDict dict;
  PyObject* busy = dict.get(local_, busy_word);
  return busy != nullptr && busy != Py_False;
}

// For what the backward pass calls: which module and line it comes from; see modules.py.
py::object Timer::made(uint64_t sequence) const {
  const auto& [number, group] = made_[sequence % kRemembered];
  if (number != sequence || size_t(group) >= groups_.values.size()) return py::none();
  return py::make_tuple(py::handle(PyTuple_GET_ITEM(groups_.values[group], 2)), py::handle(PyTuple_GET_ITEM(groups_.values[group], 3)));
}

const Timer::Kind* Timer::kind_of(const Words& words) const {
  const Met* guess = expected();
  if (guess != nullptr && guess->kind->first == words) return guess->kind;
  const auto found = keys_.of.find(words);
  return found == keys_.of.end() ? nullptr : &*found;
}

int Timer::group_of(const Kind& kind, PyObject* name, PyObject* path, PyObject* site) {
  const Met* guess = expected();
  if (guess != nullptr && guess->kind == &kind && guess->path == path && guess->site == site) return last_ = met_[last_].next;
  const GroupKey wanted{kind.second, path, site};
  const auto found = groups_.of.find(wanted);
  int group;
  if (found != groups_.of.end()) {
    group = found->second;
  } else {  // holds path and site, so that their addresses stay theirs
    group = groups_.add(wanted, PyTuple_Pack(4, name, keys_.values[kind.second], path, site));
    met_.push_back({&kind, path, site});
  }
  if (last_ >= 0) met_[last_].next = group;
  return last_ = group;
}

int Timer::result_of(int group, Signature& made, PyObject* result) {
  if (made.plain) {
    const Kind* before = met_[group].result;
    if (before != nullptr && before->first == made.words) return before->second;
    const auto found = results_.of.find(made.words);
    if (found != results_.of.end()) return met_[group].result = &*found, found->second;
  }
  PyObject* shape = shape_of_(py::handle(result)).release().ptr();
  if (made.plain) return results_.add(made.words, shape);
  results_.values.push_back(shape);
  return int(results_.values.size()) - 1;
}

void Timer::follow(ArgumentEdges& given, Signature& made, uint64_t sequence, const std::shared_ptr<Row>& row) {
  CallRegion region(given, made.tensors, sequence);
  if (region.members.empty()) return;
  const auto stretches = stretches_of(region);
  const Places places = argument_places(region);
  const auto [at, fresh] = grads_of_.try_emplace(places, int(grads_list_.size()));
  if (fresh) grads_list_.push_back(places);
  row->grads = at->second;
  row->waiting = int(stretches.size());
  row->stretches.resize(stretches.size());
  for (size_t i = 0; i < stretches.size(); i++) {
    const auto& [first, last, idle] = stretches[i];
    row->stretches[i].still = idle && !row->clock->is_host();
    first->add_pre_hook(std::make_unique<Enter>(row, i));
    if (!row->stretches[i].still) last->add_post_hook(std::make_unique<Leave>(row, i, first == last && is_of_a_formula(*first)));
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
}  // namespace

// The arguments of a call.
struct Timer::Passed {
  PyObject *args, *kwargs;

  // The device of the first tensor that is not the CPU's.
  c10::Device read_all(Signature& seen) const {
    read_items(&PyTuple_GET_ITEM(args, 0), PyTuple_GET_SIZE(args), seen);
    PyObject *key, *value;
    for (Py_ssize_t at = 0; seen.plain && PyDict_Next(kwargs, &at, &key, &value);) {
      read_hash(key, 10, seen);
      read(value, seen);
    }
    for (const at::Tensor* tensor : seen.tensors)
      if (!tensor->is_cpu()) return tensor->device();
    return c10::kCPU;
  }

  // Whether an argument names the CPU: `torch.tensor(1.0, device="cpu")`, as optimizers do.
  bool names_the_host() const {
    static PyObject* const device = word("device");
    PyObject* found = PyDict_GetItemWithError(kwargs, device);
    return found != nullptr && PyUnicode_CheckExact(found) && PyUnicode_CompareWithASCIIString(found, "cpu") == 0;
  }
};

struct Timer::Begun {
  std::shared_ptr<Row> row;
  std::optional<ArgumentEdges> given;
  uint64_t sequence = 0;
};

std::shared_ptr<Row> Timer::begin(PyObject* name, const Kind& kind, const std::shared_ptr<Clock>& clock, uint64_t sequence) {
  auto row = ledger_->new_row();
  row->clock = clock;
  row->group = group_of(kind, name, path(), site());
  made_[sequence % kRemembered] = {sequence, row->group};
  row->id = next_id.fetch_add(1, std::memory_order_relaxed);
  counted_++;
  return row;
}

void Timer::finish(Begun& begun, bool brief, PyObject* result) {
  Signature made;
  made.brief = brief;
  read(result, made);
  begun.row->result = result_of(begun.row->group, made, result);
  if (begun.given.has_value() && begun.given->any()) {
    begun.given->find_leaves();
    follow(*begun.given, made, begun.sequence, begun.row);
  }
  ledger_->add(std::move(begun.row));
  if (ledger_->is_full()) collect_();
}

Timer::Whose Timer::look(const Of& of, const Passed& passed, Signature& seen, Begun& begun) {
  const int64_t entered = now();
  try {
    if (busy()) return Whose::nobodys;
    seen.brief = of.brief;
    seen.words.push_back(uint64_t(of.name));  // held by the plan
    const c10::Device device = passed.read_all(seen);
    if (seen.plain && seen.tensors.empty() && passed.names_the_host() && by(c10::kCPU).nobody) return Whose::nobodys;
    if (!seen.plain || seen.tensors.empty() || device.is_meta() || inside_functorch() || torch::autograd::get_current_graph_task_id() != -1)
      return Whose::pythons;
    const By& timed_by = by(device);
    if (timed_by.nobody) return Whose::nobodys;
    if (timed_by.clock == nullptr) return Whose::pythons;
    const Kind* known = kind_of(seen.words);
    if (known == nullptr) return Whose::first;
    if (keys_.values[known->second] == nullptr) return Whose::pythons;
    begun.sequence = at::sequence_number::peek();
    if (!of.brief && c10::GradMode::is_enabled()) begun.given.emplace(seen.tensors);
    begun.row = begin(of.name, *known, timed_by.clock, begun.sequence);
    begun.row->still = of.view && !timed_by.clock->is_host();
    cost_ += now() - entered;
    begun.row->start = begun.row->mark();
    return Whose::ours;
  } catch (std::exception& error) {  // a tool must not kill the program that it watches
    PyErr_Clear();
    tell(of.name, error.what());
    return Whose::nobodys;
  }
}

void Timer::end(const Of& of, Begun& begun, PyObject* result) {
  if (result == nullptr || result == Py_NotImplemented) return begun.row->clock->free(begun.row->start);
  try {
    begun.row->end = begun.row->mark();
    const int64_t returned = now();
    finish(begun, of.brief, result);
    cost_ += now() - returned;
  } catch (std::exception& error) {
    PyErr_Clear();
    tell(of.name, error.what());
  }
}

// The first of its kind goes through Python, which sizes it up.
PyObject* Timer::sized_up(const Of& of, const Signature& seen, PyObject* func, PyObject* args, PyObject* kwargs) {
  PyObject* const all[] = {func, args, kwargs};
  PyObject* result = PyObject_Vectorcall(of.python, all, 3, nullptr);
  if (result == nullptr) return nullptr;
  Owned kind(PyObject_CallFunctionObjArgs(of.admit, args, kwargs, nullptr));
  if (kind.object == nullptr) PyErr_WriteUnraisable(of.admit);
  const bool ours = kind.object != nullptr && kind.object != Py_None;
  keys_.add(seen.words, ours ? Py_NewRef(kind.object) : nullptr);
  return result;
}

PyObject* Timer::run(const Of& of, PyObject* func, PyObject* args, PyObject* kwargs) {
  Signature seen;
  Begun begun;
  PyObject* const all[] = {func, args, kwargs};
  switch (look(of, Passed{args, kwargs}, seen, begun)) {
    case Whose::nobodys: return PyObject_Call(func, args, kwargs);
    case Whose::pythons: return PyObject_Vectorcall(of.python, all, 3, nullptr);
    case Whose::first: return sized_up(of, seen, func, args, kwargs);
    case Whose::ours: break;
  }
  PyObject* result = PyObject_Call(func, args, kwargs);
  end(of, begun, result);
  return result;
}

namespace {

// The calls of one function: `timed(func, args, kwargs)`.
class TimedFunction {
 public:
  TimedFunction(std::shared_ptr<Timer> timer, py::object name, bool brief, bool view, py::object admit, py::object python)
      : timer_(std::move(timer)), name_(std::move(name)), admit_(std::move(admit)), python_(std::move(python)),
        of_{name_.ptr(), admit_.ptr(), python_.ptr(), brief, view} {}

  py::object operator()(const py::object& func, const py::tuple& args, const py::dict& kwargs) {
    const auto timer = timer_;  // the tool may be stopped in the call, and this object with it
    const py::object name = name_, admit = admit_, python = python_;
    PyObject* result = timer->run(Timer::Of(of_), func.ptr(), args.ptr(), kwargs.ptr());
    if (result == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(result);
  }

 private:
  const std::shared_ptr<Timer> timer_;
  const py::object name_, admit_, python_;
  const Timer::Of of_;
};

}  // namespace

void bind_call_timer(py::module_& m) {
  py::class_<TimedFunction>(m, "TimedFunction").def("__call__", &TimedFunction::operator());
  py::class_<Timer, std::shared_ptr<Timer>>(m, "Timer")
      .def(py::init<py::object, size_t>())
      .def("timed", [](const std::shared_ptr<Timer>& self, py::object name, bool brief, bool view, py::object admit, py::object python) {
        return TimedFunction(self, std::move(name), brief, view, std::move(admit), std::move(python));
      })
      .def("settle", &Timer::settle)
      .def("stop_asking", &Timer::stop_asking, py::call_guard<py::gil_scoped_release>())
      .def("lines", &Timer::lines)
      .def("sums", &Timer::sums)
      .def("made", &Timer::made)
      .def("counted", &Timer::counted)
      .def("group", &Timer::group)
      .def("result", &Timer::result)
      .def("grads", &Timer::grads)
      .def_property_readonly("spent", &Timer::spent)
      .def_property_readonly("waiting", &Timer::waiting)
      .def_property("limit", &Timer::limit, &Timer::set_limit);
}

}  // namespace op_tools
