// SPDX-License-Identifier: Apache-2.0
// The history of memory events while torch.dipu.memory._record_memory_history is on.
#include <c10/util/ApproximateClock.h>

#include "runtime/memory_events.h"

namespace dipu {

std::atomic<uint8_t> g_notes{0};

void set_note(Note note, bool on) {
  if (on) g_notes.fetch_or(note);
  else g_notes.fetch_and(static_cast<uint8_t>(~note));
}

namespace {

std::mutex g_history_mutex;  // the innermost lock: nothing is called while it is held
HistoryOptions g_options;
using Histories = std::array<std::deque<MemoryEvent>, kMaxDevices + 1>;  // the last: pinned host memory
Histories& histories() {
  static auto* all = new Histories();
  return *all;
}
std::deque<MemoryEvent>& history_of(int device) {
  return histories()[device == DIPU_HOST ? kMaxDevices : device];
}
HistoryOptions options() {
  std::lock_guard<std::mutex> lock(g_history_mutex);
  return g_options;
}

}  // namespace

void record_history(std::optional<HistoryOptions> wanted, bool clear) {
  std::lock_guard<std::mutex> lock(g_history_mutex);
  g_options = wanted.value_or(HistoryOptions());
  if (clear) for (auto& events : histories()) events.clear();
  set_note(kHistory, wanted.has_value());
}

void note_event(Act act, int device, size_t address, size_t size, void* stream, Context context) {
  std::lock_guard<std::mutex> lock(g_history_mutex);
  if (!g_options.events || (g_options.skipped >> static_cast<int>(act) & 1) || g_options.max_events == 0) return;
  if (!(device == DIPU_HOST ? g_options.host : g_options.device)) return;
  if (g_options.stacks < Stacks::Allocations) context = nullptr;
  auto& events = history_of(device);
  if (events.size() >= g_options.max_events) events.pop_front();
  events.push_back({act, address, size, stream, c10::getTime() / 1000, std::move(context)});
}

std::vector<MemoryEvent> memory_events(int device) {
  std::lock_guard<std::mutex> lock(g_history_mutex);
  const auto& events = history_of(device);
  return {events.begin(), events.end()};
}

Context gather_at_allocation() {
  const auto wanted = options();
  const bool history = wanted.stacks >= Stacks::Blocks;
  if (!history && !check_wants_stacks()) return nullptr;
  return gather_stack(/*cpp=*/wanted.cpp || check_wants_stacks());
}

Context gather_at_free() {
  const auto wanted = options();
  return wanted.events && wanted.stacks == Stacks::All ? gather_stack(wanted.cpp) : nullptr;
}

}  // namespace dipu
