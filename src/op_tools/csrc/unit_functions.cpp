// Calls at the level of torch's functions that a recorder writes down, without a line of Python.
#include "flow.h"

#include <structmember.h>

#include <ATen/SequenceNumber.h>
#include <c10/core/GradMode.h>

#include "found.h"
#include "heads.h"
#include "modes.h"

namespace op_tools {
namespace {

// What a plan calls: `recorded(func, args, kwargs)`, for one operator; `python` does what this does not.
struct Function {
  PyObject_HEAD
  vectorcallfunc call;
  std::shared_ptr<Recorder>* recorder;
  std::shared_ptr<Heads>* heads;
  const std::string* name;
  PyObject* python;
  bool writes;     // or it may: its arguments are looked at before it
  bool uncounted;  // it writes its first one, which may not be counted
};

// Without the GIL where the host reads some of them: that takes long, and waits for their device.
using Reading = std::optional<py::gil_scoped_release>;

// Tensors, and how the values of each are found.
struct Ways {
  c10::SmallVector<Recorder::Way, 8> each;
  bool far = true;  // their device reduces them all

  void find(Recorder& recorder, const Tensors& tensors) {
    each.clear(), far = true;
    for (const at::Tensor* tensor : tensors) {
      each.push_back(recorder.way(*tensor));
      far = far && each.back() == Recorder::Way::device;
    }
  }
};

enum class Verdict { recorded, pythons, nobodys };

// One call: what is known of it. Used again by its thread, with the memory that it has.
struct Call {
  Recorder* recorder;
  Found given, made;
  Ways ways, made_ways;
  Head head;
  Raw raw;
  std::optional<Given> arguments;
  c10::SmallVector<uint32_t, 8> versions, written;  // counts of writes before the call; places of what it wrote
  uint64_t sequence;
  size_t declared;  // of the arguments that come first, so many are written, whether that is counted or not
  bool early, put_off;  // its arguments are read before it; nothing is taken of them before it

  void reset(Recorder& whose) {
    recorder = &whose;
    given.clear(), made.clear(), versions.clear(), written.clear(), raw.clear(), arguments.reset();
  }

  bool is_simple() {
    if (!given.plain || given.tensors.empty() || is_under_mode()) return false;
    ways.find(*recorder, given.tensors);
    for (size_t i = 0; i < given.tensors.size(); i++)
      if (ways.each[i] == Recorder::Way::none || given.tensors[i]->is_inference()) return false;
    return true;
  }

  // Whether it is one to write down here; its arguments are `given`.
  Verdict begin(Heads& heads, const std::string* name) {
    if (!is_simple()) return Verdict::pythons;
    sequence = at::sequence_number::peek();
    const auto found = heads.head(name, kind_of(given.tensors));
    if (!found) return Verdict::nobodys;
    head = *found;
    raw.head(head);
    if (c10::GradMode::is_enabled()) arguments.emplace(given.tensors);
    return Verdict::recorded;
  }

  // `now`: on the device, too. Else with what comes after the call, unless that has written it; all of it then, where nothing but
  // torch itself runs meanwhile (`alone`): the way here is long, and gone once for both.
  void look(bool now, bool alone) {
    early = now, put_off = alone && !now && ways.far;
    if (put_off) {
      for (size_t i = 0; i < given.tensors.size(); i++) versions.push_back(count(i));
      return;
    }
    Reading reading;
    if (!ways.far) reading.emplace();
    auto hold = recorder->hold();
    for (size_t i = 0; i < given.tensors.size(); i++) {
      recorder->tensor(hold, ways.each[i], raw, *given.tensors[i]);
      versions.push_back(count(i));
    }
    hold.free();
    if (now) recorder->settle_at_once();
  }

  // Whether it has written none of its arguments; what it made is `made`.
  bool end() {
    made_ways.find(*recorder, made.tensors);
    auto hold = recorder->hold();
    find_written(hold);
    Reading reading;
    if (!ways.far || !made_ways.far) hold.free(), reading.emplace();
    if (put_off || (!written.empty() && !early)) look_again(hold);
    raw.outputs();
    for (size_t i = 0; i < made.tensors.size(); i++) recorder->tensor(hold, made_ways.each[i], raw, *made.tensors[i]);
    size_t next = 0;  // of what was made: mostly in the same order
    for (const uint32_t place : written) {
      const at::Tensor& tensor = *given.tensors[place];
      const auto is_it = [&](const at::Tensor* other) { return other->is_same(tensor); };
      if (next < made.tensors.size() && is_it(made.tensors[next])) {
        next++;
        continue;
      }
      if (std::any_of(made.tensors.begin(), made.tensors.end(), is_it)) continue;
      raw.mutated(place);
      recorder->tensor(hold, ways.each[place], raw, tensor);
    }
    hold.free();
    raw.end();
    recorder->call_over();
    recorder->add(raw);
    return written.empty();
  }

