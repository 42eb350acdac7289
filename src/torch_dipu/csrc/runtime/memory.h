/* SPDX-License-Identifier: Apache-2.0 */
// Internals of the memory parts: the caching allocator (memory.cpp) and host access
// (host_memory.cpp).
#pragma once

#include <Python.h>

#include <array>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <tuple>

#include "runtime/core.h"

namespace dipu {

using Context = std::shared_ptr<c10::GatheredContext>;  // a stack, formatted on demand

constexpr size_t kGranule = 512;  // every block is a multiple of it

using PoolId = std::pair<uint64_t, uint64_t>;  // torch's MempoolId_t
struct PrivatePool;

// A range inside a segment, in use or cached. Neighbours are linked so that free ranges merge.
struct Block {
  char* address = nullptr;
  size_t size = 0, requested = 0;
  int device = 0;
  bool small = false, in_use = false;
  PrivatePool* owner = nullptr;  // of its memory; null: the device's own pools
  void* stream = nullptr;  // the stream that may reuse it at once
  Block *previous = nullptr, *next = nullptr;
  std::vector<void*> used_on;              // further streams, from record_stream
  int pending_events = 0;
  std::atomic<c10::StorageImpl*> alias{nullptr};  // host storage on the same bytes, owned
  Context context;  // the stack of its allocation, while stacks are recorded
  // the checker's bytes follow the requested ones; they were changed
  bool guarded = false, broken = false;
};

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

// Memory of graphs, or of a MemPool. No other allocation uses its free blocks, which return to the chip once
// it has no user.
struct PrivatePool {
  PoolId id;
  Pool small, large;
  int users = 0;
};

struct Device {
  std::mutex mutex;
  Pool small, large;  // cached blocks
  std::map<PoolId, std::unique_ptr<PrivatePool>> pools;
  std::map<char*, Block*> segments;  // by address: the first block
  std::deque<std::pair<void*, Block*>> events;  // freed, but still in use on another stream
  c10::CachingDeviceAllocator::DeviceStats stats;
  size_t limit = SIZE_MAX;  // of the reserved bytes
};

// A device's lock. The chip is called while it is held; a chip written in Python takes the GIL,
// which a thread that waits for this lock must therefore release.
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

inline Device& device_state(int device) {
  static auto* all = new std::array<Device, kMaxDevices>();
  return (*all)[device];
}

inline void add(c10::CachingAllocator::StatArray& stat, bool small, int64_t amount) {
  using c10::CachingAllocator::StatType;
  for (auto kind : {StatType::AGGREGATE, small ? StatType::SMALL_POOL : StatType::LARGE_POOL}) {
    auto& s = stat[static_cast<size_t>(kind)];
    if (amount >= 0) s.increase(amount); else s.decrease(-amount);
  }
}

Block* allocate_block(size_t bytes, int device);
void free_block(void* block);  // deleter of a device DataPtr
c10::DataPtr device_data(Block* block);
PrivatePool* use_pool(int device, PoolId id);  // adds a user
void release_pool(int device, PoolId id);      // removes it
// The pool of this thread's allocations, until the next call; null: the usual ones.
PrivatePool* exchange_thread_pool(int device, PrivatePool* pool);
void free_pending(Block* block);  // a freed block whose streams were captured
void finish_events(Device& d, bool wait);  // frees blocks whose use on other streams has ended
void release_cached(Device& d, int device);  // returns entirely free segments to the chip
std::string readable(size_t bytes);            // "1.50 MiB"
struct BlockRecord {
  uintptr_t address;
  size_t size, requested;
  bool in_use, pending;  // pending: freed, but in use on another stream
  Context context;
};
struct SegmentRecord {
  int device;
  uintptr_t address;
  bool small;
  void* stream;
  std::vector<BlockRecord> blocks;
  PoolId pool{0, 0};
};
std::vector<SegmentRecord> memory_snapshot();
std::vector<SegmentRecord> pinned_snapshot();  // device DIPU_HOST; one block each
// The memory that could be allocated without a call of the chip.
struct CachedBlocks {
  size_t blocks = 0, bytes = 0, largest = 0;
};
CachedBlocks cached_blocks(const Device& d);
bool in_segments(const void* address, int device);
void index_block(int device, const char* address, Block* block);  // nullptr: freed

}  // namespace dipu
