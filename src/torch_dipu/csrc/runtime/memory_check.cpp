// SPDX-License-Identifier: Apache-2.0
// DIPU_MEM_CHECK: finds memory that is never freed, freed twice, written past its end, or taken
// from the chip without the allocator. It reports to stderr and does not change the behaviour of
// the program.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <sstream>
#include <unordered_map>
#include <unordered_set>

#include "profiler/span.h"
#include "runtime/memory_events.h"

namespace dipu {
namespace {

constexpr unsigned char kGuardByte = 0xC3;
// freed blocks that are remembered to recognise a second free
constexpr size_t kRemembered = 10000;
constexpr size_t kShown = 20;  // findings that are printed at once; further ones are counted
constexpr size_t kPlaces = 20;  // places in a printed list of blocks

struct Freed {
  size_t requested;
  int device;
  Context context;
};
// Memory that a kernel took from the chip, or returned to it, without the allocator.
struct Foreign {
  size_t calls = 0;
  int64_t bytes = 0;
};

struct Checker {
  int level = 0;
  bool backtrace = false;
  pid_t process = 0;
  std::mutex mutex;
  std::unordered_set<Block*> live;
  std::unordered_map<void*, Freed> freed;
  std::deque<void*> freed_order;
  std::deque<Block*> retired;
  std::map<std::string, Foreign> foreign;  // by operator
  size_t findings = 0;
  // the live blocks at finish(), formatted while the interpreter exists
  struct Alive {
    size_t requested;
    std::string place;
  };
  std::unordered_map<Block*, Alive> at_exit;
  bool finished = false;
};
Checker& checker() {
  static auto* it = new Checker();  // never destroyed: other objects free their blocks later
  return *it;
}

void say(const std::string& text) {
  fputs(("[torch_dipu] memory check: " + text).c_str(), stderr);
}

void found(std::string text, const Context& context = nullptr) {
  size_t number = 0;
  {
    DeviceLock lock(checker().mutex);
    number = ++checker().findings;
  }
  if (number > kShown) return;
  if (context != nullptr) text += "  It was allocated at (most recent call first):\n" + tell_stacks({context})[0];
  if (number == kShown) text += "  Further findings are counted, not shown.\n";
  say(text);
}

std::string in_operator() {
  if (checker().level < 2) return " (DIPU_MEM_CHECK=2 names the operator)";
  const auto* span = current_span();
  return span != nullptr ? " in " + span->what() : "";
}
std::string count(size_t number, const char* what) {
  return std::to_string(number) + " " + what + (number == 1 ? "" : "s");
}
std::string size_on(size_t bytes, int device) {
  return std::to_string(bytes) + " bytes on dipu:" + std::to_string(device);
}

// ---- guard bytes

using Guard = std::array<unsigned char, kGuardBytes>;
const Guard& pattern() {
  static const Guard bytes = [] {
    Guard filled;
    filled.fill(kGuardByte);
    return filled;
  }();
  return bytes;
}

void write_guard(const Block& b) {
  char* place = b.address + b.requested;
  if (host_reachable(b.device)) {
    std::memcpy(to_host(place), pattern().data(), kGuardBytes);
    return;
  }
  const DipuCopy copy{place, pattern().data(), kGuardBytes, b.device, DIPU_HOST, b.device, /*blocking=*/1, b.stream};
  warn_if_failed(runtime().memory_copy(&copy), "memory_copy");
}
// Returns the guard's bytes; `room` is a buffer for those that the host cannot reach.
const unsigned char* read_guard(const Block& b, Guard& room) {
  const char* place = b.address + b.requested;
  if (host_reachable(b.device)) return static_cast<const unsigned char*>(to_host(place));
  room = pattern();  // unreadable bytes count as intact
  const DipuCopy copy{room.data(), place, kGuardBytes, DIPU_HOST, b.device, b.device, /*blocking=*/1, b.stream};
  warn_if_failed(runtime().memory_copy(&copy), "memory_copy");
  return room.data();
}

struct Damage {
  size_t first, count;  // of the bytes behind the end
  size_t requested;
  int device;
  Context context;
};
std::optional<Damage> damage_of(Block& b) {
  if (!b.guarded || b.broken) return std::nullopt;
  Guard room;
  const unsigned char* bytes = read_guard(b, room);
  if (std::memcmp(bytes, pattern().data(), kGuardBytes) == 0) return std::nullopt;
  const auto wrong = [](unsigned char byte) { return byte != kGuardByte; };
  const auto first = std::find_if(bytes, bytes + kGuardBytes, wrong);
  b.broken = true;  // reported once
  return Damage{static_cast<size_t>(first - bytes), static_cast<size_t>(std::count_if(bytes, bytes + kGuardBytes, wrong)),
                b.requested, b.device, b.context};
}
void tell_damage(const Damage& d, const std::string& who, const std::string& hint) {
  found(who + " past the end of a block of " + size_on(d.requested, d.device) + ": " + std::to_string(d.count) +
            " bytes were changed, from " + std::to_string(d.first) + " bytes behind its end on." + hint + "\n",
        d.context);
}

// ---- comparison with the chip's own counters

struct ChipMemory {
  int64_t foreign = 0;  // bytes that the chip has allocated beyond the allocator's
  int64_t segments_taken = 0, segments_freed = 0;
};
ChipMemory chip_memory(int device) {
  Device& d = device_state(device);
  DeviceLock lock(d.mutex);
  size_t free_bytes = 0, total = 0;
  warn_if_failed(runtime().memory_info(device, &free_bytes, &total), "memory_info");
  return {static_cast<int64_t>(total - free_bytes) - d.stats.reserved_bytes[0].current, d.stats.num_device_alloc,
          d.stats.num_device_free};
}
// Returns the bytes freed on the chip since the span began, without those that the allocator returned.
int64_t gone_since(const SpanRecord& span) {
  const auto now = chip_memory(span.device);
  return now.segments_freed == span.segments_freed ? std::max<int64_t>(span.foreign_memory - now.foreign, 0) : 0;
}

void note_foreign(const SpanRecord& span, int64_t bytes) {
  bool first = false;
  {
    DeviceLock lock(checker().mutex);
    auto& entry = checker().foreign[span.what()];
    first = entry.calls++ == 0;
    entry.bytes += bytes;
  }
  if (!first) return;  // the sum is in the last report
  const std::string where = " of dipu:" + std::to_string(span.device) + "'s memory";
  if (bytes > 0) {
    found(span.what() + " left " + std::to_string(bytes) + " bytes" + where +
              " allocated outside the allocator: a kernel that allocates and does not free?\n");
  } else {
    found(span.what() + " gave back " + std::to_string(-bytes) + " bytes" + where +
              " that the allocator holds: freed twice, or by code that does not own it?\n");
  }
}

// Reports a block that is damaged when it is freed; its memory may have been returned to the chip.
void tell_damage_at_free(const Damage& damage) {
  auto* span = current_span();
  const bool strict = checker().level > 1 && span != nullptr && span->device == damage.device;
  if (const int64_t gone = strict ? gone_since(*span) : 0; gone > 0) {
    span->gave_back = true;
    note_foreign(*span, -gone);
    return;
  }
  tell_damage(damage, "something wrote", " Found when it was freed" + in_operator() + ".");
}

// ---- reports

using Places = std::map<std::string, std::pair<size_t, size_t>>;  // a stack -> blocks, bytes
void add_block(Places& places, const Checker::Alive& block) {
  auto& sum = places[block.place];
  sum.first++;
  sum.second += block.requested;
}

std::string list_places(const Places& places, bool backtrace) {
  std::vector<std::pair<std::string, std::pair<size_t, size_t>>> sorted(places.begin(), places.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](auto& a, auto& b) { return a.second.second > b.second.second; });
  std::ostringstream text;
  for (size_t i = 0; i < sorted.size() && i < kPlaces; i++) {
    auto& [place, sum] = sorted[i];
    text << "  " << count(sum.first, "block") << ", " << sum.second << " bytes, allocated at:\n";
    if (!place.empty()) text << place;
    else text << (backtrace ? "    (no stack was recorded)\n" : "    (DIPU_MEM_CHECK_ENABLE_BACKTRACE=1 tells where)\n");
  }
  if (sorted.size() > kPlaces) text << "  and " << sorted.size() - kPlaces << " more places\n";
  return text.str();
}

std::string sums(const Places& places, const char* what) {
  size_t blocks = 0, bytes = 0;
  for (auto& [place, sum] : places) blocks += sum.first, bytes += sum.second;
  return count(blocks, "block") + ", " + std::to_string(bytes) + " bytes of device memory: " + what + "\n";
}

std::string tell_foreign(const Checker& c) {
  std::ostringstream text;
  for (auto& [name, sum] : c.foreign) {
    text << "  " << name << ": " << count(sum.calls, "call") << (sum.bytes >= 0 ? " left " : " gave back ") << std::abs(sum.bytes)
         << " bytes outside the allocator\n";
  }
  return text.str();
}

std::unordered_map<Block*, Checker::Alive> tell_live() {
  std::vector<std::pair<Block*, size_t>> blocks;
  std::vector<Context> contexts;
  {
    DeviceLock lock(checker().mutex);
    for (Block* b : checker().live) blocks.emplace_back(b, b->requested), contexts.push_back(b->context);
  }
  auto stacks = tell_stacks(contexts);
  std::unordered_map<Block*, Checker::Alive> told;
  for (size_t i = 0; i < blocks.size(); i++) told.emplace(blocks[i].first, Checker::Alive{blocks[i].second, std::move(stacks[i])});
  return told;
}

// Runs after the interpreter has released everything: blocks that are alive now are never freed.
struct LastReport {
  ~LastReport() {
    const auto& c = checker();
    if (!c.finished || getpid() != c.process) return;
    Places lost, held;
    for (auto& [block, alive] : c.at_exit) add_block(c.live.count(block) > 0 ? lost : held, alive);
    if (!lost.empty()) say(sums(lost, "never freed") + list_places(lost, c.backtrace));
    if (!held.empty()) {
      say(sums(held, "held until the end (globals, caches), freed with the interpreter") + list_places(held, c.backtrace));
    }
    if (!c.foreign.empty()) say("memory that kernels took from the chip themselves\n" + tell_foreign(c));
    if (c.findings > kShown) say(std::to_string(c.findings) + " findings in all.\n");
    if (lost.empty() && held.empty() && c.foreign.empty() && c.findings == 0) say("every block was freed.\n");
  }
} g_last_report;

}  // namespace

