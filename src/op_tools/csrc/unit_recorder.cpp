// The statistics of calls as lines of JSON, without Python.
#include "recorder.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/hash.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

namespace op_tools {
namespace {

constexpr size_t kSweep = 4096;  // so many entries later, those of freed memory are forgotten
constexpr size_t kWarm = 1 << 14;  // bytes: fewer are still in the cache later
constexpr size_t kSampled = 32;  // elements that are looked at to see whether memory is as it was

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

bool is_dense(const at::Tensor& tensor) {
  return tensor.is_contiguous() || tensor.is_non_overlapping_and_dense();
}

// No memory of its own that could be read, or values that are not what lies there.
bool is_plain(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.has_storage() && !tensor.is_quantized() && !tensor.is_nested() &&
      !tensor.is_conj() && !tensor.is_neg() && !tensor.is_meta() && !tensor.key_set().has(c10::DispatchKey::ZeroTensor) &&
      !tensor.key_set().has(c10::DispatchKey::Python);
}

std::optional<Place> place_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0 || tensor.is_inference()) return std::nullopt;
  Place place{tensor.storage().unsafeGetStorageImpl(), tensor.storage_offset(), static_cast<int>(tensor.scalar_type()), {}};
  if (is_dense(tensor)) {
    place.geometry = {tensor.numel()};
  } else {
    place.geometry.append(tensor.sizes().begin(), tensor.sizes().end());
    place.geometry.append(tensor.strides().begin(), tensor.strides().end());
  }
  return place;
}

