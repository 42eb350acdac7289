// The caching allocator over the chip's segments: best fit per stream, split and merged.
#include <Python.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <tuple>

#include "memory.h"
#include "span.h"

namespace dipu {

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;
using c10::CachingDeviceAllocator::DeviceStats;

constexpr size_t kSmallLimit = 1 << 20;        // up to here a block comes from the small pool
constexpr size_t kSmallSegment = 2 << 20;      // what the small pool asks of the chip at once
constexpr size_t kLargeSegment = 20 << 20;     // what the large pool asks for mid-sized blocks
constexpr size_t kExactLimit = 10 << 20;       // from here a segment is the block, rounded up
constexpr size_t kRoundLarge = 2 << 20;

namespace {

using Key = std::tuple<void*, size_t, char*>;  // stream, size, address
struct BlockOrder {
  using is_transparent = void;
  static Key key(const Block* b) {
    return {b->stream, b->size, b->address};
  }
  bool operator()(const Block* a, const Block* b) const {
    return key(a) < key(b);
  }
  bool operator()(const Block* a, const Key& b) const {
    return key(a) < b;
  }
  bool operator()(const Key& a, const Block* b) const {
    return a < key(b);
  }
};
using Pool = std::set<Block*, BlockOrder>;

struct Device {
  std::mutex mutex;
  Pool small, large;  // what is cached
  std::map<char*, Block*> segments;  // by address: the first block
  std::deque<std::pair<void*, Block*>> events;  // freed, but still in use on another stream
  DeviceStats stats;
  size_t limit = SIZE_MAX;  // of what is reserved
};

// A device's lock. Under it the chip is called; a chip written in Python then takes the GIL, which
// must not be held by somebody who waits for this lock.
class DeviceLock {
 public:
  explicit DeviceLock(std::mutex& mutex) : mutex_(mutex) {
    if (C10_UNLIKELY(calls_python()) && Py_IsInitialized() && PyGILState_Check()) state_ = PyEval_SaveThread();
    mutex_.lock();
  }
  ~DeviceLock() {
    mutex_.unlock();
    if (C10_UNLIKELY(state_ != nullptr)) PyEval_RestoreThread(state_);
  }
  DeviceLock(const DeviceLock&) = delete;

 private:
  std::mutex& mutex_;
  PyThreadState* state_ = nullptr;
};

Device& device_state(int device) {
  static auto* all = new std::array<Device, kMaxDevices>();
  return (*all)[device];
}

void add(StatArray& stat, bool small, int64_t amount) {
  for (auto kind : {StatType::AGGREGATE, small ? StatType::SMALL_POOL : StatType::LARGE_POOL}) {
    auto& s = stat[static_cast<size_t>(kind)];
    if (amount >= 0) s.increase(amount); else s.decrease(-amount);
  }
}

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

Pool& pool_of(Device& d, const Block* b) {
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
  delete neighbour;
}

void cache_block(Device& d, Block* b) {
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

// Whole free segments go back to the chip.
void release_cached(Device& d, int device) {
  for (Pool* pool : {&d.small, &d.large}) {
    for (auto it = pool->begin(); it != pool->end();) {
      Block* b = *it;
      if (b->previous != nullptr || b->next != nullptr) { ++it; continue; }
      it = pool->erase(it);
      warn_if_failed(runtime().memory_free(device, b->address), "memory_free");
      d.segments.erase(b->address);
      add(d.stats.segment, b->small, -1);
      add(d.stats.reserved_bytes, b->small, -static_cast<int64_t>(b->size));
      d.stats.num_device_free++;
      delete b;
    }
  }
}

std::string limit_text(const Device& d) {
  return d.limit == SIZE_MAX ? "" : ", and this process may reserve at most " + readable(d.limit);
}

[[noreturn]] void out_of_memory(Device& d, int device, size_t bytes) {
  d.stats.num_ooms++;
  size_t free_bytes = 0, total = 0;
  runtime().memory_info(device, &free_bytes, &total);
  const size_t allocated = d.stats.allocated_bytes[0].current, reserved = d.stats.reserved_bytes[0].current;
  c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(bytes), allocated, reserved, dipu_device(device));
  TORCH_CHECK_WITH(
      OutOfMemoryError, false, "DIPU out of memory. Tried to allocate ", readable(bytes), ". Device ", device,
      " has a total capacity of ", readable(total), " of which ", readable(free_bytes),
      " is free", limit_text(d), ". Of the allocated memory ", readable(allocated), " is allocated by PyTorch, and ",
      readable(reserved - allocated), " is reserved by PyTorch but unallocated.");
}

Block* new_segment(Device& d, int device, size_t size, bool small, void* stream, size_t asked) {
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
    if (code == DIPU_OUT_OF_MEMORY && bytes > size) {  // the last bytes of the device: exactly what is needed
      bytes = size;
      code = ask();
    }
    if (code == DIPU_OUT_OF_MEMORY) out_of_memory(d, device, asked);
  }
  check(code, "memory_allocate");
  auto* b = new Block();
  b->address = static_cast<char*>(address);
  b->size = bytes;
  b->device = device;
  b->small = small;
  b->stream = stream;
  d.segments[b->address] = b;
  add(d.stats.segment, small, 1);
  add(d.stats.reserved_bytes, small, static_cast<int64_t>(bytes));
  d.stats.num_device_alloc++;
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
  tail->previous = b;
  tail->next = b->next;
  if (tail->next != nullptr) tail->next->previous = tail;
  b->next = tail;
  b->size = size;
  pool_of(d, tail).insert(tail);
  add(d.stats.inactive_split, tail->small, 1);
  add(d.stats.inactive_split_bytes, tail->small, static_cast<int64_t>(rest));
}

}  // namespace

