// SPDX-License-Identifier: Apache-2.0
// The caching allocator over the chip's segments: best fit per stream, split and merged.
#include <c10/util/Exception.h>

#include <algorithm>

#include "graphs/capture.h"
#include "runtime/memory_events.h"

namespace dipu {

constexpr size_t kSmallLimit = 1 << 20;  // largest block of the small pool
constexpr size_t kSmallSegment = 2 << 20;  // segment size of the small pool
constexpr size_t kLargeSegment = 20 << 20;  // segment size of the large pool for mid-sized blocks
constexpr size_t kExactLimit = 10 << 20;  // from here a segment is the block, rounded up
constexpr size_t kRoundLarge = 2 << 20;

std::string readable(size_t bytes) {
  const std::pair<size_t, const char*> units[] = {{size_t(1) << 30, " GiB"}, {1 << 20, " MiB"}, {1 << 10, " KiB"}};
  char text[48];
  for (auto& [unit, name] : units) {
    if (bytes < unit) continue;
    snprintf(text, sizeof text, "%.2f%s", static_cast<double>(bytes) / static_cast<double>(unit), name);
    return text;
  }
  return std::to_string(bytes) + " bytes";
}

static uint8_t notes() {  // hot path
  return g_notes.load(std::memory_order_relaxed);
}

namespace {

void note_block(Act act, const Block* b, Context context) {
  const bool segment = act == Act::SegmentAlloc || act == Act::SegmentFree;
  note_event(act, b->device, reinterpret_cast<size_t>(b->address), segment ? b->size : b->requested, b->stream, std::move(context));
}

void discard(Block* b) {
  if (C10_LIKELY((notes() & kChecks) == 0)) delete b;
  else retire(b);
}

Pool& pool_of(Device& d, const Block* b) {
  if (C10_UNLIKELY(b->owner != nullptr)) return b->small ? b->owner->small : b->owner->large;
  return b->small ? d.small : d.large;
}

// Joins `b` with a free neighbour; `b` keeps its identity.
void absorb(Device& d, Block* b, Block* neighbour) {
  if (neighbour == nullptr || neighbour->in_use || neighbour->pending_events > 0) return;
  pool_of(d, neighbour).erase(neighbour);
  if (b->previous == neighbour) {
    b->address = neighbour->address;
    b->previous = neighbour->previous;
    if (b->previous != nullptr) b->previous->next = b;
    else d.segments[b->address] = b;
  } else {
    b->next = neighbour->next;
    if (b->next != nullptr) b->next->previous = b;
  }
  b->size += neighbour->size;
  add(d.stats.inactive_split, b->small, -1);
  add(d.stats.inactive_split_bytes, b->small, -static_cast<int64_t>(neighbour->size));
  discard(neighbour);
}

void cache_block(Device& d, Block* b) {
  if (C10_UNLIKELY(notes() & kHistory)) note_block(Act::FreeCompleted, b, nullptr);
  b->context = nullptr;
  add(d.stats.active, b->small, -1);
  add(d.stats.active_bytes, b->small, -static_cast<int64_t>(b->size));
  absorb(d, b, b->previous);
  absorb(d, b, b->next);
  if (b->previous != nullptr || b->next != nullptr) {
    add(d.stats.inactive_split, b->small, 1);
    add(d.stats.inactive_split_bytes, b->small, static_cast<int64_t>(b->size));
  }
  pool_of(d, b).insert(b);
}

}  // namespace

void finish_events(Device& d, bool wait) {
  while (!d.events.empty()) {
    auto [event, block] = d.events.front();
    const int code = wait ? runtime().event_synchronize(event) : runtime().event_query(event);
    if (code == DIPU_NOT_READY) return;
    warn_if_failed(code, wait ? "event_synchronize" : "event_query");
    warn_if_failed(runtime().event_destroy(block->device, event), "event_destroy");
    d.events.pop_front();
    if (--block->pending_events == 0) cache_block(d, block);
  }
}

void release_cached(Device& d, int device) {
  std::vector<Pool*> pools{&d.small, &d.large};
  for (auto& [id, pool] : d.pools) if (pool->users == 0) pools.insert(pools.end(), {&pool->small, &pool->large});
  for (Pool* pool : pools) {
    for (auto it = pool->begin(); it != pool->end();) {
      Block* b = *it;
      if (b->previous != nullptr || b->next != nullptr) { ++it; continue; }
      it = pool->erase(it);
      warn_if_failed(runtime().memory_free(device, b->address), "memory_free");
      d.segments.erase(b->address);
      add(d.stats.segment, b->small, -1);
      add(d.stats.reserved_bytes, b->small, -static_cast<int64_t>(b->size));
      d.stats.num_device_free++;
      if (C10_UNLIKELY(notes() & kHistory)) note_block(Act::SegmentFree, b, nullptr);
      discard(b);
    }
  }
}

namespace {

std::string limit_text(const Device& d) {
  return d.limit == SIZE_MAX ? "" : ", and this process may reserve at most " + readable(d.limit);
}

std::string hint_text(size_t bytes, size_t unallocated) {
  if (unallocated < bytes) return " torch.dipu.memory_summary() shows what holds the memory.";
  return " Enough is reserved, but in pieces: torch.dipu.memory._dump_snapshot() shows them; make large tensors early, or "
         "free the tensors between them and call torch.dipu.empty_cache().";
}

[[noreturn]] void out_of_memory(Device& d, int device, size_t bytes, void* stream, Context context) {
  d.stats.num_ooms++;
  size_t free_bytes = 0, total = 0;
  runtime().memory_info(device, &free_bytes, &total);
  if (notes() & kHistory) note_event(Act::OutOfMemory, device, free_bytes, bytes, stream, std::move(context));
  const size_t allocated = d.stats.allocated_bytes[0].current, reserved = d.stats.reserved_bytes[0].current;
  c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(bytes), allocated, reserved, dipu_device(device));
  TORCH_CHECK_WITH(
      OutOfMemoryError, false, "DIPU out of memory. Tried to allocate ", readable(bytes), ". Device ", device,
      " has a total capacity of ", readable(total), " of which ", readable(free_bytes),
      " is free", limit_text(d), ". Of the allocated memory ", readable(allocated), " is allocated by PyTorch, and ",
      readable(reserved - allocated), " is reserved by PyTorch but unallocated, the largest piece of it ",
      readable(cached_blocks(d).largest), ". Outside PyTorch's allocator ",
      readable(total - free_bytes > reserved ? total - free_bytes - reserved : 0), " is in use.",
      hint_text(bytes, reserved - allocated));
}

Block* new_segment(
    Device& d, int device, size_t size, bool small, void* stream, PrivatePool* owner, size_t asked, const Context& context) {
  size_t bytes = small ? kSmallSegment : size < kExactLimit ? kLargeSegment : (size + kRoundLarge - 1) / kRoundLarge * kRoundLarge;
  void* address = nullptr;
  const auto ask = [&] {
    if (static_cast<size_t>(d.stats.reserved_bytes[0].current) + bytes > d.limit) return static_cast<int>(DIPU_OUT_OF_MEMORY);
    return runtime().memory_allocate(device, bytes, &address);
  };
  int code = ask();
  if (code == DIPU_OUT_OF_MEMORY) {
    d.stats.num_alloc_retries++;
    finish_events(d, true);
    release_cached(d, device);
    code = ask();
    // the last bytes of the device: allocate the exact size
    if (code == DIPU_OUT_OF_MEMORY && bytes > size) {
      bytes = size;
      code = ask();
    }
    if (code == DIPU_OUT_OF_MEMORY) out_of_memory(d, device, asked, stream, context);
  }
  check(code, "memory_allocate");
  auto* b = new Block();
  b->address = static_cast<char*>(address);
  b->size = bytes;
  b->device = device;
  b->small = small;
  b->stream = stream;
  b->owner = owner;
  d.segments[b->address] = b;
  add(d.stats.segment, small, 1);
  add(d.stats.reserved_bytes, small, static_cast<int64_t>(bytes));
  d.stats.num_device_alloc++;
  if (C10_UNLIKELY(notes() & kHistory)) note_block(Act::SegmentAlloc, b, context);
  return b;
}

void split_block(Device& d, Block* b, size_t size) {
  const size_t rest = b->size - size;
  if (rest < (b->small ? kGranule : kSmallLimit + 1)) return;
  auto* tail = new Block();
  tail->address = b->address + size;
  tail->size = rest;
  tail->device = b->device;
  tail->small = b->small;
  tail->stream = b->stream;
  tail->owner = b->owner;
  tail->previous = b;
  tail->next = b->next;
  if (tail->next != nullptr) tail->next->previous = tail;
  b->next = tail;
  b->size = size;
  pool_of(d, tail).insert(tail);
  add(d.stats.inactive_split, tail->small, 1);
  add(d.stats.inactive_split_bytes, tail->small, static_cast<int64_t>(rest));
}

// While checks are on, each allocation has a new block record: a pointer to a freed one stays invalid.
Block* renew(Device& d, Block* old) {
  auto* b = new Block();
  b->address = old->address;
  b->size = old->size;
  b->device = old->device;
  b->small = old->small;
  b->stream = old->stream;
  b->owner = old->owner;
  b->previous = old->previous;
  b->next = old->next;
  if (b->previous != nullptr) b->previous->next = b;
  else d.segments[b->address] = b;
  if (b->next != nullptr) b->next->previous = b;
  discard(old);
  return b;
}

// The pools that threads chose; a capture's comes first.
std::atomic<int> g_chosen_pools{0};
thread_local std::array<PrivatePool*, kMaxDevices> tls_pool{};

PrivatePool* private_pool(int device, void* stream) {
  if (C10_UNLIKELY(g_capturing.load(std::memory_order_relaxed) != 0)) {
    if (const auto capture = capture_of(device, stream)) return capture->memory;
  }
  return C10_UNLIKELY(g_chosen_pools.load(std::memory_order_relaxed) != 0) ? tls_pool[device] : nullptr;
}

}  // namespace