  uint32_t count(size_t place) const { return given.tensors[place]->unsafeGetTensorImpl()->version_counter().current_version(); }

  // Not by the count alone: CUDA's own `_foreach_lerp_` counts nothing.
  void find_written(Batch::Hold& hold) {
    for (size_t i = 0; i < given.tensors.size(); i++) {
      if (i >= declared && count(i) == versions[i]) continue;
      written.push_back(static_cast<uint32_t>(i));
      // of others nothing is known any more
      if (ways.each[i] != Recorder::Way::device || !recorder->settles() || Batch::trusted()) recorder->forget(hold, *given.tensors[i]);
    }
  }

  // What was to be read after the call, unless it is not what it was before it.
  void look_again(Batch::Hold& hold) {
    if (!put_off) raw.clear(), raw.head(head);
    for (size_t i = 0; i < given.tensors.size(); i++) {
      const at::Tensor& tensor = *given.tensors[i];
      if (count(i) == versions[i]) {
        recorder->tensor(hold, ways.each[i], raw, tensor);
        continue;
      }
      raw.tensor(tensor);
      raw.known("\"skipped\":\"it was written before it was read\"");
    }
  }
};

// A call that is under way in this thread; one inside the other where a call starts a backward pass, say.
class Taken {
 public:
  explicit Taken(Recorder& recorder) : free_(free()) {
    if (free_.empty()) free_.push_back(std::make_unique<Call>());
    call_ = std::move(free_.back());
    free_.pop_back();
    call_->reset(recorder);
  }
  ~Taken() {
    call_->arguments.reset();  // it holds parts of the graph
    free_.push_back(std::move(call_));
  }
  Taken(const Taken&) = delete;
  Call& operator*() const { return *call_; }

 private:
  static std::vector<std::unique_ptr<Call>>& free() {
    static thread_local std::vector<std::unique_ptr<Call>> all;
    return all;
  }
  std::vector<std::unique_ptr<Call>>& free_;  // this thread's
  std::unique_ptr<Call> call_;
};

// A call with what `collect` finds of it, done by `make`, in which nothing else runs if `alone`. Who does not do it: nothing is done.
template <typename Collect, typename Make>
Verdict recorded(Function& own, Collect collect_all, Make make, bool alone, PyObject*& result) {
  const auto recorder = *own.recorder;  // the tool may be stopped meanwhile
  const Taken taken(*recorder);
  Call& call = *taken;
  try {
    size_t first = 0;
    const bool out = collect_all(call.given, first);
    call.declared = own.uncounted ? first : 0;
    const Verdict verdict = call.begin(**own.heads, own.name);
    if (verdict != Verdict::recorded) return verdict;
    call.look(own.writes || call.given.chosen || out, alone);
  } catch (const std::exception& error) {  // a tool must not kill the program that it watches
    PyErr_Clear();
    recorder->report(nullptr, error.what());
    result = make();
    return Verdict::recorded;
  }
  result = make();
  if (result == nullptr || result == Py_NotImplemented) return Verdict::recorded;
  try {
    collect(result, call.made);
    if (!call.end()) own.writes = true;
    if (call.arguments && call.arguments->wanted())
      Flow::watch(recorder, call.head, *call.arguments, call.given.tensors.size(), call.made.tensors, call.sequence);
  } catch (const std::exception& error) {
    PyErr_Clear();
    recorder->report(nullptr, error.what());
  }
  return Verdict::recorded;
}

PyObject* function_call(PyObject* self, PyObject* const* args, size_t count, PyObject* names) {
  if (PyVectorcall_NARGS(count) != 3 || names != nullptr) {
    PyErr_SetString(PyExc_TypeError, "a function, its arguments and those by name");
    return nullptr;
  }
  auto& own = *reinterpret_cast<Function*>(self);
  const auto collect_all = [&](Found& given, size_t& first) {
    static PyObject* const out = PyUnicode_InternFromString("out");
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args[1]); i++) {
      collect(PyTuple_GET_ITEM(args[1], i), given);
      if (i == 0) first = given.tensors.size();
    }
    collect(args[2], given);
    return PyDict_Contains(args[2], out) == 1;
  };
  const auto make = [&] { return PyObject_Call(args[0], args[1], args[2]); };
  PyObject* result = nullptr;
  switch (recorded(own, collect_all, make, false, result)) {
    case Verdict::recorded: return result;
    case Verdict::nobodys: return make();
    default: Batch::start_all(); return PyObject_Vectorcall(own.python, args, 3, nullptr);
  }
}