Block* allocate_block(size_t bytes, int device) {
  Device& d = device_state(device);
  const size_t size = (std::max<size_t>(bytes, 1) + kGranule - 1) / kGranule * kGranule;
  const bool small = size <= kSmallLimit;
  void* stream = current_stream(device);
  TORCH_CHECK(!in_bad_fork(), "Cannot re-initialize DIPU in forked subprocess");
  DeviceLock lock(d.mutex);
  if (C10_UNLIKELY(!d.events.empty())) finish_events(d, false);
  Pool& pool = small ? d.small : d.large;
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
    b = new_segment(d, device, size, small, stream, bytes);
  }
  split_block(d, b, size);
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
  return b;
}

void free_block(void* context) {
  auto* b = static_cast<Block*>(context);
  if (b == nullptr || in_bad_fork()) return;  // a forked child owns nothing of the device
  if (auto* alias = b->alias.exchange(nullptr)) c10::intrusive_ptr<c10::StorageImpl>::reclaim(alias);
  Device& d = device_state(b->device);
  DeviceLock lock(d.mutex);
  index_block(b->device, b->address, nullptr);
  b->in_use = false;
  add(d.stats.allocation, b->small, -1);
  add(d.stats.allocated_bytes, b->small, -static_cast<int64_t>(b->size));
  add(d.stats.requested_bytes, b->small, -static_cast<int64_t>(b->requested));
  c10::reportMemoryUsageToProfiler(
      b->address, -static_cast<int64_t>(b->size), d.stats.allocated_bytes[0].current,
      d.stats.reserved_bytes[0].current, dipu_device(b->device));
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

c10::DataPtr device_data(Block* b) {
  return c10::DataPtr(b->address, b, &free_block, dipu_device(b->device));
}

bool in_segments(const void* address, int device) {
  auto* p = static_cast<char*>(const_cast<void*>(address));
  Device& d = device_state(device);
  DeviceLock lock(d.mutex);
  auto it = d.segments.upper_bound(p);
  if (it == d.segments.begin()) return false;
  --it;
  const Block* last = it->second;
  while (last->next != nullptr) last = last->next;
  return p < last->address + last->size;
}

namespace {

struct DeviceAllocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    return dipu::allocate(bytes, current_device());
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return nullptr;  // context and address differ, so there is no raw interface
  }
  void copy_data(void* dst, const void* src, size_t bytes) const override {
    const int to = device_of(dst), from = device_of(src);
    const int owner = std::max(to, from);
    DipuCopy copy{dst, src, bytes, to, from, owner, 1, owner >= 0 ? current_stream(owner) : nullptr};
    const Span span(copy);
    check(runtime().memory_copy(&copy), "memory_copy");
  }
  bool initialized() override {
    return true;
  }
  void emptyCache(c10::MempoolId_t) override {
    for (int i = 0; i < device_count(); i++) {
      Device& d = device_state(i);
      DeviceLock lock(d.mutex);
      finish_events(d, true);
      release_cached(d, i);
    }
  }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    if (data.get_deleter() != &free_block || data.get_context() == nullptr) return;
    auto* b = static_cast<Block*>(data.get_context());
    void* handle = reinterpret_cast<void*>(stream.id());
    Device& d = device_state(b->device);
    DeviceLock lock(d.mutex);
    if (handle == b->stream && stream.device_index() == b->device) return;
    if (std::find(b->used_on.begin(), b->used_on.end(), handle) == b->used_on.end()) b->used_on.push_back(handle);
  }
  DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    Device& d = device_state(resolve_device(device));
    DeviceLock lock(d.mutex);
    return d.stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    for_each_stat(device, [](Stat& s) { s.reset_accumulated(); });
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    for_each_stat(device, [](Stat& s) { s.reset_peak(); });
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) {  // younger than torch 2.11: no override
    return memory_info(device);
  }

 private:
  template <class F>
  void for_each_stat(c10::DeviceIndex device, F f) {
    Device& d = device_state(resolve_device(device));
    DeviceLock lock(d.mutex);
    auto& s = d.stats;
    for (auto* array : {&s.allocation, &s.segment, &s.active, &s.inactive_split, &s.allocated_bytes, &s.reserved_bytes,
                        &s.active_bytes, &s.inactive_split_bytes, &s.requested_bytes}) {
      for (auto& stat : *array) f(stat);
    }
  }
};

}  // namespace

