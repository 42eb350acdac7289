// What a device has reduced, read and told by number.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "batch.h"
#include "hash.h"
#include "raw.h"
#include "recorder.h"

namespace op_tools {
namespace {

constexpr size_t kSpare = 256;  // about as many as are read at once
constexpr char kMark = '\x02';

double double_of(int64_t bits) {
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace

void Batch::put_mark(std::string& to, int64_t number) {
  to += kMark;
  put_number(to, number);
  to += kMark;
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
  if (groups.empty()) return;
  for (auto& group : groups) fill(group), group.pieces.clear();
  std::deque<std::unique_ptr<Chunk>> gone;  // given back without the lock
  {
    const auto lock = locked();
    read_below_ = std::max(read_below_.load(), groups.back().below);
    for (; next_ - first_ > kKnown + kChunk && first_ + kChunk <= read_below_; first_ += kChunk) {
      gone.push_back(std::move(known_.front())), known_.pop_front();
    }
    for (auto& group : groups)
      if (spare_.size() < kSpare) spare_.push_back(std::move(group.pieces));
  }
  if (std::any_of(groups.begin(), groups.end(), [](const Started& group) { return bool(group.read); })) {
    py::gil_scoped_acquire gil;
    groups.clear();
  }
}

void Batch::tidy() {
  Numbers::Forgotten forgotten;
  bool has_next = false;
  {
    const auto lock = locked();
    forgotten = numbers_.forgotten(), has_next = chunk_ != nullptr;
  }
  auto next = has_next ? nullptr : std::make_unique<Chunk>();
  if (forgotten != nullptr) forgotten->clear();
  const auto lock = locked();
  if (forgotten != nullptr) numbers_.again(std::move(forgotten));
  if (next != nullptr) chunk_ = std::move(next);
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
  for (const auto& piece : group.pieces) {
    if (failed.empty()) row = fill(piece, row);
    piece.to->set(failed.empty() ? State::found : State::failed);
  }
  launchers_.free(group.native);
}

// Returns the row behind its own.
const int64_t* Batch::fill(const Asked& piece, const int64_t* row) const {
  Measured& found = piece.to->found;
  const auto kind = static_cast<Kind>(piece.kind);
  const size_t size = piece.count * width_of(kind);
  Hash hash(size);
  found.whole = kind >= Kind::int64;
  double total = 0, squares = 0, low = std::numeric_limits<double>::max(), high = -low;
  int64_t least = std::numeric_limits<int64_t>::max(), most = std::numeric_limits<int64_t>::min(), finite = 0;
  const int64_t* const end = row + kFields * rows_of(static_cast<int64_t>(size));
  for (; row < end; row += kFields) {
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
  return end;
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
