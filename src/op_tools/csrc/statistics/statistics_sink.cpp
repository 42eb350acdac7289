// SPDX-License-Identifier: Apache-2.0
#include "statistics_sink.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

namespace op_tools {
namespace {

constexpr size_t kMostPending = size_t{1} << 26;      // bytes of lines; then the program waits
constexpr auto kPatience = std::chrono::seconds(10);  // for how long it waits
constexpr auto kPoll =
    std::chrono::milliseconds(2);  // of statistics that the device has not finished
constexpr auto kIdle = std::chrono::milliseconds(200);

int write_to(int file, std::string_view data) {  // the error; 0: all of it is written
  while (!data.empty()) {
    const ssize_t done = ::write(file, data.data(), data.size());
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return errno;
    data.remove_prefix(static_cast<size_t>(done));
  }
  return 0;
}

CallLog& log_of(CallView& call) {
  if (call.state == nullptr) call.state = std::make_shared<CallLog>();
  return *static_cast<CallLog*>(call.state.get());
}

py::function report_without_operator(const py::function& problem) {
  return py::cpp_function([problem](const std::string& text) { problem(py::none(), text); });
}

}  // namespace

StatisticsSink::StatisticsSink(bool hash_only, bool all_inputs, bool nonfinite_only, size_t limit,
                               py::function described, py::function window, py::function starter,
                               py::function launcher, py::function flush, py::function problem)
    : limit(limit),
      reads_(hash_only        ? Reads::hash
             : nonfinite_only ? Reads::fields
                              : Reads::everything),
      all_inputs_(all_inputs),
      nonfinite_only_(nonfinite_only),
      described_(std::move(described)),
      flush_(std::move(flush)),
      problem_(problem),
      host_(std::move(window)),
      reducer_(reads_, std::move(starter), std::move(launcher), report_without_operator(problem)),
      formatter_(reducer_, reads_, nonfinite_only) {}

StatisticsSink::~StatisticsSink() {
  py::gil_scoped_acquire gil;  // the last owner may be a call in another thread
  for (auto* function : {&described_, &flush_, &problem_}) *function = py::function();
}

StatisticsSink::Way StatisticsSink::way_of(const at::Tensor& tensor) {
  if (!is_plain(tensor)) return Way::none;
  const bool named = type_info(tensor.scalar_type()).name != nullptr;
  if (host_.reaches(tensor)) return named ? Way::host : Way::python;
  return named && reducer_.accepts(tensor) ? Way::device : Way::none;
}

// Reads the values now; statistics by a device are pending, and fetched when the line is formatted.
void StatisticsSink::measure(CallLog& to, Batch& batch, const at::Tensor& tensor) {
  const Way way = way_of(tensor);
  if (way == Way::python || way == Way::none) {
    py::gil_scoped_acquire gil;
    to.formatted(described_(tensor).cast<std::string>());
    return;
  }
  const TypeInfo& type = type_info(tensor.scalar_type());
  const auto kind = static_cast<Kind>(type.kind);
  to.tensor(tensor);
  if (way == Way::device) {
    to.pending(batch.add(tensor, kind, type.parts));
    return;
  }
  static thread_local std::vector<uint8_t> memory;
  const uint8_t* data = host_.address(tensor);
  const Layout layout(tensor);
  if (!layout.is_contiguous()) {
    memory.resize(layout.count * layout.width);
    layout.gather(data, memory.data());
    data = memory.data();
  }
  to.measured(op_tools::measure(data, layout.count * type.parts, kind, reads_, layout.times));
}

bool StatisticsSink::put_reference(CallLog& to, const at::Tensor& tensor) {
  const auto from = all_inputs_ || type_info(tensor.scalar_type()).name == nullptr
                        ? std::nullopt
                        : producers_.find(tensor);
  if (from) to.tensor(tensor), to.reference(*from);
  return from.has_value();
}

void StatisticsSink::put_inputs(CallView& call, Batch& batch, Read read) {
  CallLog& log = log_of(call);
  const auto skip = [&](const at::Tensor& tensor, const char* reason) {
    log.tensor(tensor);
    log.skipped(reason);
  };
  log.begin(call.header);
  for (uint32_t at = 0; at < call.inputs.size(); at++) {
    const at::Tensor& tensor = call.inputs[at].tensor;
    const bool named = type_info(tensor.scalar_type()).name != nullptr;
    if (read == Read::after_call && call.wrote(at) && named)
      skip(tensor, "it was written before it was read");
    else if (put_reference(log, tensor)) continue;
    else if (read == Read::not_at_all && named) skip(tensor, "a view reads no values");
    else measure(log, batch, tensor);
  }
}

void StatisticsSink::enter(CallView& call) {
  if (!call.may_write) return;  // everything is read after the call, at once
  Batch batch(reducer_);
  put_inputs(call, batch, Read::before_call);
  batch.launch();
}

// The place of the input that an output is a view of, if no input in its storage was written; else
// the count of inputs.
size_t StatisticsSink::base_of(const CallView& call, const at::Tensor& output) const {
  const size_t none = call.inputs.size();
  const c10::StorageImpl* storage = storage_of(output);
  if (all_inputs_ || storage == nullptr || type_info(output.scalar_type()).name == nullptr ||
      !is_plain(output))
    return none;
  size_t found = none;
  for (size_t at = 0; at < call.inputs.size(); at++) {
    if (storage_of(call.inputs[at].tensor) != storage) continue;
    if (call.wrote(static_cast<uint32_t>(at))) return none;
    found = std::min(found, at);
  }
  return found;
}

void StatisticsSink::exit(CallView& call, const TensorList& outputs) {
  Batch batch(reducer_);
  CallLog& log = log_of(call);
  c10::SmallVector<size_t, 8> bases;
  for (const at::Tensor* output : outputs) bases.push_back(base_of(call, *output));
  const bool computes =
      bases.empty() || std::find(bases.begin(), bases.end(), call.inputs.size()) != bases.end();
  if (!call.may_write) put_inputs(call, batch, computes ? Read::after_call : Read::not_at_all);
  log.outputs();
  for (uint32_t place = 0; place < outputs.size(); place++) {
    const at::Tensor& output = *outputs[place];
    if (bases[place] < call.inputs.size()) {
      put_view(call, output, bases[place]);
      continue;
    }
    measure(log, batch, output);
    producers_.add(output, call.header.id, Reference::List::outputs, place);
  }
  for (const uint32_t at : call.written) {
    const at::Tensor& tensor = call.inputs[at].tensor;
    if (std::any_of(outputs.begin(), outputs.end(),
                    [&](const at::Tensor* output) { return output->is_same(tensor); }))
      continue;
    log.mutated(at);
    measure(log, batch, tensor);
    producers_.add(tensor, call.header.id, Reference::List::mutated, at);
  }
  log.end();
  batch.launch();
  append(log);
}

void StatisticsSink::put_view(CallView& call, const at::Tensor& output, size_t place) {
  CallLog& log = log_of(call);
  if (put_reference(log, output)) return;
  const at::Tensor& base = call.inputs[place].tensor;
  const bool same = is_dense(output) && is_dense(base) && output.numel() == base.numel() &&
                    output.storage_offset() == base.storage_offset() &&
                    output.scalar_type() == base.scalar_type();
  log.tensor(output);
  log.reference({call.header.id, static_cast<uint32_t>(place), Reference::List::inputs, !same});
}

// The gradients of one call: gathered while they come in, written as one line.
class StatisticsGradients : public GradientSink {
 public:
  StatisticsGradients(std::shared_ptr<StatisticsSink> sink, const CallHeader& header, size_t inputs,
                      size_t outputs, std::shared_ptr<void> owner)
      : sink_(std::move(sink)),
        header_(header),
        inputs_(inputs),
        outputs_(outputs),
        owner_(std::move(owner)) {}