c10::DeviceAllocator* device_allocator() {
  static auto* allocator = new DeviceAllocator();
  return allocator;
}

c10::DataPtr allocate(size_t bytes, int device) {
  const int index = resolve_device(device);
  if (bytes == 0) return c10::DataPtr(nullptr, dipu_device(index));
  return device_data(allocate_block(bytes, index));
}

void set_memory_limit(int device, size_t bytes) {
  Device& d = device_state(resolve_device(device));
  DeviceLock lock(d.mutex);
  d.limit = bytes;
}

std::vector<SegmentRecord> memory_snapshot() {
  std::vector<SegmentRecord> segments;
  for (int i = 0; i < device_count(); i++) {
    Device& d = device_state(i);
    DeviceLock lock(d.mutex);
    for (auto& [address, first] : d.segments) {
      SegmentRecord segment{i, reinterpret_cast<uintptr_t>(address), first->small, first->stream, {}};
      for (const Block* b = first; b != nullptr; b = b->next) {
        segment.blocks.push_back({reinterpret_cast<uintptr_t>(b->address), b->size, b->requested, b->in_use, b->pending_events > 0});
      }
      segments.push_back(std::move(segment));
    }
  }
  return segments;
}

std::pair<size_t, size_t> memory_info(int device) {
  size_t free_bytes = 0, total = 0;
  check(runtime().memory_info(resolve_device(device), &free_bytes, &total), "memory_info");
  return {free_bytes, total};
}

void resize_storage(c10::StorageImpl* storage, size_t bytes) {
  const int device = storage->device().index();
  c10::DataPtr data = allocate(bytes, device);
  const size_t keep = std::min<size_t>(bytes, storage->nbytes());
  if (keep > 0 && storage->data() != nullptr) device_allocator()->copy_data(data.get(), storage->data(), keep);
  storage->set_data_ptr_noswap(std::move(data));
  storage->set_nbytes(bytes);
}

}  // namespace dipu
