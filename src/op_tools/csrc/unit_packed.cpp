// Calls at the level of torch's functions that a packed archive gets, without a line of Python: what op_tools/capture.py
// does before a call, after it and with its gradients.
#include <ATen/SequenceNumber.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/DynamicTypes.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <deque>

#include "counting.h"
#include "found.h"
#include "heads.h"
#include "packer.h"
#include "watched.h"

namespace op_tools {
namespace {

constexpr size_t kSpent = 64 << 20;  // bytes that the budget is told of at once; with a limit, calls do not come here
constexpr int kGradInputs = 2, kGradOutputs = 3;  // of store.PARTS

py::object word(const char* text) { return py::reinterpret_steal<py::object>(PyUnicode_InternFromString(text)); }

// JSON of the second that it is, as `time.strftime` has it.
const std::string& stamp() {
  static std::time_t known = 0;  // under the GIL
  static std::string text;
  const std::time_t now = std::time(nullptr);
  if (now != known || text.empty()) {
    std::tm parts{};
    localtime_r(&now, &parts);
    char digits[32];
    text.assign(digits, std::strftime(digits, sizeof digits, "\"%Y-%m-%d-%H-%M-%S\"", &parts));
    known = now;
  }
  return text;
}

// This thread does: what Python frees meanwhile may call operators, and those cannot wait for us.
thread_local bool writes = false;

// What one start of the tool has. `problem(name, error, results)`: something of a call was not taken, or its results.
class Packing {
 public:
  Packing(py::object packer, std::shared_ptr<Heads> heads, py::object store, py::function problem)
      : packer(packer.cast<Packer&>()), heads(std::move(heads)), held_(std::move(packer)), store_(std::move(store)),
        spool_(store_.attr("_spool")), acquire_(store_.attr("_lock").attr("acquire")), release_(store_.attr("_lock").attr("release")),
        problem_(std::move(problem)), pid_(getpid()) {}
  ~Packing() {
    if (Py_IsInitialized()) {
      const py::gil_scoped_acquire gil;  // the graph may end in any thread
      for (py::object* one : all()) *one = py::object();
      heads.reset();
    } else {  // after the end of Python nothing of it can be given back
      for (py::object* one : all()) one->release();
      new std::shared_ptr<Heads>(std::move(heads));
    }
  }

  bool over() const { return packer.over || writes || getpid() != pid_; }

  // One writes: `write`, in the room that is being filled.
  template <typename Write>
  void turn(int64_t step, Write write) {
    const Turn turn{*this};
    packer.begin(store_, spool_.attr(last_), spool_.attr(end_).cast<uint64_t>(), step);
    write();
  }

  void failed(const std::string& name, bool results) noexcept {  // in a handler
    try {
      try {
        throw;
      } catch (py::error_already_set& error) {
        problem_(name, error.value(), results);
      } catch (const std::exception& error) {
        problem_(name, error.what(), results);
      }
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("op_tools");
    }
  }

  // A device as the program calls it, in JSON.
  const std::string& name_of(c10::Device device) {
    for (const auto& [known, name] : devices_)
      if (known == device) return name;
    const auto told = py::reinterpret_steal<py::object>(THPDevice_New(device));
    return devices_.emplace_back(device, '"' + py::str(told).cast<std::string>() + '"').second;
  }

  Packer& packer;
  std::shared_ptr<Heads> heads;

 private:
  struct Turn {
    explicit Turn(Packing& of) : of(of) {
      of.acquire_();
      writes = true;
    }
    ~Turn() {
      of.packer.end();
      try {
        of.advance();
      } catch (py::error_already_set& error) {
        error.discard_as_unraisable("op_tools");
      }
      writes = false;
      try {
        of.release_();
      } catch (py::error_already_set& error) {
        error.discard_as_unraisable("op_tools");
      }
    }
    Packing& of;
  };

