// Tensors on a device that the host does not see, reduced together.
#include "batch.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/Device.h>

#include <pthread.h>

#include <algorithm>

namespace op_tools {
namespace {

constexpr size_t kHeld = size_t{1} << 28;  // bytes of memory that wait at most
constexpr size_t kWaiting = 128;           // tensors: their memory is used again while it is in the cache
constexpr size_t kAhead = 8;               // of them, that are asked for from memory

thread_local bool at_work = false;
thread_local int trusting = 0;

std::mutex all_mutex;
std::vector<std::weak_ptr<Batch>> all;

// How many forks lie between the first process and this one: what waited in a parent is the parent's.
int forks() {
  static std::atomic<int> count{0};
  static const int heard = pthread_atfork(nullptr, nullptr, [] { count++; });
  return heard == 0 ? count.load(std::memory_order_relaxed) : 0;
}

}  // namespace

bool batch_at_work() { return at_work; }

AtWork::AtWork() : before_(std::exchange(at_work, true)) {}

AtWork::~AtWork() { at_work = before_; }

Batch::Batch(bool hash_only, bool sampled, py::function starter, py::function launcher, py::function problem)
    : hash_only_(hash_only), sampled_(sampled), starter_(std::move(starter)), problem_(std::move(problem)), launchers_(std::move(launcher)),
      numbers_(!sampled), forks_(forks()) {}

std::shared_ptr<Batch> Batch::make(bool hash_only, bool sampled, py::function starter, py::function launcher, py::function problem) {
  std::shared_ptr<Batch> made(new Batch(hash_only, sampled, std::move(starter), std::move(launcher), std::move(problem)));
  std::lock_guard lock(all_mutex);
  all.erase(std::remove_if(all.begin(), all.end(), [](const auto& one) { return one.expired(); }), all.end());
  all.push_back(made);
  return made;
}

Batch::~Batch() {
  py::gil_scoped_acquire gil;
  for (auto& group : started_) try {  // its memory is not given back before the device is done with it
      if (group.native.memory.defined()) group.native.wait();
    } catch (const std::exception&) {
    }
  started_.clear();
  for (auto& [type, start] : starters_) Py_XDECREF(start);
  starter_ = py::function();
  problem_ = py::function();
  launchers_.close();
}

std::vector<std::shared_ptr<Batch>> Batch::living() {
  std::vector<std::shared_ptr<Batch>> found;
  std::lock_guard lock(all_mutex);
  for (const auto& one : all)
    if (auto batch = one.lock()) found.push_back(std::move(batch));
  return found;
}

void Batch::start_all() {
  for (const auto& batch : living()) batch->start();
}

void Batch::forget_all() {
  if (at_work) return;
  for (const auto& batch : living()) {
    Hold hold(*batch);
    batch->forget(hold);
  }
}

void Batch::forget(Hold& hold) {
  start(hold);
  oldest_ = next_;
}

void Batch::trust_nobody() {
  Hold hold(*this);
  forget(hold);
  sampled_ = true;
}

bool Batch::trusted() { return trusting > 0; }

Batch::Trust::Trust() : batches_(living()) {
  trusting++;
  for (const auto& batch : batches_) {
    const auto lock = batch->locked();
    if (batch->trusts_++ == 0) batch->trusted_ = batch->next_;
  }
}

void Batch::Trust::end() {
  if (!std::exchange(on_, false)) return;
  trusting--;
  for (const auto& batch : batches_) {
    const auto lock = batch->locked();
    batch->start_locked();
    if (--batch->trusts_ == 0) batch->kept_.clear();
  }
  batches_.clear();
}

// Whoever has it may wait for the GIL: nobody waits for it with the GIL.
std::unique_lock<std::mutex> Batch::locked() {
  if (std::unique_lock quick(mutex_, std::try_to_lock); quick.owns_lock()) return quick;
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

const c10::Stream& Batch::current(Hold& hold, c10::Device device) const {
  if (!hold.stream_ || hold.stream_->device() != device) hold.stream_ = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  return *hold.stream_;
}

inline Batch::Piece& Batch::add(const at::Tensor& tensor, Kind kind, int parts, const c10::Stream& stream, Apart& apart) {
  if (!stream_ || *stream_ != stream) start_locked(), stream_ = stream;
  if (numbers_.full()) start_locked(), numbers_.turn();
  const int64_t number = next_.load(std::memory_order_relaxed);
  next_.store(number + 1, std::memory_order_relaxed);
  if (number % kChunk == 0) known_.push_back(chunk_ != nullptr ? std::move(chunk_) : std::make_unique<Chunk>());
  const c10::Storage& storage = tensor.unsafeGetTensorImpl()->unsafe_storage();
  const void* base = storage.data();
  const auto* data = static_cast<const uint8_t*>(base) + tensor.storage_offset() * tensor.itemsize();
  const size_t count = static_cast<size_t>(apart.gaps ? tensor.numel() / apart.times : tensor.numel()) * parts;
  bytes_ += count * width_of(kind);
  waiting_.push_back({&(*known_.back())[number % kChunk], storage, base, data, count, kind, apart.times, std::move(apart.gaps)});
  return waiting_.back();
}

int64_t Batch::numbered(Hold& hold, const at::Tensor& tensor, Kind kind, int parts, const std::optional<Place>& place, uint32_t version,
                        Numbers::Slot* slot) {
  Apart parted;
  if (place ? place->gaps != 0 : !is_dense(tensor)) parted = apart(hold, tensor);
  const bool in_place = !parted.copy.defined();
  if (!in_place || numbers_.full()) slot = nullptr;  // it may be another one's by now
  Piece& piece = add(in_place ? tensor : parted.copy, kind, parts, current(hold, tensor.device()), parted);
  if (place && sampled_) piece.counter = tensor.unsafeGetTensorImpl()->version_counter(), piece.version = version;
  if (slot == nullptr) slot = &numbers_.of(memory_of(tensor));
  const int64_t number = next_.load(std::memory_order_relaxed) - 1;
  if (in_place) slot->waits = number;
  if (!holds(hold, slot->newest.number)) slot->clear();  // the others are older
  if (place && (in_place || !sampled_)) slot->keep(*place, version, number);  // of a copy, nobody holds the storage meanwhile
  if (bytes_ > kHeld || waiting_.size() >= kWaiting) start_locked();
  return number;
}

Batch::Apart Batch::apart(Hold& hold, const at::Tensor& tensor) {
  Apart made;
  made.gaps = gaps_in(tensor, made.times);
  if (static_cast<int64_t>(made.gaps->dims.size()) < kDims && launchers_.reads_gaps(current(hold, tensor.device()))) return made;
  hold.free();  // torch may ask for anything
  made.copy = without(*std::exchange(made.gaps, nullptr), tensor.storage());
  hold.take();
  return made;
}

void Batch::before_write(Hold& hold, const at::Tensor& tensor) {
  if (at_work || memory_of(tensor) == nullptr) return;
  hold.take();
  if (waiting_.empty()) return;
  const Numbers::Slot* slot = numbers_.find(memory_of(tensor));
  if (slot == nullptr || slot->waits < below_) return;
  start_before(hold, tensor.device());
}

void Batch::start_before(Hold& hold, c10::Device device) {
  const c10::Stream stream = *stream_;
  start_locked();
  const c10::Stream& writes = current(hold, device);
  if (writes == stream) return;
  c10::Event event(stream.device_type());
  event.record(stream);
  event.block(writes);
}

void Batch::forget(Hold& hold, const at::Tensor& tensor) {
  auto* const storage = memory_of(tensor);
  if ((sampled_ && !hold.trusts_) || storage == nullptr) return;  // if it was written, it does not wait
  hold.take();
  if (Numbers::Slot* slot = numbers_.find(storage)) slot->clear();
}

void Batch::start() {
  if (at_work) return;
  Hold hold(*this);
  start(hold);
}

void Batch::start(Hold& hold) {
  hold.take();
  if (!waiting_.empty()) start_before(hold, stream_->device());
}

void Batch::start_locked() {
  if (waiting_.empty() || forks() != forks_) return;
  bytes_ = 0;
  below_ = next_;
  AtWork guard;
  Started& group = started_.emplace_back();
  group.below = next_;
  try {
    launch(group);
  } catch (const std::exception& error) {
    for (auto& piece : waiting_)
      if (piece.to != nullptr) piece.to->set(State::failed);
    waiting_.clear();
    py::gil_scoped_acquire gil;
    problem_(error.what());
  }
  waiting_.clear();  // its memory is used again at once
}

void Batch::launch(Started& group) {
  const c10::Stream stream = *stream_;
  const Size size = sized(stream);
  const c10::DeviceGuard on(stream.device());
  if (size.rows > 0 && launchers_.has(stream)) {
    group.native = launchers_.prepared(stream, size.rows, size.gaps);
    tabulate(group.native.table(), group.native.gaps());
    if (!launchers_.launch(group.native)) launchers_.free(group.native);
  }
  if (size.rows > 0 && !group.native.memory.defined()) {
    if (size.gaps > 0) close_gaps();
    std::vector<int64_t> table(static_cast<size_t>(kGiven * size.rows));
    tabulate(table.data(), nullptr);
    group.read = started(table.data(), size.rows, stream);
  }
  group.pieces = asked();
  release();
}

std::vector<Batch::Asked> Batch::asked() {
  std::vector<Asked> made;
  if (!spare_.empty()) made = std::move(spare_.back()), spare_.pop_back();
  made.reserve(kWaiting);  // any of them fits the next ones
  for (const auto& piece : waiting_)
    if (piece.to != nullptr) made.push_back({piece.to, piece.count, static_cast<uint64_t>(piece.kind), piece.times});
  return made;
}

// What nobody else holds is gone: nothing is to be known of it, and its own memory is used again while it is in the cache.
void Batch::release() {
  if (sampled_) {
    for (auto& piece : waiting_)
      if (trusts_ > 0) kept_.push_back(Numbers::weak(piece.storage.unsafeGetStorageImpl()));
    return;
  }
  for (size_t at = 0; at < waiting_.size(); at++) {
    if (at + kAhead < waiting_.size()) numbers_.expect(waiting_[at + kAhead].storage.unsafeGetStorageImpl());
    auto& held = waiting_[at].storage;
    auto* storage = held.unsafeGetStorageImpl();
    const bool last = held.use_count() == 1;
    held = c10::Storage();
    if (last) numbers_.drop(storage);
  }
}

Batch::State Batch::Piece::state() const {
  if (storage.data() != base) return State::gone;  // given back by a resize
  const bool counted = counter.enabled();
  return counted && counter.current_version() != version ? State::written : State::awaited;
}

// How many rows of the table each of them takes; all of them.
Batch::Size Batch::sized(const c10::Stream& stream) {
  const c10::impl::VirtualGuardImpl device(stream.device_type());
  Size all;
  const c10::StorageImpl* last = nullptr;
  for (auto& piece : waiting_) {
    if (const State state = piece.state(); state != State::awaited) {
      std::exchange(piece.to, nullptr)->set(state);
      continue;
    }
    if (std::exchange(last, piece.storage.unsafeGetStorageImpl()) != piece.storage.unsafeGetStorageImpl())  // not of each view
      device.recordDataPtrOnStream(piece.storage.data_ptr(), stream);
    const auto size = static_cast<int64_t>(piece.count * width_of(piece.kind));
    piece.rows = rows_of(size);
    all.rows += piece.rows;
    all.gaps += piece.rows > 0 && piece.gaps != nullptr;
  }
  return all;
}

py::object Batch::started(int64_t* table, int64_t rows, const c10::Stream& stream) {
  const c10::impl::VirtualGuardImpl device(stream.device_type());
  const c10::Stream before = device.exchangeStream(stream);
  py::gil_scoped_acquire gil;
  try {
    const at::Tensor given = at::from_blob(table, {rows, kGiven}, at::kLong);
    const py::handle start(starter_of(stream.device_type()));
    py::object read = start(given, py::reinterpret_steal<py::object>(THPDevice_New(stream.device())));
    device.exchangeStream(before);
    return read;
  } catch (...) {
    device.exchangeStream(before);
    throw;
  }
}

}  // namespace op_tools
