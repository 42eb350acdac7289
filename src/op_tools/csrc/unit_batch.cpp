// Tensors on a device that the host does not see, reduced together.
#include "batch.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/Device.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

#include "hash.h"
#include "recorder.h"

namespace op_tools {
namespace {

constexpr size_t kHeld = size_t{1} << 28;  // bytes of memory that wait at most
constexpr size_t kWaiting = 4096;          // tensors
constexpr size_t kKnown = 1 << 16;         // results that a line may still ask for
constexpr int64_t kPiece = 8 * kBlock;     // bytes
constexpr int kFields = 8;
constexpr int kHashOnly = 16;
constexpr char kMark = '\x02';

thread_local bool at_work = false;

struct AtWork {
  bool before = std::exchange(at_work, true);
  ~AtWork() { at_work = before; }
};

std::mutex all_mutex;
std::vector<std::weak_ptr<Batch>> all;

double double_of(int64_t bits) {
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// The values in the order of memory, each once; how often each is: as `snapshot.ordered`.
at::Tensor ordered(const at::Tensor& tensor, int64_t& times) {
  std::vector<int64_t> order(tensor.dim());
  at::Tensor flat = tensor.detach();
  for (int64_t dim = 0; dim < tensor.dim(); dim++) {
    order[dim] = dim;
    if (tensor.size(dim) > 1 && tensor.stride(dim) == 0) {
      times *= tensor.size(dim);
      flat = flat.narrow(dim, 0, 1);
    }
  }
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return tensor.stride(a) > tensor.stride(b); });
  return flat.permute(order).contiguous();
}

}  // namespace

bool batch_at_work() { return at_work; }

Batch::Batch(bool hash_only, py::function starter, py::function problem)
    : hash_only_(hash_only), starter_(std::move(starter)), problem_(std::move(problem)) {}

std::shared_ptr<Batch> Batch::make(bool hash_only, py::function starter, py::function problem) {
  std::shared_ptr<Batch> made(new Batch(hash_only, std::move(starter), std::move(problem)));
  std::lock_guard lock(all_mutex);
  all.erase(std::remove_if(all.begin(), all.end(), [](const auto& one) { return one.expired(); }), all.end());
  all.push_back(made);
  return made;
}

Batch::~Batch() {
  py::gil_scoped_acquire gil;
  for (auto& [type, start] : starters_) Py_XDECREF(start);
  older_.clear();
  started_.clear();
  starter_ = py::function();
  problem_ = py::function();
}

void Batch::start_all() {
  std::vector<std::shared_ptr<Batch>> found;
  {
    std::lock_guard lock(all_mutex);
    for (const auto& one : all)
      if (auto batch = one.lock()) found.push_back(std::move(batch));
  }
  for (const auto& batch : found) batch->start();
}

// Whoever has it may wait for the GIL: nobody waits for it with the GIL.
std::unique_lock<std::mutex> Batch::locked() {
  if (PyGILState_Check()) {
    py::gil_scoped_release release;
    return std::unique_lock(mutex_);
  }
  return std::unique_lock(mutex_);
}

PyObject* Batch::starter_of(c10::DeviceType type) {
  {
    std::lock_guard lock(starters_mutex_);
    const auto found = starters_.find(type);
    if (found != starters_.end()) return found->second;
  }
  PyObject* made = nullptr;
  {
    py::gil_scoped_acquire gil;
    AtWork guard;
    py::object found = starter_(c10::DeviceTypeName(type, true));
    if (!found.is_none()) made = found.release().ptr();
  }
  std::lock_guard lock(starters_mutex_);
  return starters_.try_emplace(type, made).first->second;
}

bool Batch::takes(const at::Tensor& tensor) {
  const c10::DeviceType type = tensor.device().type();
  if (type == taken_ && type != c10::DeviceType::CPU) return true;
  if (starter_of(type) == nullptr) return false;
  taken_ = type;
  return true;
}

void Batch::put_mark(std::string& to, const Awaited& one) {
  char digits[24];
  to += kMark;
  to.append(digits, std::to_chars(digits, digits + sizeof digits, one.number).ptr);
  to += kMark;
}

