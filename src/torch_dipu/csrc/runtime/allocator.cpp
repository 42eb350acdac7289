// SPDX-License-Identifier: Apache-2.0
// The device's memory in torch: c10's allocator interface, its statistics, snapshots and limits.
#include <c10/util/Exception.h>

#include <algorithm>

#include "graphs/capture.h"
#include "profiler/span.h"
#include "runtime/memory.h"

namespace dipu {

using c10::CachingAllocator::Stat;
using c10::CachingDeviceAllocator::DeviceStats;

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
  // not in torch 2.11: no override
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) {
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
      const auto pool = first->owner == nullptr ? PoolId{0, 0} : first->owner->id;
      SegmentRecord segment{i, reinterpret_cast<uintptr_t>(address), first->small, first->stream, {}, pool};
      for (const Block* b = first; b != nullptr; b = b->next) {
        segment.blocks.push_back({reinterpret_cast<uintptr_t>(b->address), b->size, b->requested, b->in_use, b->pending_events > 0, b->context});
      }
      segments.push_back(std::move(segment));
    }
  }
  return segments;
}

CachedBlocks cached_blocks(const Device& d) {
  CachedBlocks sum;
  for (const Pool* pool : {&d.small, &d.large}) {
    for (const Block* b : *pool) {
      sum.blocks++;
      sum.bytes += b->size;
      sum.largest = std::max(sum.largest, b->size);
    }
  }
  return sum;
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
  if (keep > 0 && storage->data() != nullptr) {
    device_allocator()->copy_data(data.get(), storage->data(), keep);
    if (const auto capture = recording(device)) {
      record_run(capture, "resize_", [to = data.get(), from = storage->data(), keep] {
        std::memmove(to_host(to), to_host(from), keep);
      });
    }
  }
  storage->set_data_ptr_noswap(std::move(data));
  storage->set_nbytes(bytes);
}

}  // namespace dipu
