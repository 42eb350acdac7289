// What comes of the calls that OpTimeMeasure has timed: milliseconds, sums, lines of its file.
#include "call_timer.h"

#include <pybind11/stl.h>

#include <unistd.h>

#include <charconv>
#include <optional>

namespace op_tools {
namespace {

// Nothing where the device has not come to its last mark, unless it is waited for.
std::optional<Done> resolved(Row& row, bool wait, Clock::Events& free) {
  std::lock_guard hold(row.lock);
  Clock& clock = *row.clock;
  Done done{row.id, row.group, row.result, row.grads, !row.spans.empty(), 0, 0};
  for (auto span = row.spans.rbegin(); span != row.spans.rend(); ++span) {  // the last is the first to be missing
    const double ms = clock.between(span->first, span->second, wait);
    if (ms < 0) return std::nullopt;
    done.backward_ms += ms;
  }
  done.forward_ms = clock.between(row.start, row.end, wait);
  if (done.forward_ms < 0) return std::nullopt;
  row.closed = true;  // a second backward pass has nobody to tell
  const auto let_go = [&](const Mark& mark) {
    if (mark.event != nullptr) free.push_back(mark.event);
  };
  for (const auto& [start, end] : row.spans) let_go(start), let_go(end);
  let_go(row.start), let_go(row.end);
  return done;
}

void append(std::string& text, double ms) {
  char digits[64];
  char* end = nullptr;
  if (ms >= 0 && ms < 1e9) {  // as whole numbers: a third of the time
    const auto scaled = uint64_t(std::llround(ms * 1e8));
    end = std::to_chars(digits, digits + sizeof digits, scaled / 100'000'000).ptr;
    *end++ = '.';
    uint64_t rest = scaled % 100'000'000;
    for (int i = 7; i >= 0; i--, rest /= 10) end[i] = char('0' + rest % 10);
    end += 8;
  } else {
    end = std::to_chars(digits, digits + sizeof digits, ms, std::chars_format::fixed, 8).ptr;
  }
  text.append(digits, end);
}

void write(const Done& row, const std::pair<std::string, std::string>& cells, std::string& text) {
  text += cells.first;
  text += ',' + std::to_string(row.id) + ',';
  append(text, row.forward_ms);
  text += ',';
  if (row.backward) append(text, row.backward_ms);
  else text += '-';
  text += ",ms,";
  text += cells.second;
  text += "\r\n";
}

py::tuple told(const Totals& sums) {
  py::dict classes;
  for (const auto& [number, count] : sums.classes) classes[py::int_(number)] = count;
  return py::make_tuple(sums.count, sums.total, sums.first, sums.least, sums.most, classes);
}

}  // namespace

std::shared_ptr<Row> Ledger::new_row() {
  std::lock_guard hold(lock_);
  if (free_.empty()) return std::make_shared<Row>();
  auto row = std::move(free_.back());
  free_.pop_back();
  return row;
}

void Ledger::add(std::shared_ptr<Row> row) {
  size_t waiting, many;
  {
    std::lock_guard hold(lock_);
    rows_.push_back(std::move(row));
    waiting = rows_.size(), many = settle_at_;
  }
  if (waiting < many) return;
  if (waiting == many) return wake();
  if (waiting < 4 * many) return;
  // the thread does not keep up, or has none; no waiting here, where Python is held: who settles now may need it
  std::unique_lock settling(settling_, std::try_to_lock);
  if (settling.owns_lock()) ask(false, false);
}

void Ledger::wake() {
  std::lock_guard hold(waking_);
  if (closed_) return;
  if (!thread_.joinable()) {
    process_ = getpid();
    thread_ = std::thread([this] { work(); });
  }
  wanted_ = true;
  woken_->notify_one();
}

void Ledger::work() {
  while (true) {
    {
      std::unique_lock hold(waking_);
      woken_->wait(hold, [this] { return wanted_ || closed_; });
      if (closed_) return;
      wanted_ = false;
    }
    std::lock_guard settling(settling_);
    try {
      ask(false, true);
    } catch (const std::exception&) {  // a device whose events fail: who settles everything meets it as well
    }
  }
}

void Ledger::close() {
  if (process_ != 0 && process_ != getpid()) {  // a fork has no such thread, and may have its locks
    if (thread_.joinable()) thread_.detach();
    return;
  }
  {
    std::lock_guard hold(waking_);
    closed_ = true;
    woken_->notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

void Ledger::settle(bool everything) {
  std::lock_guard settling(settling_);
  ask(everything, false);
}

void Ledger::ask(bool everything, bool aside) {
  std::vector<std::shared_ptr<Row>> rows, kept, free;
  {
    std::lock_guard hold(lock_);
    rows.swap(rows_);
  }
  std::vector<Done> done;
  Clock::Events events;
  std::shared_ptr<Clock> clock;  // of those
  done.reserve(rows.size());
  free.reserve(rows.size());
  for (auto& row : rows) {
    if (row->clock != clock) {
      if (clock != nullptr) clock->free(events);
      clock = row->clock;
      if (aside) clock->go_to();
    }
    const auto found = everything || row->complete() ? resolved(*row, everything, events) : std::nullopt;
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
  if (clock != nullptr) clock->free(events);
  rows.clear();
  {
    std::lock_guard hold(lock_);
    free_.insert(free_.end(), std::make_move_iterator(free.begin()), std::make_move_iterator(free.end()));
    kept.insert(kept.end(), rows_.begin(), rows_.end());
    rows_.swap(kept);
    // a large graph is not gone through again for each call
    settle_at_ = std::max(std::min(kSettle, limit()), 2 * rows_.size());
  }
  tell(done);
}

void Ledger::tell(const std::vector<Done>& done) {
  std::lock_guard hold(told_);
  for (const Done& row : done) {
    if (size_t(row.group) >= sums_.size()) sums_.resize(row.group + 1);
    auto& [forward, backward] = sums_[row.group];
    forward.add(row.forward_ms);
    if (row.backward) backward.add(row.backward_ms);
  }
  done_.insert(done_.end(), done.begin(), done.end());
  over_ = done_.size();
}

std::vector<Done> Ledger::take_done() {
  std::lock_guard hold(told_);
  over_ = 0, said_ = false;
  return std::exchange(done_, {});
}

GroupSums Ledger::take_sums() {
  std::lock_guard hold(told_);
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

const Timer::Cells& Timer::cells_of(const Done& row, const py::function& cells) {
  const auto [at, fresh] = cells_.try_emplace({row.group, row.result, row.backward ? row.grads : -1});
  if (fresh) {
    py::object grads = row.backward ? py::object(py::int_(row.grads)) : py::object(py::none());
    at->second = cells(row.group, row.result, grads).cast<Cells>();
  }
  return at->second;
}

py::bytes Timer::lines(const std::vector<std::pair<int64_t, std::string>>& others, const py::function& cells) {
  std::vector<Done> done = ledger_->take_done();
  std::vector<const Cells*> texts;
  std::string text;
  {
    py::gil_scoped_release release;
    std::sort(done.begin(), done.end(), [](const Done& a, const Done& b) { return a.id < b.id; });
  }
  texts.reserve(done.size());
  for (const Done& row : done) texts.push_back(&cells_of(row, cells));
  {
    py::gil_scoped_release release;
    auto other = others.begin();
    for (size_t i = 0; i < done.size(); i++) {
      for (; other != others.end() && other->first < done[i].id; ++other) text += other->second;
      write(done[i], *texts[i], text);
    }
    for (; other != others.end(); ++other) text += other->second;
  }
  return py::bytes(text);
}

py::dict Timer::sums() {
  py::dict found;
  const GroupSums sums = ledger_->take_sums();
  for (size_t group = 0; group < sums.size(); group++)
    if (sums[group].first.count > 0) found[py::int_(group)] = py::make_tuple(told(sums[group].first), told(sums[group].second));
  return found;
}

py::tuple Timer::grads(int number) const { return py::cast(std::vector<int>(grads_list_[number].begin(), grads_list_[number].end())); }

}  // namespace op_tools