std::shared_ptr<Awaited> Batch::add(const at::Tensor& tensor, Kind kind, int parts) {
  AtWork guard;
  at::NoGradGuard no_grad;
  int64_t times = 1;
  const bool dense = tensor.is_contiguous() || tensor.is_non_overlapping_and_dense();
  const at::Tensor flat = dense ? tensor : ordered(tensor, times);
  const c10::impl::VirtualGuardImpl device(tensor.device().type());
  const c10::Stream stream = device.getStream(tensor.device());
  auto made = std::make_shared<Awaited>();
  const auto lock = locked();
  if (stream_ && *stream_ != stream) start_locked();
  stream_ = stream;
  made->number = next_++;
  known_.push_back(made);
  const auto storage = flat.storage();
  const auto count = static_cast<size_t>(flat.numel()) * parts;
  waiting_.push_back({made, storage, storage.data(), static_cast<const uint8_t*>(flat.const_data_ptr()), count, kind, times});
  storages_.insert(storage.unsafeGetStorageImpl());
  bytes_ += flat.nbytes();
  if (bytes_ > kHeld || waiting_.size() >= kWaiting) start_locked();
  return made;
}

void Batch::before_write(const at::Tensor& tensor) {
  if (at_work || !tensor.has_storage()) return;
  const auto lock = locked();
  if (storages_.count(tensor.storage().unsafeGetStorageImpl()) == 0) return;
  const c10::Stream stream = *stream_;
  start_locked();
  const c10::impl::VirtualGuardImpl device(tensor.device().type());
  const c10::Stream writes = device.getStream(tensor.device());
  if (writes == stream) return;
  c10::Event event(stream.device_type());
  event.record(stream);
  event.block(writes);
}

void Batch::start() {
  if (at_work) return;
  const auto lock = locked();
  start_locked();
}

void Batch::start_locked() {
  if (waiting_.empty()) return;
  std::vector<Piece> pieces;
  pieces.swap(waiting_);
  storages_.clear();
  bytes_ = 0;
  AtWork guard;
  try {
    launch(pieces);
  } catch (const std::exception& error) {
    py::gil_scoped_acquire gil;
    for (auto& piece : pieces) {
      if (piece.to->ready) continue;
      piece.to->text = "\"skipped\":\"not read\"";
      piece.to->ready.store(true, std::memory_order_release);
    }
    problem_(error.what());
  }
}

void Batch::launch(std::vector<Piece>& pieces) {
  const c10::Stream stream = *stream_;
  const c10::impl::VirtualGuardImpl device(stream.device_type());
  std::vector<int64_t> table;
  for (auto& piece : pieces) {
    if (piece.storage.data() != piece.base) {  // given back by a resize
      piece.to->text = "\"skipped\":\"its memory was given back\"";
      piece.to->ready.store(true, std::memory_order_release);
      continue;
    }
    device.recordDataPtrOnStream(piece.storage.data_ptr(), stream);
    const auto size = static_cast<int64_t>(piece.count * width_of(piece.kind)), whole = size / 8 * 8;
    const auto from = reinterpret_cast<int64_t>(piece.data);
    const int64_t kind = static_cast<int>(piece.kind) + (hash_only_ ? kHashOnly : 0);
    for (int64_t at = 0; at < whole; at += kPiece) table.insert(table.end(), {from + at, std::min(kPiece, whole - at), kind});
    if (size % 8) table.insert(table.end(), {from + whole, size % 8, kind});
    piece.rows = static_cast<size_t>((whole + kPiece - 1) / kPiece + (size % 8 != 0));
  }
  const c10::DeviceGuard on(stream.device());
  const c10::Stream before = device.exchangeStream(stream);
  try {
    const at::Tensor rows = at::from_blob(table.data(), {static_cast<int64_t>(table.size()) / 3, 3}, at::kLong);
    py::gil_scoped_acquire gil;
    const py::handle start(starter_of(stream.device_type()));
    py::object read = table.empty() ? py::object(py::none()) : start(rows, py::reinterpret_steal<py::object>(THPDevice_New(stream.device())));
    started_.push_back({std::move(read), std::move(pieces)});
    for (auto& piece : started_.back().pieces) piece.storage = c10::Storage();
  } catch (...) {
    device.exchangeStream(before);
    throw;
  }
  device.exchangeStream(before);
}

