// What comes of the calls that OpTimeMeasure has timed: milliseconds, sums, lines of its file.
#include "timer.h"

#include <pybind11/stl.h>

#include <charconv>
#include <optional>

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

py::tuple told(const Sums& sums) { return py::make_tuple(sums.count, sums.total, sums.first, sums.least, sums.most, sums.classes); }

}  // namespace

size_t Timer::settle(bool everything) {
  py::gil_scoped_release release;  // what a device waits for may need it
  std::unique_lock settling(settling_, std::defer_lock);
  if (everything) settling.lock();
  else if (!settling.try_lock()) return 0;  // another thread is at it
  std::vector<std::shared_ptr<Row>> rows, kept;
  {
    std::lock_guard hold(lock_);
    rows.swap(rows_);
  }
  std::vector<Done> done;
  for (auto& row : rows) {
    const auto found = everything || row->complete() ? resolved(*row, everything) : std::nullopt;
    if (found.has_value()) done.push_back(*found);
    else kept.push_back(std::move(row));
  }
  std::lock_guard hold(lock_);
  kept.insert(kept.end(), rows_.begin(), rows_.end());
  rows_.swap(kept);
  // a large graph is not gone through again for each call
  settle_at_ = std::max(std::min(kSettle, limit), 2 * rows_.size());
  for (const Done& row : done) {
    auto& [forward, backward] = sums_[row.group];
    forward.add(row.forward_ms);
    if (row.backward) backward.add(row.backward_ms);
  }
  done_.insert(done_.end(), done.begin(), done.end());
  return done_.size();
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
  std::vector<Done> done;
  {
    std::lock_guard hold(lock_);
    done.swap(done_);
  }
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
  std::map<int, std::pair<Sums, Sums>> sums;
  {
    std::lock_guard hold(lock_);
    sums.swap(sums_);
  }
  py::dict found;
  for (const auto& [group, pair] : sums) found[py::int_(group)] = py::make_tuple(told(pair.first), told(pair.second));
  return found;
}

py::tuple Timer::grads(int number) const { return py::cast(std::vector<int>(grads_list_[number].begin(), grads_list_[number].end())); }

}  // namespace op_tools
