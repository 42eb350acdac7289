// The statistics of calls as lines of JSON, without Python.
#include "recorder.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstring>

namespace op_tools {
namespace {

constexpr size_t kWarm = 1 << 14;  // bytes: fewer are still in the cache later
constexpr size_t kWorth = size_t{1} << 19;   // bytes of words that are worth to be written
constexpr size_t kBehind = size_t{1} << 26;  // bytes of lines by which a thread may be behind,
constexpr auto kPatience = std::chrono::seconds(10);  // for which it is waited for
constexpr auto kLook = std::chrono::milliseconds(2);  // between two looks for lines,
constexpr int kLooks = 25;                            // until it sleeps
constexpr size_t kAtHand = 1 << 16;  // bytes for lines that the program's threads do not have to ask for
constexpr char kOfPython = '\x01';  // around a mark that Python fills in: see op_tools/statistics_views.py

void put(std::string& to, double value) {  // as Python's repr, so far as JSON tells them apart
  if (!std::isfinite(value)) {
    to += "null";
    return;
  }
  char digits[40];
  const std::string_view text(digits, std::to_chars(digits, digits + sizeof digits, value).ptr - digits);
  to += text;
  if (text.find_first_of(".e") == std::string_view::npos) to += ".0";
}

// The error; none: all of it is written.
int write_to(int file, std::string_view data) {
  while (!data.empty()) {
    const ssize_t done = ::write(file, data.data(), data.size());
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return errno;
    data.remove_prefix(static_cast<size_t>(done));
  }
  return 0;
}

}  // namespace

std::string written(const Measured& found, bool hash_only) {
  std::string text;
  text.reserve(192);
  put_found(text, found, hash_only);
  return text;
}

void put_found(std::string& text, const Measured& found, bool hash_only) {
  if (!hash_only) {
    const auto number = [&](const char* name, double value, int64_t whole, bool exact) {
      text += name;
      if (!found.numbers) text += "null";
      else if (exact) put_number(text, whole);
      else put(text, value);
    };
    number("\"min\":", found.low, found.whole_low, found.whole);
    number(",\"max\":", found.high, found.whole_high, found.whole);
    number(",\"mean\":", found.mean, 0, false);
    number(",\"norm\":", found.norm, 0, false);
    text += ",\"nonfinite\":";
    put_number(text, found.nonfinite);
    text += ',';
  }
  text += "\"hash\":\"";
  for (int shift = 60; shift >= 0; shift -= 4) text += "0123456789abcdef"[(found.hash >> shift) & 15];
  text += '"';
}

Recorder::Recorder(bool hash_only, bool sampled, size_t limit, py::function described, py::function window,
                   py::function starter, py::function launcher, py::function flush, py::function problem)
    : limit(limit), hash_only_(hash_only), sampled_(sampled), described_(std::move(described)), flush_(std::move(flush)),
      problem_(std::move(problem)), reach_(std::move(window)), known_(sampled, reach_) {
  batch_ = Batch::make(hash_only, sampled, std::move(starter), std::move(launcher), py::cpp_function([problem = problem_](const std::string& text) { problem(py::none(), text); }));
}

Recorder::~Recorder() {
  py::gil_scoped_acquire gil;  // it may be a call in another thread that held it last
  for (auto* function : {&described_, &flush_, &problem_}) *function = py::function();
  Py_XDECREF(groups_);
}

Recorder::Way Recorder::looked_for(const at::Tensor& tensor) {
  if (!is_plain(tensor)) return Way::none;
  const bool named = type_of(tensor.scalar_type()).name != nullptr;
  if (reach_.sees(tensor)) return named ? Way::host : Way::python;
  if (!named || !batch_->takes(tensor)) return Way::none;
  if (!reach_.sees_any(tensor.device())) far_.store(key_of(tensor.device()), std::memory_order_relaxed);
  return Way::device;
}

void Recorder::tensor(Raw& to, const at::Tensor& tensor, const Warm* warm) {
  auto held = hold();
  this->tensor(held, way(tensor), to, tensor, warm);
}

void Recorder::defer(Batch::Hold& hold, Raw& to, const at::Tensor& tensor) {  // hot path
  if (!deferring_.load(std::memory_order_relaxed)) deferring_.store(true, std::memory_order_relaxed);
  const Type& type = type_of(tensor.scalar_type());
  to.awaited(tensor, batch_->number(hold, tensor, static_cast<Kind>(type.kind), type.parts));
}

void Recorder::tell(Batch::Hold& hold, Way way, Raw& to, const at::Tensor& tensor, const Warm* warm) {
  hold.free();
  if (way != Way::host) {
    py::gil_scoped_acquire gil;
    to.words(described_(tensor).cast<std::string>());
    return;
  }
  to.tensor(tensor);
  numbers(to, tensor, warm);
}

std::string Recorder::text(const at::Tensor& tensor) {
  Raw raw;
  this->tensor(raw, tensor);
  std::string made;
  Raw::into_words(made, raw.bytes(), Batch::put_mark, [](std::string&, std::string_view) {});
  return made;
}

void Recorder::numbers(Raw& to, const at::Tensor& tensor, const Warm* warm) {
  const auto place = place_of(tensor);
  if (place && known_.use(*place, tensor, [&](const std::string& known) { return to.known(known), true; })) return;
  const uint8_t* data = reach_.address(tensor);
  std::string made;
  if (warm != nullptr && !warm->empty()) {
    const auto found = warm->find({data, tensor.numel(), static_cast<int>(tensor.scalar_type())});
    if (found != warm->end() && is_dense(tensor)) made = found->second;
  }
  if (made.empty()) made = measured(tensor, data);
  to.known(made);
  if (place) known_.keep(*place, tensor, std::move(made));
}

void Recorder::forget(Batch::Hold& hold, const at::Tensor& tensor) {
  known_.forget(tensor);
  batch_->forget(hold, tensor);
}

std::string Recorder::measured(const at::Tensor& tensor, const uint8_t* data) const {
  static thread_local std::vector<uint8_t> memory;
  const Type type = type_of(tensor.scalar_type());
  const Layout layout(tensor);
  if (!layout.together()) {
    memory.resize(layout.count * layout.width);
    layout.gather(data, memory.data());
    data = memory.data();
  }
  const auto found = measure(data, layout.count * type.parts, static_cast<Kind>(type.kind), hash_only_);
  return written(repeated(found, layout.times), hash_only_);
}

void Recorder::warm(Warm& to, const at::Tensor& tensor) {
  if (type_of(tensor.scalar_type()).name == nullptr || !reaches(tensor) || !is_dense(tensor)) return;
  if (tensor.nbytes() < kWarm) return;
  const uint8_t* data = reach_.address(tensor);
  to[{data, tensor.numel(), static_cast<int>(tensor.scalar_type())}] = measured(tensor, data);
}

void Recorder::settle() {
  is_alone();
  if (!Batch::trusted()) settle_at_once();
}

void Recorder::settle_at_once() {
  if (sampled_) batch_->start();
}

void Recorder::call_over() {
  if (!is_alone()) settle();
}

bool Recorder::is_alone() {
  if (!alone_.load(std::memory_order_relaxed)) return false;
  if (PyDict_GET_SIZE(groups_) == 0) return true;
  trust_nobody();
  return false;
}

void Recorder::trust_torch(py::dict groups) {
  groups_ = groups.release().ptr();
  alone_ = true;
}

void Recorder::trust_nobody() {
  alone_ = false;
  sampled_ = true;
  known_.trust_nobody();
  batch_->trust_nobody();
}

template <typename Put>
void Recorder::append(Put put) {
  {
    std::unique_lock lock(lines_lock_);
    put();
    if (++waiting_ < (deferring_ ? (limit + 7) / 8 : limit.load())) return;  // what a device has found is read soon
    waiting_ = 0;  // it may be another thread that takes them, and later
  }
  if (deferring_) batch_->start();  // in the program's own thread: the one who reads would be in its way
  {
    std::unique_lock lock(lines_lock_);
    if (working_) {
      ready_ = true;
      const bool wakes = asleep_;
      const auto is_room = [&] { return lines_.size() < kBehind || !working_; };
      const bool room = is_room();
      lock.unlock();
      if (wakes) wake_->notify_one();
      if (room) return;
      std::optional<py::gil_scoped_release> release;  // the one who works may ask for it
      if (PyGILState_Check()) release.emplace();
      lock.lock();
      room_->wait_for(lock, kPatience, is_room);
      return;
    }
  }
  py::gil_scoped_acquire gil;
  flush_();
}

void Recorder::add(const Raw& line) {
  append([&] { lines_.add(line.bytes()); });
}

void Recorder::add(std::string_view line) {
  append([&] { lines_.line(line); });
}

void Recorder::put_into_words(bool everything) {
  std::lock_guard one(words_lock_);
  Raw lines;
  spare_.reserve(kAtHand);
  {
    std::lock_guard lock(lines_lock_);
    std::swap(lines, lines_);
    std::swap(lines_, spare_);
    waiting_ = 0;
  }
  room_->notify_all();
  held_.emplace_back(std::move(lines), batch_->next());
  batch_->read(everything);
  const auto found = batch_->found();
  for (; !held_.empty() && (everything || held_.front().second <= batch_->read_below()); held_.pop_front()) {
    Raw& from = held_.front().first;
    words_.reserve(words_.size() + 4 * from.size());
    Raw::into_words(words_, from.bytes(), [&](std::string& to, int64_t number) { found.put(to, number); },
                    [&](std::string& to, std::string_view line) { found.fill(to, line); });
    from.clear();
    std::lock_guard lock(lines_lock_);
    std::swap(spare_, from);
  }
  batch_->tidy();
}

py::bytes Recorder::take() {
  std::string made;
  {
    py::gil_scoped_release release;
    put_into_words(true);
    std::lock_guard one(words_lock_);
    std::swap(made, words_);
  }
  return py::bytes(made);
}

py::object Recorder::work(int file) {
  std::string made;
  bool on = true, whole = false;
  int failed = 0;
  {
    py::gil_scoped_release release;
    while (on && made.empty()) {
      {
        std::unique_lock lock(lines_lock_);
        working_ = true;
        wait_for_lines(lock);
        ready_ = false;
        on = !ending_;
      }
      if (on) put_into_words(false);
      std::lock_guard one(words_lock_);
      if (!on || words_.size() >= kWorth) std::swap(made, words_);
    }
    whole = on && made.find(kOfPython) == std::string::npos;
    if (whole) failed = write_to(file, made);
  }
  if (failed != 0) {
    errno = failed;
    PyErr_SetFromErrno(PyExc_OSError);
    throw py::error_already_set();
  }
  return whole ? py::object(py::int_(made.size())) : py::object(py::bytes(made));
}

// It looks by itself for a while, so that a program that is busy does not have to wake it.
void Recorder::wait_for_lines(std::unique_lock<std::mutex>& lock) {
  const auto is_due = [&] { return ready_ || ending_; };
  for (int look = 0; look < kLooks && !is_due(); look++) wake_->wait_for(lock, kLook, [&] { return ending_; });
  asleep_ = true;
  wake_->wait(lock, is_due);
  asleep_ = false;
}

void Recorder::stop_work() {
  std::lock_guard lock(lines_lock_);
  working_ = false;
  room_->notify_all();
}

void Recorder::end_work() {
  std::lock_guard lock(lines_lock_);
  ending_ = true;
  wake_->notify_all();
}

void Recorder::report(PyObject* function, const char* text) {
  py::gil_scoped_acquire gil;
  problem_(function == nullptr ? py::object(py::none()) : py::reinterpret_borrow<py::object>(function), text);
}

void bind_recorder(py::module_& m) {
  py::class_<Recorder, std::shared_ptr<Recorder>>(m, "Recorder")
      .def(py::init<bool, bool, size_t, py::function, py::function, py::function, py::function, py::function, py::function>())
      .def("text", &Recorder::text, py::call_guard<py::gil_scoped_release>())
      .def("reaches", &Recorder::reaches, py::call_guard<py::gil_scoped_release>())
      .def("forget", [](Recorder& self, const at::Tensor& tensor) { self.forget(tensor); }, py::call_guard<py::gil_scoped_release>())
      .def("add", [](Recorder& self, std::string_view line) { self.add(line); }, py::call_guard<py::gil_scoped_release>())
      .def("settle", &Recorder::settle_at_once, py::call_guard<py::gil_scoped_release>())
      .def("trust_torch", &Recorder::trust_torch)
      .def("trust_nobody", &Recorder::trust_nobody, py::call_guard<py::gil_scoped_release>())
      .def("take", &Recorder::take)
      .def("work", &Recorder::work)
      .def("stop_work", &Recorder::stop_work, py::call_guard<py::gil_scoped_release>())
      .def("end_work", &Recorder::end_work, py::call_guard<py::gil_scoped_release>())
      .def_property("limit", [](Recorder& self) { return self.limit.load(); }, [](Recorder& self, size_t limit) { self.limit = limit; })
      .def_property_readonly("defers", &Recorder::defers);
}

}  // namespace op_tools