PrivatePool* use_pool(int device, PoolId id) {
  Device& d = device_state(device);
  DeviceLock lock(d.mutex);
  auto& pool = d.pools[id];
  if (pool == nullptr) pool = std::make_unique<PrivatePool>(PrivatePool{id, {}, {}, 0});
  pool->users++;
  return pool.get();
}
void release_pool(int device, PoolId id) {
  Device& d = device_state(device);
  DeviceLock lock(d.mutex);
  if (const auto found = d.pools.find(id); found != d.pools.end()) found->second->users--;
}
PrivatePool* exchange_thread_pool(int device, PrivatePool* pool) {
  auto& slot = tls_pool[device];
  g_chosen_pools += (pool != nullptr) - (slot != nullptr);
  return std::exchange(slot, pool);
}

Block* allocate_block(size_t bytes, int device) {
  Device& d = device_state(device);
  const uint8_t noted = notes();
  const size_t guard = C10_UNLIKELY(noted & kChecks) ? kGuardBytes : 0;
  Context context = C10_UNLIKELY(noted != 0) ? gather_at_allocation() : nullptr;
  const size_t size = (std::max<size_t>(bytes + guard, 1) + kGranule - 1) / kGranule * kGranule;
  const bool small = size <= kSmallLimit;
  void* stream = current_stream(device);
  TORCH_CHECK(!in_bad_fork(), "Cannot re-initialize DIPU in forked subprocess");
  PrivatePool* owner = private_pool(device, stream);
  DeviceLock lock(d.mutex);
  if (C10_UNLIKELY(!d.events.empty())) finish_events(d, false);
  Pool& pool = C10_UNLIKELY(owner != nullptr) ? (small ? owner->small : owner->large) : small ? d.small : d.large;
  auto it = pool.lower_bound(Key{stream, size, nullptr});
  Block* b = nullptr;
  if (C10_LIKELY(it != pool.end() && (*it)->stream == stream)) {
    b = *it;
    pool.erase(it);
    if (b->previous != nullptr || b->next != nullptr) {
      add(d.stats.inactive_split, small, -1);
      add(d.stats.inactive_split_bytes, small, -static_cast<int64_t>(b->size));
    }
  } else {
    b = new_segment(d, device, size, small, stream, owner, bytes, context);
  }
  split_block(d, b, size);
  if (C10_UNLIKELY(noted & kChecks)) b = renew(d, b);
  b->in_use = true;
  b->requested = bytes;
  index_block(b->device, b->address, b);
  add(d.stats.allocation, small, 1);
  add(d.stats.allocated_bytes, small, static_cast<int64_t>(b->size));
  add(d.stats.active, small, 1);
  add(d.stats.active_bytes, small, static_cast<int64_t>(b->size));
  add(d.stats.requested_bytes, small, static_cast<int64_t>(bytes));
  c10::reportMemoryUsageToProfiler(
      b->address, static_cast<int64_t>(b->size), d.stats.allocated_bytes[0].current, d.stats.reserved_bytes[0].current,
      dipu_device(device));
  if (C10_UNLIKELY(noted != 0)) {
    b->context = context;
    if (noted & kHistory) note_block(Act::Alloc, b, std::move(context));
    if (noted & kChecks) check_allocated(b);
  }
  return b;
}