void function_free(PyObject* self) {
  auto* own = reinterpret_cast<Function*>(self);
  PyTypeObject* type = Py_TYPE(self);
  delete own->recorder;
  delete own->heads;
  Py_XDECREF(own->python);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* function_type() {
  static PyMemberDef members[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(Function, call), READONLY}, {nullptr}};
  static PyType_Slot slots[] = {{Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                                {Py_tp_members, members},
                                {Py_tp_dealloc, reinterpret_cast<void*>(function_free)},
                                {0, nullptr}};
  static PyType_Spec spec{"op_tools._C.Recorded", sizeof(Function), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL, slots};
  static PyObject* type = PyType_FromSpec(&spec);
  return type;
}

// A recorder, with what writes its lines for as long: gradients may come after the end of the tool.
std::shared_ptr<Recorder> kept_with(py::object store, const std::shared_ptr<Recorder>& recorder) {
  const auto end = [](py::object* held) {
    if (Py_IsInitialized()) {
      const py::gil_scoped_acquire gil;  // the graph may end in any thread
      *held = py::object();
    } else {
      held->release();
    }
    delete held;
  };
  return {std::shared_ptr<py::object>(new py::object(std::move(store)), end), recorder.get()};
}

py::object function(const std::shared_ptr<Recorder>& recorder, py::object store, std::shared_ptr<Heads> heads, const std::string& name, bool writes,
                    bool uncounted, py::object python) {
  auto* type = reinterpret_cast<PyTypeObject*>(function_type());
  PyObject* made = type->tp_alloc(type, 0);
  auto* own = reinterpret_cast<Function*>(made);
  own->call = function_call;
  own->recorder = new std::shared_ptr<Recorder>(kept_with(std::move(store), recorder));
  own->heads = new std::shared_ptr<Heads>(std::move(heads));
  own->name = lasting(name);
  own->python = python.release().ptr();
  own->writes = writes;
  own->uncounted = uncounted;
  return py::reinterpret_steal<py::object>(made);
}

}  // namespace

bool is_recorded(PyObject* direct) { return Py_IS_TYPE(direct, reinterpret_cast<PyTypeObject*>(function_type())); }

bool recorded_on_its_way(PyObject* direct, const Way& way, PyObject*& result) {
  auto& own = *reinterpret_cast<Function*>(direct);
  const auto collect_all = [&](Found& given, size_t& first) {
    const Py_ssize_t count = PyVectorcall_NARGS(way.count), named = way.names == nullptr ? 0 : PyTuple_GET_SIZE(way.names);
    for (Py_ssize_t i = 0; i < count + named; i++) {
      collect(way.args[i], given);
      if (i == 0) first = given.tensors.size();
    }
    for (Py_ssize_t i = 0; i < named; i++)
      if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(way.names, i), "out") == 0) return true;
    return false;
  };
  const ModeAside aside;
  const Verdict verdict = recorded(own, collect_all, way, true, result);
  if (verdict == Verdict::nobodys) result = way();
  return verdict != Verdict::pythons;
}

void bind_functions(py::module_& m) {
  m.def("recorded", &function, "what writes the calls of one function down: recorder, its store, heads, name, whether it may write, whether it writes its first argument uncounted, else");
  py::class_<Batch::Trust>(m, "Trust", "until its end this thread runs nothing but calls that are seen")
      .def(py::init<>(), py::call_guard<py::gil_scoped_release>())
      .def("end", &Batch::Trust::end, py::call_guard<py::gil_scoped_release>());
  m.def("forget_all", &Batch::forget_all, py::call_guard<py::gil_scoped_release>());
  m.def("finish_flow", [] { Flow::finish(); }, py::call_guard<py::gil_scoped_release>());
}

}  // namespace op_tools