  // As `PackedStore._advance`.
  void advance() {
    const Room& room = packer.room();
    if (room.used > 0) {
      py::setattr(room.arena, filled_, py::int_(room.filled));
      py::setattr(spool_, end_, py::int_(room.end));
      if (spool_.attr(idle_).ptr() == Py_True) spool_.attr("wake")();
      if ((packer.unspent += room.used) >= kSpent) store_.attr("_spend")();
    }
    if (store_.attr(closed_).ptr() == Py_True) spool_.attr("flush")();  // a backward pass after the end
  }

  std::array<py::object*, 11> all() {
    return {&held_, &store_, &spool_, &acquire_, &release_, &problem_, &last_, &end_, &closed_, &idle_, &filled_};
  }

  py::object held_, store_, spool_, acquire_, release_, problem_;
  py::object last_ = word("last"), end_ = word("end"), closed_ = word("_closed");
  py::object idle_ = word("_idle"), filled_ = word("filled");
  const pid_t pid_;
  std::deque<std::pair<c10::Device, std::string>> devices_;
};

// The gradients of a call on their way into the archive.
struct Heard final : Hearer {
  Heard(std::shared_ptr<Packing> to, const Head& head) : to(std::move(to)), id(head.id), name(head.name) {}

  Objects taken(const std::vector<at::Tensor>& gradients) override {
    Objects made(gradients.size(), py::none());
    if (to->over()) return made;
    try {
      to->turn(current_step.load(), [&] {
        for (Piece& piece : to->packer.pieces(gradients)) pieces.push_back(std::move(piece));
      });
      const size_t first = pieces.size() - made.size();
      for (size_t at = 0; at < made.size(); at++) made[at] = py::int_(first + at);
    } catch (const std::exception&) {
      to->failed(*name, true);
    }
    return made;
  }

  void done(const Objects& outputs, const Objects& inputs, bool complete) override {
    if (to->over()) return;
    try {
      const int64_t step = current_step.load();
      to->turn(step, [&] {
        to->packer.gradients(kGradInputs, id, found(inputs), complete);
        to->packer.gradients(kGradOutputs, id, found(outputs), complete);
      });
    } catch (const std::exception&) {
      to->failed(*name, true);
    }
  }

  std::vector<const Piece*> found(const Objects& taken) const {
    std::vector<const Piece*> made;
    for (const py::object& one : taken) made.push_back(one.is_none() ? nullptr : &pieces[one.cast<size_t>()]);
    return made;
  }

  const std::shared_ptr<Packing> to;
  const int64_t id;
  const std::string* const name;
  std::deque<Piece> pieces;  // what was taken, by number
};

// One call.
struct Call {
  Packing& own;
  Found given;
  size_t first = 0;  // tensors of its first argument
  Head head;
  c10::SmallVector<uint32_t, 8> versions;
  std::optional<Given> arguments;
  uint64_t sequence = 0;

  // Whether it is one to take here.
  bool is_simple(PyObject* args, PyObject* kwargs) {
    if (own.over() || is_under_mode() || !PyTuple_Check(args)) return false;
    for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(args); at++) {
      collect(PyTuple_GET_ITEM(args, at), given);
      if (at == 0) first = given.tensors.size();
    }
    collect(kwargs, given);
    if (!given.plain || given.tensors.empty()) return false;
    return std::all_of(given.tensors.begin(), given.tensors.end(),
                       [](const at::Tensor* tensor) { return is_plain(*tensor) && !tensor->is_inference(); });
  }

  bool begin(const std::string* name, PyObject* args, PyObject* kwargs) {
    if (!is_simple(args, kwargs)) return false;
    sequence = at::sequence_number::peek();
    const auto found = own.heads->head(name, kind_of(given.tensors));
    if (!found) return false;
    head = *found;
    for (const at::Tensor* tensor : given.tensors) versions.push_back(version_of(*tensor));
    arguments.emplace(given.tensors);
    own.turn(head.step, [&] { own.packer.input(head.id, header(), args, kwargs); });
    return true;
  }