void Batch::read(bool everything) {
  std::unique_lock<std::mutex> one(reading_, std::defer_lock);
  if (PyGILState_Check()) {
    py::gil_scoped_release release;
    one.lock();
  } else {
    one.lock();
  }
  std::deque<Started> groups;
  {
    const auto lock = locked();
    start_locked();
    groups.swap(older_);
    if (everything) std::move(started_.begin(), started_.end(), std::back_inserter(groups));
    else older_.swap(started_);
    if (everything) started_.clear();
  }
  for (auto& group : groups) fill(group);
  py::gil_scoped_acquire gil;
  groups.clear();
  const auto lock = locked();
  while (known_.size() > kKnown && known_.front()->ready) known_.pop_front(), first_++;
}

void Batch::fill(Started& group) {
  at::Tensor values;
  std::string failed;
  {
    py::gil_scoped_acquire gil;
    AtWork guard;
    try {
      if (!group.read.is_none()) values = group.read().cast<at::Tensor>().contiguous();
    } catch (const std::exception& error) {
      failed = error.what();
      problem_(failed);
    }
  }
  const int64_t* row = values.defined() ? values.const_data_ptr<int64_t>() : nullptr;
  for (auto& piece : group.pieces) {
    if (piece.to->ready) continue;
    if (!failed.empty()) {
      piece.to->text = "\"skipped\":\"not read\"";
    } else {
      const bool whole = piece.kind >= Kind::int64;
      Hash hash(piece.count * width_of(piece.kind));
      Measured found;
      found.whole = whole;
      double total = 0, squares = 0, low = std::numeric_limits<double>::max(), high = -low;
      int64_t least = std::numeric_limits<int64_t>::max(), most = std::numeric_limits<int64_t>::min(), finite = 0;
      for (size_t i = 0; i < piece.rows; i++, row += kFields) {
        hash.block({static_cast<uint64_t>(row[0]), static_cast<uint64_t>(row[1])});
        if (row[6] == 0) continue;
        finite += row[6];
        total += double_of(row[4]), squares += double_of(row[5]);
        if (whole) least = std::min(least, row[2]), most = std::max(most, row[3]);
        else low = std::min(low, double_of(row[2])), high = std::max(high, double_of(row[3]));
      }
      found.hash = hash.end(nullptr, 0);
      found.nonfinite = hash_only_ ? 0 : static_cast<int64_t>(piece.count) - finite;
      found.numbers = finite > 0;
      found.low = low, found.high = high, found.whole_low = least, found.whole_high = most;
      found.mean = finite ? total / static_cast<double>(finite) : 0;
      found.norm = std::sqrt(squares);
      piece.to->text = written(repeated(found, piece.times), hash_only_);
    }
    piece.to->ready.store(true, std::memory_order_release);
  }
}

std::string Batch::filled(const std::string& lines) {
  std::string made;
  made.reserve(2 * lines.size());
  size_t from = 0;
  for (size_t at = lines.find(kMark); at != std::string::npos; at = lines.find(kMark, from)) {
    made.append(lines, from, at - from);
    const size_t end = lines.find(kMark, at + 1);
    const int64_t number = std::strtoll(lines.c_str() + at + 1, nullptr, 10);
    const auto known = awaited(number);
    made += known != nullptr && known->ready ? known->text : "\"skipped\":\"not read\"";
    from = end + 1;
  }
  made.append(lines, from);
  return made;
}

std::shared_ptr<Awaited> Batch::awaited(int64_t number) {  // one at a time: the program adds to them meanwhile
  const auto lock = locked();
  number -= first_;
  return number >= 0 && number < static_cast<int64_t>(known_.size()) ? known_[number] : nullptr;
}

bool Batch::idle() {
  const auto lock = locked();
  return next_ == 0 || (waiting_.empty() && older_.empty() && started_.empty());
}

}  // namespace op_tools
