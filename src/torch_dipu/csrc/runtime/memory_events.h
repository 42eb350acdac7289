/* SPDX-License-Identifier: Apache-2.0 */
// Optional records about memory: the stacks of blocks, the history of events, checks of their use.
// Switched off, they cost one branch per allocation and one per free.
#pragma once

#include "runtime/memory.h"

namespace dipu {

enum Note : uint8_t { kHistory = 1, kChecks = 2 };
extern std::atomic<uint8_t> g_notes;
void set_note(Note note, bool on);

// ---- memory_history.cpp: in the form of torch.cuda.memory
enum class Act : uint8_t { Alloc, FreeRequested, FreeCompleted, SegmentAlloc, SegmentFree, OutOfMemory, Snapshot };
struct MemoryEvent {
  Act act;
  size_t address;  // of OutOfMemory: the free bytes of the device
  size_t size;
  void* stream;
  int64_t time_us;
  Context context;
};
enum class Stacks : uint8_t { None, Blocks, Allocations, All };  // of live blocks, of allocations, of frees too
struct HistoryOptions {
  bool events = false;
  bool device = true, host = false;  // whose memory: the devices', pinned host memory
  Stacks stacks = Stacks::None;
  bool cpp = false;
  size_t max_events = SIZE_MAX;  // per device; the oldest are dropped first
  uint32_t skipped = 0;  // bit Act: events that are not recorded
};
void record_history(std::optional<HistoryOptions> options, bool clear);  // none: off
std::vector<MemoryEvent> memory_events(int device);  // oldest first; DIPU_HOST: of pinned memory
void note_event(Act act, int device, size_t address, size_t size, void* stream, Context context);
Context gather_at_allocation();  // null if no stacks are recorded; takes the GIL: hold no lock
Context gather_at_free();

// ---- allocation_stacks.cpp
Context gather_stack(bool cpp);
// Formats each stack as lines, innermost first: "file:line in function" of Python, then C++ functions.
std::vector<std::string> tell_stacks(const std::vector<Context>& contexts);

// ---- memory_check.cpp
constexpr size_t kGuardBytes = 512;  // behind the requested bytes, and so before the next block
void start_memory_check(int level, bool backtrace);
bool check_wants_stacks();
void check_allocated(Block* block);
bool check_freed(void* block);  // false: no live block; the caller must not free it
void check_refused_free(const void* address);  // host code frees device memory that is already free
void retire(Block* block);  // instead of delete: an old pointer must not refer to a new block
std::string memory_check_report();  // live blocks, their stacks, and the findings so far
void finish_memory_check();  // called at exit of the interpreter

}  // namespace dipu