  std::string header() const {
    std::string text = "{\"id\":" + std::to_string(head.id) + ",\"name\":\"" + *head.name + "\",\"time\":" + stamp();
    text += head.backward ? ",\"level\":\"api\",\"direction\":\"backward\",\"step\":" : ",\"level\":\"api\",\"direction\":\"forward\",\"step\":";
    text += std::to_string(head.step);
    text += ",\"module\":", text += head.module ? *head.module : "\"\"";
    text += ",\"site\":", text += head.site ? *head.site : "\"\"";
    add_devices(text);
    text += '}';
    return text;
  }

  void add_devices(std::string& text) const {
    const c10::Device none = given.tensors[0]->device();
    c10::Device device = none;
    bool several = false;
    for (const at::Tensor* tensor : given.tensors) {
      several |= tensor->device() != none;
      if (device.is_cpu()) device = tensor->device();
    }
    text += ",\"device\":" + own.name_of(device);
    for (size_t at = 0; several && at < given.tensors.size(); at++) text += (at ? "," : ",\"devices\":[") + own.name_of(given.tensors[at]->device());
    if (several) text += ']';
    if (!at::autocast::is_autocast_available(device.type()) || !at::autocast::is_autocast_enabled(device.type())) return;
    text += ",\"autocast\":[\"" + c10::DeviceTypeName(device.type(), true) + "\",\"";
    text += torch::getTHPDtype(at::autocast::get_autocast_dtype(device.type()))->name;
    text += "\"]";
  }

  // `lists`: it writes the tensors of its first argument, which a device may not count.
  void end(PyObject* result, bool lists, const std::shared_ptr<Packing>& to) {
    Found made;
    collect(result, made);
    Changes changes;
    std::vector<at::Tensor> written;
    for (size_t at = 0; at < given.tensors.size(); at++) {
      if (version_of(*given.tensors[at]) == versions[at] && !(lists && is_listed(at))) continue;
      changes.written.push_back(at);
      written.push_back(*given.tensors[at]);
      PyObject* object = given.objects[at];
      if (std::find(made.objects.begin(), made.objects.end(), object) == made.objects.end()) changes.mutated.emplace_back(at, object);
    }
    own.turn(head.step, [&] {
      own.packer.forget(written);
      own.packer.output(head.id, result, changes);
    });
    if (arguments->wanted())
      watch(*arguments, given.tensors.size(), made.tensors, sequence, [&] { return std::make_unique<Heard>(to, head); });
  }

  bool is_listed(size_t at) const {
    const auto* start = given.objects.begin();
    return at < first || std::find(start, start + first, given.objects[at]) != start + first;
  }
};

// What a plan calls: `packed(func, args, kwargs)`, for one operator; `python` does what this does not.
class Packed {
 public:
  Packed(py::object packer, std::shared_ptr<Heads> heads, py::object store, py::function problem, const std::string& name,
         bool lists, py::object python)
      : own_(std::make_shared<Packing>(std::move(packer), std::move(heads), std::move(store), std::move(problem))),
        name_(lasting(name)), lists_(lists), python_(std::move(python)) {}

  py::object call(py::object func, py::object args, py::object kwargs) const {
    const auto own = own_;  // the tool may be stopped meanwhile
    Call call{*own};
    bool taken = !writes, simple = true;
    try {
      if (taken) simple = call.begin(name_, args.ptr(), kwargs.ptr());
    } catch (const std::exception&) {  // a tool must not kill the program that it watches
      own->failed(*name_, false);
      taken = false;
    }
    if (!simple) return python_(func, args, kwargs);
    const auto result = py::reinterpret_steal<py::object>(PyObject_Call(func.ptr(), args.ptr(), kwargs.ptr()));
    if (!result) throw py::error_already_set();
    if (!taken) return result;
    try {
      call.end(result.ptr(), lists_, own);
    } catch (const std::exception&) {
      own->failed(*name_, true);
    }
    return result;
  }

 private:
  const std::shared_ptr<Packing> own_;
  const std::string* const name_;
  const bool lists_;
  const py::object python_;
};

}  // namespace

void bind_packed(py::module_& m) {
  py::class_<Packed>(m, "Packed")
      .def(py::init<py::object, std::shared_ptr<Heads>, py::object, py::function, const std::string&, bool, py::object>())
      .def("__call__", &Packed::call);
}

}  // namespace op_tools
