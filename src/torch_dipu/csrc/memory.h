// Inside the memory parts: the caching allocator (memory.cpp) and the host's view of it (host_memory.cpp).
#pragma once

#include "core.h"

namespace dipu {

constexpr size_t kGranule = 512;  // every block is a multiple of it

// A range inside a segment, in use or cached. Neighbours are linked so that free ranges merge.
struct Block {
  char* address = nullptr;
  size_t size = 0, requested = 0;
  int device = 0;
  bool small = false, in_use = false;
  void* stream = nullptr;                  // where it may be used again at once
  Block *previous = nullptr, *next = nullptr;
  std::vector<void*> used_on;              // further streams, from record_stream
  int pending_events = 0;
  std::atomic<c10::StorageImpl*> alias{nullptr};  // host storage on the same bytes, owned
};

Block* allocate_block(size_t bytes, int device);
void free_block(void* block);  // deleter of a device DataPtr
c10::DataPtr device_data(Block* block);
bool in_segments(const void* address, int device);
void index_block(int device, const char* address, Block* block);  // nullptr: freed

}  // namespace dipu
