// Tensors on a device that the host does not see, reduced together.
#include "batch.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/Device.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "hash.h"
#include "raw.h"
#include "recorder.h"

namespace op_tools {
namespace {

constexpr size_t kHeld = size_t{1} << 28;  // bytes of memory that wait at most
constexpr size_t kWaiting = 4096;          // tensors
constexpr char kMark = '\x02';

thread_local bool at_work = false;

std::mutex all_mutex;
std::vector<std::weak_ptr<Batch>> all;

double double_of(int64_t bits) {
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace

bool batch_at_work() { return at_work; }

AtWork::AtWork() : before_(std::exchange(at_work, true)) {}

AtWork::~AtWork() { at_work = before_; }

Batch::Batch(bool hash_only, py::function starter, py::function launcher, py::function problem)
    : hash_only_(hash_only), starter_(std::move(starter)), problem_(std::move(problem)), launchers_(std::move(launcher)) {}

std::shared_ptr<Batch> Batch::make(bool hash_only, py::function starter, py::function launcher, py::function problem) {
  std::shared_ptr<Batch> made(new Batch(hash_only, std::move(starter), std::move(launcher), std::move(problem)));
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

void Batch::put_mark(std::string& to, int64_t number) {
  to += kMark;
  put_number(to, number);
  to += kMark;
}

const Batch::Waiting* Batch::Places::find(const Place& place) const {
  if (all_.size() > kFew) {
    const auto found = index_.find(place);
    return found == index_.end() ? nullptr : &all_[found->second];
  }
  const auto found = std::find_if(all_.rbegin(), all_.rend(), [&](const Waiting& one) { return one.place == place; });
  return found == all_.rend() ? nullptr : &*found;
}

void Batch::Places::put(const Waiting& one) {
  all_.push_back(one);
  if (all_.size() <= kFew) return;
  for (size_t at = index_.empty() ? 0 : all_.size() - 1; at < all_.size(); at++) index_[all_[at].place] = at;
}

void Batch::Places::clear() {
  all_.clear();
  if (!index_.empty()) index_.clear();
}

const c10::Stream& Batch::current(Hold& hold, c10::Device device) const {
  if (!hold.stream_ || hold.stream_->device() != device) hold.stream_ = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  return *hold.stream_;
}

int64_t Batch::add(Hold& hold, const at::Tensor& tensor, Kind kind, int parts, const std::optional<Place>& place) {
  const uint32_t version = place ? version_of(tensor) : 0;
  hold.take();
  if (place) {
    const Waiting* known = places_.find(*place);
    if (known != nullptr && known->version == version) return known->number;
  }
  int64_t times = 1;
  at::Tensor copy;
  std::unique_ptr<Gaps> gaps;
  const c10::Stream& stream = current(hold, tensor.device());
  if (!is_dense(tensor)) {
    gaps = gaps_in(tensor, times);
    if (static_cast<int64_t>(gaps->dims.size()) >= kDims || !launchers_.reads_gaps(stream)) {
      hold.free();  // torch may ask for anything
      copy = without(*std::exchange(gaps, nullptr), tensor.storage());
      hold.take();
    }
  }
  const at::Tensor& flat = copy.defined() ? copy : tensor;
  if (stream_ && *stream_ != stream) start_locked();
  stream_ = stream;
  const int64_t number = next_.fetch_add(1, std::memory_order_relaxed);
  if (number % kChunk == 0) known_.push_back(std::make_unique<Chunk>());
  const auto& storage = flat.storage();
  const auto count = static_cast<size_t>(flat.numel() / (gaps ? times : 1)) * parts;
  auto* to = &(*known_.back())[number % kChunk];
  waiting_.push_back({to, storage, storage.data(), static_cast<const uint8_t*>(flat.const_data_ptr()), count, kind, times});
  waiting_.back().gaps = std::move(gaps);
  if (place) {
    waiting_.back().counter = tensor.unsafeGetTensorImpl()->version_counter();
    waiting_.back().version = version;
    places_.put({*place, version, number});
  }
  storages_.insert(storage.unsafeGetStorageImpl());
  bytes_ += flat.nbytes();
  if (bytes_ > kHeld || waiting_.size() >= kWaiting) start_locked();
  return number;
}

void Batch::before_write(Hold& hold, const at::Tensor& tensor) {
  if (at_work || !tensor.has_storage()) return;
  hold.take();
  if (waiting_.empty() || storages_.count(tensor.storage().unsafeGetStorageImpl()) == 0) return;
  const c10::Stream stream = *stream_;
  start_locked();
  const c10::Stream& writes = current(hold, tensor.device());
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
  pieces.reserve(std::min(waiting_.size() * 2, kWaiting));
  pieces.swap(waiting_);
  if (8 * pieces.size() > storages_.bucket_count()) storages_.clear();
  else
    for (const auto& piece : pieces) storages_.erase(piece.storage.unsafeGetStorageImpl());
  places_.clear();
  bytes_ = 0;
  AtWork guard;
  Started& group = started_.emplace_back();
  group.below = next_;
  try {
    launch(pieces, group);
  } catch (const std::exception& error) {
    for (auto& piece : pieces)
      if (!piece.to->ready()) piece.to->set(State::failed);
    py::gil_scoped_acquire gil;
    problem_(error.what());
  }
}

void Batch::launch(std::vector<Piece>& pieces, Started& group) {
  const c10::Stream stream = *stream_;
  const Size size = sized(pieces, stream);
  const c10::DeviceGuard on(stream.device());
  if (size.rows > 0 && launchers_.has(stream)) {
    group.native = launchers_.prepared(stream, size.rows, size.gaps);
    tabulate(pieces, group.native.table(), group.native.gaps());
    if (!launchers_.launch(group.native)) launchers_.free(group.native);
  }
  if (size.rows > 0 && !group.native.memory.defined()) {
    if (size.gaps > 0) close_gaps(pieces);
    std::vector<int64_t> table(static_cast<size_t>(kGiven * size.rows));
    tabulate(pieces, table.data(), nullptr);
    group.read = started(table.data(), size.rows, stream);
  }
  for (auto& piece : pieces) piece.storage = c10::Storage();
  group.pieces = std::move(pieces);
}

Batch::State Batch::Piece::state() const {
  if (storage.data() != base) return State::gone;  // given back by a resize
  const bool counted = counter.enabled();
  return counted && counter.current_version() != version ? State::written : State::awaited;
}

// How many rows of the table each of them takes; all of them.
Batch::Size Batch::sized(std::vector<Piece>& pieces, const c10::Stream& stream) const {
  const c10::impl::VirtualGuardImpl device(stream.device_type());
  Size all;
  for (auto& piece : pieces) {
    if (const State state = piece.state(); state != State::awaited) {
      piece.to->set(state);
      continue;
    }
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

const Batch::Started* Batch::first_started() {
  const auto lock = locked();
  return started_.empty() ? nullptr : &started_.front();
}

void Batch::read(bool everything) {
  std::unique_lock<std::mutex> one(reading_, std::defer_lock);
  if (PyGILState_Check()) {
    py::gil_scoped_release release;
    one.lock();
  } else {
    one.lock();
  }
  if (everything) {
    const auto lock = locked();
    start_locked();
  }
  const int64_t now = next_;
  const bool behind = now - read_below_ > kKnown / 4;  // then the device is waited for
  std::deque<Started> groups;
  while (const Started* first = first_started()) {  // which only we take away
    if (everything ? first->below > now : !(behind && groups.empty()) && !first->done()) break;
    const auto lock = locked();
    groups.push_back(std::move(started_.front()));
    started_.pop_front();
  }
  bool of_python = false;
  const int64_t below = groups.empty() ? 0 : groups.back().below;
  for (auto& group : groups) fill(group), of_python = of_python || group.read;
  if (of_python) {
    py::gil_scoped_acquire gil;
    groups.clear();
  }
  const auto lock = locked();
  read_below_ = std::max(read_below_.load(), below);
  const auto is_ready = [](const Result& one) { return one.ready(); };
  while (next_ - first_ > kKnown + kChunk && std::all_of(known_.front()->begin(), known_.front()->end(), is_ready)) {
    known_.pop_front(), first_ += kChunk;
  }
}

void Batch::fill(Started& group) {
  at::Tensor values;
  std::string failed;
  AtWork guard;
  try {
    if (group.native.memory.defined()) group.native.wait();
  } catch (const std::exception& error) {
    failed = error.what();
  }
  if (group.read || !failed.empty()) {
    py::gil_scoped_acquire gil;
    try {
      if (group.read) values = group.read().cast<at::Tensor>().contiguous();
    } catch (const std::exception& error) {
      failed = error.what();
    }
    if (!failed.empty()) problem_(failed);
  }
  const int64_t* row = values.defined() ? values.const_data_ptr<int64_t>() : nullptr;
  if (group.native.memory.defined()) row = group.native.results();
  for (auto& piece : group.pieces) {
    if (piece.to->ready()) continue;
    if (failed.empty()) fill(piece, row), row += kFields * piece.rows;
    piece.to->set(failed.empty() ? State::found : State::failed);
  }
  launchers_.free(group.native);
}

void Batch::fill(Piece& piece, const int64_t* row) const {
  Measured& found = piece.to->found;
  Hash hash(piece.count * width_of(piece.kind));
  found.whole = piece.kind >= Kind::int64;
  double total = 0, squares = 0, low = std::numeric_limits<double>::max(), high = -low;
  int64_t least = std::numeric_limits<int64_t>::max(), most = std::numeric_limits<int64_t>::min(), finite = 0;
  for (int64_t i = 0; i < piece.rows; i++, row += kFields) {
    hash.block({static_cast<uint64_t>(row[0]), static_cast<uint64_t>(row[1])});
    if (row[6] == 0) continue;
    finite += row[6];
    total += double_of(row[4]), squares += double_of(row[5]);
    if (found.whole) least = std::min(least, row[2]), most = std::max(most, row[3]);
    else low = std::min(low, double_of(row[2])), high = std::max(high, double_of(row[3]));
  }
  found.hash = hash.end(nullptr, 0);
  found.nonfinite = hash_only_ ? 0 : static_cast<int64_t>(piece.count) - finite;
  found.numbers = finite > 0;
  found.low = low, found.high = high, found.whole_low = least, found.whole_high = most;
  found.mean = finite ? total / static_cast<double>(finite) : 0;
  found.norm = std::sqrt(squares);
  found = repeated(found, piece.times);
}

Batch::Found Batch::found() {
  Found made;
  const auto lock = locked();
  made.first_ = first_, made.next_ = next_, made.hash_only_ = hash_only_;
  for (const auto& chunk : known_) made.chunks_.push_back(chunk.get());
  return made;
}

void Batch::Found::put(std::string& to, int64_t number) const {
  State state = State::failed;
  if (number >= first_ && number < next_) {
    const Result& result = (*chunks_[(number - first_) / kChunk])[number % kChunk];
    state = result.state.load(std::memory_order_acquire);
    if (state == State::found) put_found(to, result.found, hash_only_);
  }
  if (state == State::gone) to += "\"skipped\":\"its memory was given back\"";
  else if (state == State::written) to += "\"skipped\":\"it was written before it was read\"";
  else if (state != State::found) to += "\"skipped\":\"not read\"";
}

void Batch::Found::fill(std::string& to, std::string_view line) const {
  size_t from = 0;
  for (size_t at = line.find(kMark); at != std::string::npos; at = line.find(kMark, from)) {
    to.append(line, from, at - from);
    put(to, std::strtoll(line.data() + at + 1, nullptr, 10));
    from = line.find(kMark, at + 1) + 1;
  }
  to.append(line, from);
}

}  // namespace op_tools
