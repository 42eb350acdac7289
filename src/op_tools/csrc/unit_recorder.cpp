// The statistics of calls as lines of JSON, without Python.
#include "recorder.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

namespace op_tools {
namespace {

constexpr size_t kWarm = 1 << 14;  // bytes: fewer are still in the cache later

struct Type {
  const char* name;
  int kind;   // of `Kind`; -1: Python does it
  int parts;  // of a complex number
};

Type type_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat: return {"float32", 0, 1};
    case at::kDouble: return {"float64", 1, 1};
    case at::kBFloat16: return {"bfloat16", 2, 1};
    case at::kHalf: return {"float16", 3, 1};
    case at::kLong: return {"int64", 4, 1};
    case at::kInt: return {"int32", 5, 1};
    case at::kShort: return {"int16", 6, 1};
    case at::kChar: return {"int8", 7, 1};
    case at::kByte: return {"uint8", 8, 1};
    case at::kBool: return {"bool", 8, 1};
    case at::kComplexHalf: return {"complex32", 3, 2};
    case at::kComplexFloat: return {"complex64", 0, 2};
    case at::kComplexDouble: return {"complex128", 1, 2};
    default: return {nullptr, -1, 1};
  }
}

void put(std::string& to, int64_t value) {
  char digits[24];
  to.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

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

}  // namespace

std::string written(const Measured& found, bool hash_only) {
  std::string text;
  text.reserve(192);
  if (!hash_only) {
    const auto number = [&](const char* name, double value, int64_t whole, bool exact) {
      text += name;
      if (!found.numbers) text += "null";
      else if (exact) put(text, whole);
      else put(text, value);
    };
    number("\"min\":", found.low, found.whole_low, found.whole);
    number(",\"max\":", found.high, found.whole_high, found.whole);
    number(",\"mean\":", found.mean, 0, false);
    number(",\"norm\":", found.norm, 0, false);
    text += ",\"nonfinite\":";
    put(text, found.nonfinite);
    text += ',';
  }
  text += "\"hash\":\"";
  for (int shift = 60; shift >= 0; shift -= 4) text += "0123456789abcdef"[(found.hash >> shift) & 15];
  text += '"';
  return text;
}

Recorder::Recorder(bool hash_only, bool sampled, size_t limit, py::function described, py::function window,
                   py::function starter, py::function flush, py::function problem)
    : hash_only_(hash_only), sampled_(sampled), limit_(limit), described_(std::move(described)), flush_(std::move(flush)),
      problem_(std::move(problem)), reach_(std::move(window)), known_(sampled, reach_), awaited_(false, reach_) {
  batch_ = Batch::make(hash_only, std::move(starter), py::cpp_function([problem = problem_](const std::string& text) { problem(py::none(), text); }));
}

Recorder::~Recorder() {
  py::gil_scoped_acquire gil;  // it may be a call in another thread that held it last
  for (auto* function : {&described_, &flush_, &problem_}) *function = py::function();
}

void Recorder::text(std::string& to, const at::Tensor& tensor, const Warm* warm) {
  const Type type = type_of(tensor.scalar_type());
  const bool plain = type.name != nullptr && is_plain(tensor), reached = plain && reach_.sees(tensor);
  if (!reached && !(plain && batch_->takes(tensor))) {
    py::gil_scoped_acquire gil;
    to += described_(tensor).cast<std::string>();
    return;
  }
  to += "{\"dtype\":\"";
  to += type.name;
  to += "\",\"shape\":[";
  bool first = true;
  for (const int64_t size : tensor.sizes()) {
    if (!first) to += ',';
    first = false;
    put(to, size);
  }
  to += "],";
  if (reached) numbers(to, tensor, warm);
  else deferred(to, tensor);
  to += '}';
}

void Recorder::numbers(std::string& to, const at::Tensor& tensor, const Warm* warm) {
  const auto place = place_of(tensor);
  if (place && known_.use(*place, tensor, [&](const std::string& known) { to += known; })) return;
  const uint8_t* data = reach_.address(tensor);
  std::string made;
  if (warm != nullptr && !warm->empty()) {
    const auto found = warm->find({data, tensor.numel(), static_cast<int>(tensor.scalar_type())});
    if (found != warm->end() && is_dense(tensor)) made = found->second;
  }
  if (made.empty()) made = measured(tensor, data);
  to += made;
  if (place) known_.keep(*place, tensor, std::move(made));
}

// A mark stands for what is reduced on the device, until the lines are taken.
void Recorder::deferred(std::string& to, const at::Tensor& tensor) {
  const auto put_to = [&](const std::shared_ptr<Awaited>& one) {
    if (one->ready.load(std::memory_order_acquire)) to += one->text;
    else Batch::put_mark(to, *one);
  };
  const auto place = sampled_ ? std::nullopt : place_of(tensor);  // a few elements are not looked at there
  if (place && awaited_.use(*place, tensor, put_to)) return;
  const Type type = type_of(tensor.scalar_type());
  deferring_ = true;
  auto made = batch_->add(tensor, static_cast<Kind>(type.kind), type.parts);
  put_to(made);
  if (place) awaited_.keep(*place, tensor, std::move(made));
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

void Recorder::texts(std::string& to, const std::vector<at::Tensor>& tensors, const Warm* warm) {
  to.reserve(to.size() + 256 * tensors.size());
  bool first = true;
  for (const auto& tensor : tensors) {
    if (!first) to += ',';
    first = false;
    text(to, tensor, warm);
  }
}

bool Recorder::handles(const at::Tensor& tensor) {
  if (!is_plain(tensor)) return false;
  return reach_.sees(tensor) || (type_of(tensor.scalar_type()).name != nullptr && batch_->takes(tensor));
}

void Recorder::settle() {
  if (sampled_) batch_->start();
}

void Recorder::add(std::string_view line) {
  {
    std::lock_guard lock(lines_lock_);
    lines_ += line;
    if (++waiting_ < (deferring_ ? (limit_ + 3) / 4 : limit_)) return;  // what a device has found is read soon
    waiting_ = 0;  // it may be another thread that takes them, and later
  }
  py::gil_scoped_acquire gil;
  flush_();
}

py::bytes Recorder::take(bool everything) {
  std::string lines;
  {
    py::gil_scoped_release release;
    {
      std::lock_guard lock(lines_lock_);
      lines.swap(lines_);
      lines_.reserve(lines.size());
      waiting_ = 0;
    }
    if (!batch_->idle() || !held_.empty()) {
      batch_->read(everything);
      held_.swap(lines);
      if (everything) lines += std::exchange(held_, {});
      lines = batch_->filled(lines);
    }
  }
  return py::bytes(lines);
}

void Recorder::report(PyObject* function, const char* text) {
  py::gil_scoped_acquire gil;
  problem_(py::handle(function), text);
}

void bind_recorder(py::module_& m) {
  py::class_<Recorder, std::shared_ptr<Recorder>>(m, "Recorder")
      .def(py::init<bool, bool, size_t, py::function, py::function, py::function, py::function, py::function>())
      .def("text", [](Recorder& self, const at::Tensor& tensor) {
        std::string made;
        self.text(made, tensor);
        return made;
      }, py::call_guard<py::gil_scoped_release>())
      .def("reaches", &Recorder::reaches, py::call_guard<py::gil_scoped_release>())
      .def("forget", &Recorder::forget, py::call_guard<py::gil_scoped_release>())
      .def("add", &Recorder::add, py::call_guard<py::gil_scoped_release>())
      .def("take", &Recorder::take)
      .def_property_readonly("defers", &Recorder::defers);
}

}  // namespace op_tools