void start_memory_check(int level, bool backtrace) {
  auto& c = checker();
  c.level = level;
  c.backtrace = backtrace;
  c.process = getpid();
  set_note(kChecks, level > 0);
  listen(kStrictCheck, level > 1);
}

bool check_wants_stacks() {
  return checker().backtrace && (g_notes.load(std::memory_order_relaxed) & kChecks);
}

void check_allocated(Block* b) {
  write_guard(*b);
  b->guarded = true;
  b->broken = false;
  std::lock_guard<std::mutex> lock(checker().mutex);
  checker().live.insert(b);
  checker().freed.erase(b);
}

bool check_freed(void* block) {
  auto& c = checker();
  auto* b = static_cast<Block*>(block);
  std::optional<Damage> damage;
  std::optional<Freed> before;
  bool twice = false;
  {
    DeviceLock lock(c.mutex);
    twice = c.live.erase(b) == 0;
    if (!twice) {
      damage = damage_of(*b);
      c.freed[b] = {b->requested, b->device, b->context};
      c.freed_order.push_back(b);
      if (c.freed_order.size() > kRemembered) {
        c.freed.erase(c.freed_order.front());
        c.freed_order.pop_front();
      }
    } else if (auto it = c.freed.find(b); it != c.freed.end()) {
      before = it->second;
    }
  }
  if (damage) tell_damage_at_free(*damage);
  if (twice) {
    const std::string which = before ? "a block of " + size_on(before->requested, before->device) : std::string("memory that is no live block");
    found(which + " was freed twice" + in_operator() + "; the second free is left out.\n", before ? before->context : nullptr);
  }
  return !twice;
}