// An event on a captured stream is none of the chip: the block is freed at the end of the capture.
static bool keep_until_capture_ends(Block* b) {
  for (void* stream : b->used_on) {
    const auto capture = capture_of(b->device, stream);
    if (capture == nullptr) continue;
    std::lock_guard<std::mutex> lock(capture->mutex);
    capture->freed.push_back(b);
    return true;
  }
  return false;
}
static void wait_for_streams(Device& d, Block* b);

void free_block(void* context) {
  auto* b = static_cast<Block*>(context);
  if (b == nullptr || in_bad_fork()) return;  // a forked child owns no device memory
  const uint8_t noted = notes();
  if (C10_UNLIKELY(noted & kChecks) && !check_freed(context)) return;
  Context freed_at = C10_UNLIKELY(noted & kHistory) ? gather_at_free() : nullptr;
  if (auto* alias = b->alias.exchange(nullptr)) c10::intrusive_ptr<c10::StorageImpl>::reclaim(alias);
  Device& d = device_state(b->device);
  DeviceLock lock(d.mutex);
  index_block(b->device, b->address, nullptr);
  b->in_use = false;
  b->guarded = false;
  if (C10_UNLIKELY(noted & kHistory)) note_block(Act::FreeRequested, b, std::move(freed_at));
  add(d.stats.allocation, b->small, -1);
  add(d.stats.allocated_bytes, b->small, -static_cast<int64_t>(b->size));
  add(d.stats.requested_bytes, b->small, -static_cast<int64_t>(b->requested));
  c10::reportMemoryUsageToProfiler(
      b->address, -static_cast<int64_t>(b->size), d.stats.allocated_bytes[0].current,
      d.stats.reserved_bytes[0].current, dipu_device(b->device));
  if (C10_UNLIKELY(!b->used_on.empty()) && keep_until_capture_ends(b)) return;
  wait_for_streams(d, b);
}

static void wait_for_streams(Device& d, Block* b) {
  for (void* stream : b->used_on) {
    void* event = nullptr;
    int code = runtime().event_create(b->device, 0, &event);
    if (code == DIPU_OK) code = runtime().event_record(b->device, event, stream);
    warn_if_failed(code, "event_record");
    if (code != DIPU_OK) continue;
    d.events.emplace_back(event, b);
    b->pending_events++;
  }
  b->used_on.clear();
  if (b->pending_events == 0) cache_block(d, b);
}
void free_pending(Block* b) {
  Device& d = device_state(b->device);
  DeviceLock lock(d.mutex);
  wait_for_streams(d, b);
}

c10::DataPtr device_data(Block* b) {
  return c10::DataPtr(b->address, b, &free_block, dipu_device(b->device));
}

}  // namespace dipu