// The values in the order of memory, each once, where they do not lie one after the other.
Hosted gathered(const at::Tensor& tensor, const uint8_t* data) {
  static thread_local std::vector<uint8_t> memory;
  const size_t width = tensor.element_size();
  std::vector<std::pair<int64_t, int64_t>> dims;  // stride, size
  Hosted found{nullptr, 1, 1};
  for (int64_t dim = 0; dim < tensor.dim(); dim++) {
    const int64_t size = tensor.size(dim), stride = tensor.stride(dim);
    if (size == 1) continue;
    if (stride == 0) {
      found.times *= size;
      continue;
    }
    dims.emplace_back(stride, size);
    found.count *= static_cast<size_t>(size);
  }
  std::stable_sort(dims.begin(), dims.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  int64_t run = 1;  // elements that lie together
  while (!dims.empty() && dims.back().first == run) {
    run *= dims.back().second;
    dims.pop_back();
  }
  const size_t bytes = static_cast<size_t>(run) * width;
  if (dims.empty()) {
    found.data = data;
    return found;
  }
  memory.resize(found.count * width);
  std::vector<int64_t> at(dims.size(), 0);
  const uint8_t* from = data;
  for (uint8_t* to = memory.data();; to += bytes) {
    std::memcpy(to, from, bytes);
    size_t dim = dims.size();
    while (dim > 0) {
      dim--;
      from += dims[dim].first * static_cast<int64_t>(width);
      if (++at[dim] < dims[dim].second) break;
      from -= dims[dim].first * dims[dim].second * static_cast<int64_t>(width);
      at[dim] = 0;
      if (dim == 0) {
        found.data = memory.data();
        return found;
      }
    }
  }
}

// A few elements from the middle of its memory.
std::string sample_of(const at::Tensor& tensor, const uint8_t* data) {
  int64_t span = 1;
  for (int64_t dim = 0; dim < tensor.dim(); dim++) span += (tensor.size(dim) - 1) * tensor.stride(dim);
  const auto count = std::min<size_t>(static_cast<size_t>(span), kSampled);
  const size_t start = (static_cast<size_t>(span) - count) / 2, width = tensor.element_size();
  return {reinterpret_cast<const char*>(data) + start * width, count * width};
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

size_t PlaceHash::operator()(const Place& place) const {
  size_t seed = c10::hash_combine(reinterpret_cast<size_t>(place.storage), static_cast<size_t>(place.offset));
  seed = c10::hash_combine(seed, static_cast<size_t>(place.type));
  for (const int64_t value : place.geometry) seed = c10::hash_combine(seed, static_cast<size_t>(value));
  return seed;
}

Recorder::Recorder(bool hash_only, bool sampled, size_t limit, py::function described, py::function window,
                   py::function starter, py::function flush, py::function problem)
    : hash_only_(hash_only), sampled_(sampled), limit_(limit), described_(std::move(described)), window_(std::move(window)),
      flush_(std::move(flush)), problem_(std::move(problem)), sweep_at_(kSweep) {
  batch_ = Batch::make(hash_only, std::move(starter), py::cpp_function([problem = problem_](const std::string& text) { problem(py::none(), text); }));
}

Recorder::~Recorder() {
  py::gil_scoped_acquire gil;  // it may be a call in another thread that held it last
  for (auto* function : {&described_, &window_, &flush_, &problem_}) *function = py::function();
}

void Recorder::text(std::string& to, const at::Tensor& tensor, const Warm* warm) {
  const Type type = type_of(tensor.scalar_type());
  const bool reached = type.name != nullptr && reaches(tensor);
  if (!reached && (type.name == nullptr || !handles(tensor))) {
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
  const uint32_t version = place ? tensor.unsafeGetTensorImpl()->version_counter().current_version() : 0;
  const uint8_t* data = nullptr;
  if (place) {
    std::unique_lock lock(known_lock_);
    const auto found = known_.find(*place);
    if (found != known_.end() && found->second.version == version && found->second.storage.use_count() > 0) {
      if (!sampled_) {
        to += found->second.text;
        return;
      }
      const Known known = found->second;
      lock.unlock();
      data = address(tensor);
      if (known.sample == sample_of(tensor, data)) {
        to += known.text;
        return;
      }
    }
  }
  if (data == nullptr) data = address(tensor);
  std::string made;
  if (warm != nullptr && !warm->empty()) {
    const auto found = warm->find({data, tensor.numel(), static_cast<int>(tensor.scalar_type())});
    if (found != warm->end() && is_dense(tensor)) made = found->second;
  }
  if (made.empty()) made = measured(tensor, data);
  to += made;
  if (place) {
    c10::weak_intrusive_ptr<c10::StorageImpl> weak(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(tensor.storage().unsafeGetStorageImpl()));
    Known known{std::move(weak), version, sampled_ ? sample_of(tensor, data) : std::string(), std::move(made)};
    std::lock_guard lock(known_lock_);
    known_.insert_or_assign(*place, std::move(known));
    if (known_.size() > sweep_at_) sweep();
  }
}

// A mark stands for what is reduced on the device, until the lines are taken.
void Recorder::deferred(std::string& to, const at::Tensor& tensor) {
  const auto put_to = [&](const Awaited& one) { to += one.ready.load(std::memory_order_acquire) ? one.text : Batch::mark(one); };
  const Type type = type_of(tensor.scalar_type());
  const auto place = sampled_ ? std::nullopt : place_of(tensor);  // a few elements are not looked at there
  const uint32_t version = place ? tensor.unsafeGetTensorImpl()->version_counter().current_version() : 0;
  if (place) {
    std::lock_guard lock(known_lock_);
    const auto found = known_.find(*place);
    if (found != known_.end() && found->second.version == version && found->second.storage.use_count() > 0 && found->second.awaited) {
      put_to(*found->second.awaited);
      return;
    }
  }
  const auto made = batch_->add(tensor, static_cast<Kind>(type.kind), type.parts);
  put_to(*made);
  if (!place) return;
  c10::weak_intrusive_ptr<c10::StorageImpl> weak(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(tensor.storage().unsafeGetStorageImpl()));
  std::lock_guard lock(known_lock_);
  known_.insert_or_assign(*place, Known{std::move(weak), version, "", "", made});
  if (known_.size() > sweep_at_) sweep();
}

std::string Recorder::measured(const at::Tensor& tensor, const uint8_t* data) const {
  const Type type = type_of(tensor.scalar_type());
  Hosted hosted{data, static_cast<size_t>(tensor.numel()), 1};
  if (!is_dense(tensor) && tensor.numel() > 0) hosted = gathered(tensor, data);
  const auto found = measure(hosted.data, hosted.count * type.parts, static_cast<Kind>(type.kind), hash_only_);
  return written(repeated(found, hosted.times), hash_only_);
}

void Recorder::warm(Warm& to, const at::Tensor& tensor) {
  if (type_of(tensor.scalar_type()).name == nullptr || !reaches(tensor) || !is_dense(tensor)) return;
  if (tensor.nbytes() < kWarm) return;
  const uint8_t* data = address(tensor);
  to[{data, tensor.numel(), static_cast<int>(tensor.scalar_type())}] = measured(tensor, data);
}

void Recorder::sweep() {
  for (auto at = known_.begin(); at != known_.end();) {
    if (at->second.storage.use_count() == 0) at = known_.erase(at);
    else at++;
  }
  sweep_at_ = known_.size() + kSweep;
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

void Recorder::forget(const at::Tensor& tensor) {
  if (!is_plain(tensor)) return;
  const auto place = place_of(tensor);
  if (!place) return;
  std::lock_guard lock(known_lock_);
  known_.erase(*place);
}

bool Recorder::reaches(const at::Tensor& tensor) {
  if (!is_plain(tensor)) return false;
  if (tensor.is_cpu() || tensor.numel() == 0) return true;
  const auto* own = static_cast<const char*>(tensor.const_data_ptr());
  const Window& window = window_of(tensor.device());
  return own >= window.device && own < window.device + window.bytes;
}

bool Recorder::handles(const at::Tensor& tensor) {
  return reaches(tensor) || (is_plain(tensor) && type_of(tensor.scalar_type()).name != nullptr && batch_->takes(tensor));
}

void Recorder::settle() {
  if (sampled_) batch_->start();
}

// Where the host reads a tensor that it reaches, once the device is done with it.
const uint8_t* Recorder::address(const at::Tensor& tensor) {
  const auto* own = static_cast<const char*>(tensor.const_data_ptr());
  if (own == nullptr || tensor.is_cpu()) return reinterpret_cast<const uint8_t*>(own);
  const Window& window = window_of(tensor.device());
  const c10::impl::VirtualGuardImpl device(tensor.device().type());
  device.synchronizeStream(device.getStream(tensor.device()));
  return reinterpret_cast<const uint8_t*>(window.host + (own - window.device));
}

const Recorder::Window& Recorder::window_of(c10::Device device) {
  const Window* last = last_.load(std::memory_order_acquire);
  if (last != nullptr && last->of == device) return *last;
  const std::pair<int, int> key(static_cast<int>(device.type()), device.index());
  std::unique_lock lock(windows_lock_);
  auto found = windows_.find(key);
  if (found == windows_.end()) {
    lock.unlock();  // Python may wait for us
    Window window{device};
    {
      py::gil_scoped_acquire gil;
      const py::object seen = window_(c10::DeviceTypeName(device.type(), true), device.index());
      if (!seen.is_none()) {
        const auto [base, host, bytes] = seen.cast<std::tuple<uintptr_t, uintptr_t, size_t>>();
        window = {device, reinterpret_cast<const char*>(base), reinterpret_cast<const char*>(host), bytes};
      }
    }
    lock.lock();
    found = windows_.emplace(key, window).first;
  }
  last_.store(&found->second, std::memory_order_release);
  return found->second;
}

void Recorder::add(std::string_view line) {
  {
    std::lock_guard lock(lines_lock_);
    lines_ += line;
    if (++waiting_ < limit_) return;
    waiting_ = 0;  // it may be flushed in another thread, later
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
      .def("take", &Recorder::take);
}

}  // namespace op_tools