void check_refused_free(const void* address) {
  std::ostringstream text;
  text << "host code freed device memory at " << address << " that is free already" << in_operator() << "; that is left out.\n";
  found(text.str());
}

void retire(Block* b) {
  auto& c = checker();
  std::lock_guard<std::mutex> lock(c.mutex);
  c.retired.push_back(b);
  if (c.retired.size() <= kRemembered) return;
  delete c.retired.front();
  c.retired.pop_front();
}

void check_begin(SpanRecord& span) {
  const auto memory = chip_memory(span.device);
  span.foreign_memory = memory.foreign;
  span.segments_taken = memory.segments_taken;
  span.segments_freed = memory.segments_freed;
}

void check_end(const SpanRecord& span) {
  const auto memory = chip_memory(span.device);
  // where the allocator called the chip in between, the counters do not compare: chips round sizes
  const bool comparable = memory.segments_taken == span.segments_taken && memory.segments_freed == span.segments_freed;
  const int64_t foreign = comparable && !span.gave_back ? memory.foreign - span.foreign_memory : 0;
  std::vector<Damage> damages;
  {
    DeviceLock lock(checker().mutex);
    for (Block* b : checker().live) {
      if (b->device != span.device) continue;
      if (auto damage = damage_of(*b)) damages.push_back(std::move(*damage));
    }
  }
  if (foreign != 0) note_foreign(span, foreign);
  // the guards were freed with the memory: that is no overrun
  if (foreign < 0 || span.gave_back) return;
  for (auto& damage : damages) tell_damage(damage, span.what() + " wrote", "");
}

std::string memory_check_report() {
  auto& c = checker();
  if (c.level == 0) return "the memory check is off: set DIPU_MEM_CHECK=1 before the program starts\n";
  Places places;
  for (auto& [block, alive] : tell_live()) add_block(places, alive);
  DeviceLock lock(c.mutex);
  return sums(places, "in use") + list_places(places, c.backtrace) + tell_foreign(c);
}

void finish_memory_check() {
  auto& c = checker();
  if (c.level == 0 || in_bad_fork() || getpid() != c.process) return;
  std::vector<Damage> damages;
  {
    DeviceLock lock(c.mutex);
    for (Block* b : c.live) if (auto damage = damage_of(*b)) damages.push_back(std::move(*damage));
  }
  for (auto& damage : damages) tell_damage(damage, "something wrote", " Found at exit.");
  auto told = tell_live();
  DeviceLock lock(c.mutex);
  c.at_exit = std::move(told);
  c.finished = true;
}

}  // namespace dipu
