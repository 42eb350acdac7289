// What comes of the calls that OpTimeMeasure has timed: milliseconds, sums, lines of its file.
#include "timer.h"

#include <pybind11/stl.h>

#include <charconv>
#include <optional>
#include <thread>

namespace op_tools {
namespace {

// Nothing where the device has not come to its last mark, unless it is waited for.
std::optional<Done> resolved(Row& row, bool wait) {
  std::lock_guard hold(row.lock);
  const Clock& clock = *row.clock;
  const bool backward = !row.spans.empty();
  const double last = backward ? clock.between(row.spans.back().first, row.spans.back().second, wait) : clock.between(row.start, row.end, wait);
  if (last < 0) return std::nullopt;
  row.closed = true;  // a second backward pass has nobody to tell
  Done done{row.id, row.group, row.result, row.grads, backward, backward ? clock.between(row.start, row.end, true) : last, 0};
  for (const auto& [start, end] : row.spans) {
    done.backward_ms += &end == &row.spans.back().second ? last : clock.between(start, end, true);
    row.clock->free(start);
    row.clock->free(end);
  }
  row.clock->free(row.start);
  row.clock->free(row.end);
  return done;
}

void append(std::string& text, double ms) {
  char digits[64];
  const auto end = std::to_chars(digits, digits + sizeof digits, ms, std::chars_format::fixed, 8);
  text.append(digits, end.ptr);
}

py::tuple told(const Totals& sums) { return py::make_tuple(sums.count, sums.total, sums.first, sums.least, sums.most, sums.classes); }

}  // namespace

std::shared_ptr<Row> Ledger::new_row() {
  std::lock_guard hold(lock_);
  if (free_.empty()) return std::make_shared<Row>();
  auto row = std::move(free_.back());
  free_.pop_back();
  return row;
}

void Ledger::add(std::shared_ptr<Row> row) {
  bool many, too_many;
  {
    std::lock_guard hold(lock_);
    rows_.push_back(std::move(row));
    many = rows_.size() >= settle_at_, too_many = rows_.size() >= kBehind * settle_at_;
  }
  if (too_many) settle(false);
  else if (many && !beside_.exchange(true)) settle_beside();
}

// In a thread that lives no longer than that: the device answers slowly, and nobody waits for it.
void Ledger::settle_beside() {
  try {
    std::thread([own = shared_from_this()] {
      own->settle(false);
      own->beside_ = false;
    }).detach();
  } catch (const std::system_error&) {  // there is no room for another
    settle(false);
    beside_ = false;
  }
}

void Ledger::settle(bool everything) {
  std::lock_guard settling(settling_);
  std::vector<std::shared_ptr<Row>> rows, kept, free;
  {
    std::lock_guard hold(lock_);
    rows.swap(rows_);
  }
  std::vector<Done> done;
  for (auto& row : rows) {
    const auto found = everything || row->complete() ? resolved(*row, everything) : std::nullopt;
    if (!found.has_value()) {
      kept.push_back(std::move(row));
      continue;
    }
    done.push_back(*found);
    if (row.use_count() > 1) continue;  // its hooks live, for a second backward pass
    std::atomic_thread_fence(std::memory_order_acquire);
    row->clear();
    free.push_back(std::move(row));
  }
  rows.clear();
  std::lock_guard hold(lock_);
  free_.insert(free_.end(), std::make_move_iterator(free.begin()), std::make_move_iterator(free.end()));
  kept.insert(kept.end(), rows_.begin(), rows_.end());
  rows_.swap(kept);
  // a large graph is not gone through again for each call
  settle_at_ = std::max(std::min(kSettle, limit()), 2 * rows_.size());
  for (const Done& row : done) {
    auto& [forward, backward] = sums_[row.group];
    forward.add(row.forward_ms);
    if (row.backward) backward.add(row.backward_ms);
  }
  done_.insert(done_.end(), done.begin(), done.end());
  over_ = done_.size();
}

std::vector<Done> Ledger::take_done() {
  std::lock_guard hold(lock_);
  over_ = 0;
  return std::exchange(done_, {});
}

std::map<int, std::pair<Totals, Totals>> Ledger::take_sums() {
  std::lock_guard hold(lock_);
  return std::exchange(sums_, {});
}

size_t Ledger::waiting() {
  std::lock_guard hold(lock_);
  return rows_.size();
}

void Timer::settle(bool everything) {
  py::gil_scoped_release release;  // what a device waits for may need it
  ledger_->settle(everything);
}

void Timer::write(const Done& row, const py::function& cells, std::string& text) {
  const auto [at, fresh] = cells_.try_emplace({row.group, row.result, row.backward ? row.grads : -1});
  if (fresh) {
    py::object grads = row.backward ? py::object(py::int_(row.grads)) : py::object(py::none());
    at->second = cells(row.group, row.result, grads).cast<std::pair<std::string, std::string>>();
  }
  text += at->second.first;
  text += ',' + std::to_string(row.id) + ',';
  append(text, row.forward_ms);
  text += ',';
  if (row.backward) append(text, row.backward_ms);
  else text += '-';
  text += ",ms,";
  text += at->second.second;
  text += "\r\n";
}

py::bytes Timer::lines(const std::vector<std::pair<int64_t, std::string>>& others, const py::function& cells) {
  std::vector<Done> done = ledger_->take_done();
  std::sort(done.begin(), done.end(), [](const Done& a, const Done& b) { return a.id < b.id; });
  std::string text;
  auto other = others.begin();
  for (const Done& row : done) {
    for (; other != others.end() && other->first < row.id; ++other) text += other->second;
    write(row, cells, text);
  }
  for (; other != others.end(); ++other) text += other->second;
  return py::bytes(text);
}

py::dict Timer::sums() {
  py::dict found;
  for (const auto& [group, pair] : ledger_->take_sums()) found[py::int_(group)] = py::make_tuple(told(pair.first), told(pair.second));
  return found;
}

py::tuple Timer::grads(int number) const { return py::cast(std::vector<int>(grads_list_[number].begin(), grads_list_[number].end())); }

}  // namespace op_tools