  void take(c10::ArrayRef<Gradient> gradients) override {
    StatisticsSink::Batch batch(sink_->reducer_);
    for (const auto& [of_output, place, tensor] : gradients) {
      auto& part = (of_output ? outputs_ : inputs_)[place];
      const auto list = of_output ? Reference::List::grad_outputs : Reference::List::grad_inputs;
      part.first = log_.size();
      if (!sink_->put_reference(log_, *tensor)) {
        sink_->measure(log_, batch, *tensor);
        sink_->producers_.add(*tensor, header_.id, list, static_cast<uint32_t>(place));
      }
      part.second = log_.size();
    }
    batch.launch();
  }

  void end() override {
    CallLog line;
    const auto put = [&](const Parts& parts) {
      for (const auto& [from, to] : parts) {
        if (from == to) line.missing();
        else line.append(log_.bytes().substr(from, to - from));
      }
    };
    line.begin_gradients(header_);
    put(inputs_);
    line.grad_outputs();
    put(outputs_);
    line.end();
    sink_->append(line);
    log_ = {};
  }

  void report(const char* error) override { sink_->report(nullptr, error); }

 private:
  using Parts = std::vector<std::pair<size_t, size_t>>;  // of the log: from, to
  const std::shared_ptr<StatisticsSink> sink_;
  const CallHeader header_;
  Parts inputs_, outputs_;
  CallLog log_;
  const std::shared_ptr<void> owner_;  // writes the lines
};

void StatisticsSink::follow(const CallView& call, CallRegion& region, size_t outputs,
                            std::shared_ptr<void> owner) {
  const size_t inputs = call.inputs.size();
  watch_gradients(region, inputs,
                  std::make_shared<StatisticsGradients>(shared_from_this(), call.header, inputs,
                                                        outputs, std::move(owner)));
}

std::string StatisticsSink::text(const at::Tensor& tensor) {
  CallLog log;
  Batch batch(reducer_);
  measure(log, batch, tensor);
  batch.launch();
  return marked_text(log.bytes());
}

// The JSON of a tensor, with a mark in place of statistics that are pending.
std::string StatisticsSink::marked_text(std::string_view log) {
  struct Marker : LineFormatter {
    using LineFormatter::LineFormatter;
    void pending(int64_t number) { append_mark(text, number), text += '}'; }
  } marker(reducer_, reads_, false);
  CallLog::read(log, marker);
  return marker.text;
}

void StatisticsSink::append(const CallLog& line) {
  {
    std::lock_guard lock(lines_lock_);
    lines_.append(line.bytes());
  }
  added();
}

void StatisticsSink::add(std::string_view line) {
  {
    std::lock_guard lock(lines_lock_);
    lines_.line(line);
  }
  added();
}

// After a line was added: a thread or Python is told that lines are to be written.
void StatisticsSink::added() {
  {
    std::unique_lock lock(lines_lock_);
    if (++count_ < limit) return;
    count_ = 0;
    if (working_) {
      ready_ = true;
      wake_->notify_one();
      const auto has_room = [&] { return lines_.size() < kMostPending || !working_; };
      if (has_room()) return;
      lock.unlock();
      std::optional<py::gil_scoped_release> release;  // the writer may need it
      if (PyGILState_Check()) release.emplace();
      lock.lock();
      room_->wait_for(lock, kPatience, has_room);
      return;
    }
  }
  py::gil_scoped_acquire gil;
  flush_();
}

void StatisticsSink::format(bool everything) {
  std::lock_guard one(text_lock_);
  {
    std::lock_guard lock(lines_lock_);
    if (lines_.size() > 0) logs_.emplace_back(lines_.bytes(), reducer_.launched());
    lines_.clear();
    count_ = 0;
  }
  room_->notify_all();
  reducer_.read(everything);
  for (; !logs_.empty() && (everything || logs_.front().second <= reducer_.finished());
       logs_.pop_front())
    CallLog::read(logs_.front().first, formatter_);
}

py::bytes StatisticsSink::take(bool everything) {
  std::string made;
  {
    py::gil_scoped_release release;
    format(everything);
    std::lock_guard one(text_lock_);
    std::swap(made, formatter_.text);
  }
  return py::bytes(made);
}

size_t StatisticsSink::work(int file) {
  std::string made;
  int failed = 0;
  {
    py::gil_scoped_release release;
    bool pending = false;  // statistics that the device has not finished
    while (made.empty()) {
      {
        std::unique_lock lock(lines_lock_);
        working_ = true;
        wake_->wait_for(lock, pending ? kPoll : kIdle, [&] { return ready_ || ending_; });
        ready_ = false;
        if (ending_) return 0;
      }
      format(false);
      std::lock_guard one(text_lock_);
      pending = !logs_.empty();
      std::swap(made, formatter_.text);
    }
    failed = write_to(file, made);
  }
  if (failed != 0) {
    errno = failed;
    PyErr_SetFromErrno(PyExc_OSError);
    throw py::error_already_set();
  }
  return made.size();
}

void StatisticsSink::stop_work() {
  std::lock_guard lock(lines_lock_);
  working_ = false;
  room_->notify_all();
}

void StatisticsSink::end_work() {
  std::lock_guard lock(lines_lock_);
  ending_ = true;
  wake_->notify_all();
}

void StatisticsSink::report(PyObject* op, const char* error) {
  py::gil_scoped_acquire gil;
  problem_(op == nullptr ? py::object(py::none()) : py::reinterpret_borrow<py::object>(op), error);
}

void bind_statistics_sink(py::module_& m) {
  py::class_<StatisticsSink, Sink, std::shared_ptr<StatisticsSink>>(m, "StatisticsSink")
      .def(py::init<bool, bool, bool, size_t, py::function, py::function, py::function,
                    py::function, py::function, py::function>())
      .def("text", &StatisticsSink::text, py::call_guard<py::gil_scoped_release>())
      .def(
          "add", [](StatisticsSink& self, std::string_view line) { self.add(line); },
          py::call_guard<py::gil_scoped_release>())
      .def("take", &StatisticsSink::take, py::arg("everything") = true)
      .def("work", &StatisticsSink::work)
      .def("stop_work", &StatisticsSink::stop_work, py::call_guard<py::gil_scoped_release>())
      .def("end_work", &StatisticsSink::end_work, py::call_guard<py::gil_scoped_release>())
      .def_property(
          "limit", [](StatisticsSink& self) { return self.limit.load(); },
          [](StatisticsSink& self, size_t limit) { self.limit = limit; });
}

}  // namespace op_tools
