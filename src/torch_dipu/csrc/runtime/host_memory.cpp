// SPDX-License-Identifier: Apache-2.0
// The host's access to memory: the window onto device memory, the redirect that lets host kernels
// allocate their results there, memory of other processes, and pinned host memory.
#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "runtime/memory_events.h"

namespace dipu {

// ---- the host's window onto device memory
struct View {
  DipuWindow window{};
  Block** by_granule = nullptr;  // the block that starts at a granule of the window
};
static View g_views[kMaxDevices];

void register_window(int device, const DipuWindow& window) {
  View& view = g_views[device];
  view.window = window;
  const size_t entries = window.bytes / kGranule;
  void* table = mmap(nullptr, entries * sizeof(Block*), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TORCH_CHECK(table != MAP_FAILED, "DIPU: cannot reserve the block table of device ", device);
  view.by_granule = static_cast<Block**>(table);
}

bool host_reachable(int device) {
  return g_views[device].window.host != nullptr;
}

std::tuple<uintptr_t, uintptr_t, size_t> host_window(int device) {
  const auto& window = g_views[device].window;
  return {reinterpret_cast<uintptr_t>(window.device), reinterpret_cast<uintptr_t>(window.host), window.bytes};
}

static bool inside(const void* address, const char* base, size_t bytes) {
  const auto* p = static_cast<const char*>(address);
  return base != nullptr && p >= base && p < base + bytes;
}

void index_block(int device, const char* address, Block* block) {
  View& view = g_views[device];
  if (view.by_granule != nullptr) view.by_granule[(address - view.window.device) / kGranule] = block;
}

int device_of(const void* address) {
  for (int i = 0; i < device_count(); i++) {
    const auto& w = g_views[i].window;
    if (w.device != nullptr ? inside(address, w.device, w.bytes) : in_segments(address, i)) return i;
  }
  return DIPU_HOST;
}

void* to_host(const void* address) {
  for (int i = 0; i < device_count(); i++) {
    const auto& w = g_views[i].window;
    if (C10_LIKELY(inside(address, w.device, w.bytes))) return w.host + (static_cast<const char*>(address) - w.device);
  }
  TORCH_CHECK(false, "DIPU: ", address, " is not device memory that the host can reach");
}

static Block* block_of_host(const void* address) {
  for (int i = 0; i < device_count(); i++) {
    const View& view = g_views[i];
    if (inside(address, view.window.host, view.window.bytes)) {
      return view.by_granule[(static_cast<const char*>(address) - view.window.host) / kGranule];
    }
  }
  return nullptr;
}

static bool in_window(const void* address) {
  for (int i = 0; i < device_count(); i++) if (inside(address, g_views[i].window.host, g_views[i].window.bytes)) return true;
  return false;
}

c10::intrusive_ptr<c10::StorageImpl> host_storage(c10::StorageImpl* storage) {
  using Ptr = c10::intrusive_ptr<c10::StorageImpl>;
  auto& data = storage->_mutable_data_ptr_no_checks();
  Block* block = data.get_deleter() == &free_block ? static_cast<Block*>(data.get_context()) : nullptr;
  if (block != nullptr) {
    auto* cached = block->alias.load(std::memory_order_acquire);
    if (C10_LIKELY(cached != nullptr && cached->nbytes() == storage->nbytes())) return Ptr::reclaim_copy(cached);
  }
  void* address = data.get();
  auto fresh = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), storage->nbytes(),
      c10::DataPtr(address ? to_host(address) : nullptr, c10::Device(c10::DeviceType::CPU)), c10::GetCPUAllocator(),
      /*resizable=*/true);
  if (block != nullptr) {  // two threads may both create one: the first is kept
    c10::StorageImpl* expected = nullptr;
    auto* candidate = Ptr(fresh).release();
    if (!block->alias.compare_exchange_strong(expected, candidate)) Ptr::reclaim(candidate);
  }
  return fresh;
}

// ---- redirect
static thread_local int tls_redirect = DIPU_HOST;
static c10::DeleterFnPtr g_host_raw_deleter = nullptr;

static void free_redirected(void* address) {
  if (address == nullptr) return;
  if (Block* b = block_of_host(address)) free_block(b);
  else if (C10_UNLIKELY(in_window(address))) check_refused_free(address);  // free() would abort the process
  else if (!in_bad_fork() && g_host_raw_deleter != nullptr) g_host_raw_deleter(address);
}

struct RedirectAllocator final : c10::Allocator {
  c10::Allocator* host = c10::GetCPUAllocator();

  c10::DataPtr allocate(size_t bytes) override {
    if (C10_LIKELY(tls_redirect < 0) || bytes == 0) return host->allocate(bytes);
    void* address = to_host(allocate_block(bytes, tls_redirect)->address);
    // context == address, as callers of raw_allocate() expect
    return c10::DataPtr(address, address, &free_redirected, c10::Device(c10::DeviceType::CPU));
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &free_redirected;
  }
  void copy_data(void* dst, const void* src, size_t bytes) const override {
    std::memcpy(dst, src, bytes);
  }
};

void install_redirect() {
  g_host_raw_deleter = c10::GetCPUAllocator()->raw_deleter();
  c10::SetCPUAllocator(new RedirectAllocator(), /*priority=*/10);
}
RedirectGuard::RedirectGuard(int device) : previous_(tls_redirect) {
  tls_redirect = device;
}
RedirectGuard::~RedirectGuard() {
  tls_redirect = previous_;
}

c10::DataPtr adopt_redirected(c10::StorageImpl* storage) {
  auto& data = storage->_mutable_data_ptr_no_checks();
  if (data.get_deleter() != &free_redirected) return {};
  void* address = data.get();
  Block* b = block_of_host(address);
  if (b == nullptr) return {};
  data.release_context();
  // the host kernel's storage becomes the host's alias of the block
  storage->set_data_ptr_noswap(c10::DataPtr(address, c10::Device(c10::DeviceType::CPU)));
  auto* alias = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage).release();
  if (auto* old = b->alias.exchange(alias)) c10::intrusive_ptr<c10::StorageImpl>::reclaim(old);
  return device_data(b);
}

// ---- memory of another process
namespace {
struct Imported {
  int device, token;
  void* address;
};
void free_imported(void* context) {
  auto* imported = static_cast<Imported*>(context);
  if (!in_bad_fork()) warn_if_failed(runtime().memory_free(imported->device, imported->address), "memory_free");
  if (imported->token >= 0) close(imported->token);  // signals the owner that this process is done
  delete imported;
}
}  // namespace

c10::DataPtr import_memory(int device, int fd, uint64_t offset, size_t bytes, int token) {
  TORCH_CHECK(runtime().memory_import != nullptr, "this DIPU vendor cannot share memory between processes");
  void* address = nullptr;
  check(runtime().memory_import(resolve_device(device), fd, offset, bytes, &address), "memory_import");
  return c10::DataPtr(address, new Imported{device, token, address}, &free_imported, dipu_device(device));
}

// ---- pinned host memory
namespace {
// The last asynchronous copy on a stream that reads or writes pinned memory.
struct PinnedUse {
  int device;
  void* stream;
  void* event;
};
struct PinnedBlock {
  size_t bytes = 0;
  std::vector<PinnedUse> uses;
  Context context;  // the stack of its allocation, while stacks are recorded
};

bool history_is_on() {
  return (g_notes.load(std::memory_order_relaxed) & kHistory) != 0;
}
void note_pinned(std::initializer_list<Act> acts, const void* address, size_t bytes, const Context& context) {
  for (Act act : acts) note_event(act, DIPU_HOST, reinterpret_cast<size_t>(address), bytes, nullptr, context);
}

// The memory of each tensor comes from the runtime and returns to it with the tensor: no cache.
struct PinnedAllocator final : at::HostAllocator {
  std::mutex mutex;
  std::map<const char*, PinnedBlock> live;
  at::HostStats stats;

  static void release(void* address);
  c10::DataPtr allocate(size_t bytes) override {
    void* address = nullptr;
    if (bytes > 0) {
      TORCH_CHECK(!in_bad_fork(), "Cannot pin memory in a forked subprocess of a process that uses DIPU");
      const Context context = history_is_on() ? gather_at_allocation() : nullptr;
      check(runtime().host_allocate(bytes, &address), "host_allocate");
      if (history_is_on()) note_pinned({Act::SegmentAlloc, Act::Alloc}, address, bytes, context);
      std::lock_guard<std::mutex> lock(mutex);
      live[static_cast<char*>(address)] = {bytes, {}, context};
      for (auto* count : {&stats.active_requests, &stats.allocations}) count->increase(1);
      for (auto* size : {&stats.active_bytes, &stats.allocated_bytes}) size->increase(bytes);
      stats.num_host_alloc++;
    }
    return c10::DataPtr(address, address, &release, c10::Device(c10::DeviceType::CPU));
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &release;
  }
  void copy_data(void* dst, const void* src, size_t bytes) const override {
    std::memcpy(dst, src, bytes);
  }

  // A copy on a stream may still use the memory of a freed tensor: the memory is freed after the copy.
  bool record_event(void* address, void*, c10::Stream stream) override {
    const int device = stream.device_index();
    auto* handle = reinterpret_cast<void*>(stream.id());
    void* event = nullptr;
    {
      std::lock_guard<std::mutex> lock(mutex);
      const auto found = block_at(address);
      if (found == live.end()) return false;
      for (auto& use : found->second.uses) if (use.device == device && use.stream == handle) event = use.event;
    }
    // the runtime may need the GIL: it is never called while the lock is held
    const bool is_new = event == nullptr;
    if (is_new) check(runtime().event_create(device, /*timing=*/0, &event), "event_create");
    check(runtime().event_record(device, event, handle), "event_record");
    if (is_new) {
      std::lock_guard<std::mutex> lock(mutex);
      block_at(address)->second.uses.push_back({device, handle, event});
    }
    return true;
  }
  std::map<const char*, PinnedBlock>::iterator block_at(const void* address) {
    auto it = live.upper_bound(static_cast<const char*>(address));
    if (it == live.begin()) return live.end();
    --it;
    return static_cast<const char*>(address) < it->first + it->second.bytes ? it : live.end();
  }
  void empty_cache() override {}
  at::HostStats get_stats() override {
    std::lock_guard<std::mutex> lock(mutex);
    return stats;
  }
  void reset_accumulated_stats() override {
    std::lock_guard<std::mutex> lock(mutex);
    for (auto* stat : all()) stat->reset_accumulated();
    stats.num_host_alloc = stats.num_host_free = 0;
  }
  void reset_peak_stats() override {
    std::lock_guard<std::mutex> lock(mutex);
    for (auto* stat : all()) stat->reset_peak();
  }
  std::array<c10::CachingAllocator::Stat*, 4> all() {
    return {&stats.active_requests, &stats.active_bytes, &stats.allocations, &stats.allocated_bytes};
  }
};
PinnedAllocator& pinned() {
  static auto* allocator = new PinnedAllocator();
  return *allocator;
}
void PinnedAllocator::release(void* address) {
  if (address == nullptr) return;
  PinnedBlock block{};
  {
    std::lock_guard<std::mutex> lock(pinned().mutex);
    const auto found = pinned().live.find(static_cast<char*>(address));
    if (found != pinned().live.end()) {
      block = std::move(found->second);
      pinned().live.erase(found);
      auto& stats = pinned().stats;
      for (auto* count : {&stats.active_requests, &stats.allocations}) count->decrease(1);
      for (auto* size : {&stats.active_bytes, &stats.allocated_bytes}) size->decrease(block.bytes);
      stats.num_host_free++;
    }
  }
  if (in_bad_fork()) block.uses.clear();  // the runtime's threads belong to the parent
  if (block.bytes > 0 && history_is_on()) {
    note_pinned({Act::FreeRequested, Act::FreeCompleted, Act::SegmentFree}, address, block.bytes, gather_at_free());
  }
  for (const auto& use : block.uses) {
    warn_if_failed(runtime().event_synchronize(use.event), "event_synchronize");
    warn_if_failed(runtime().event_destroy(use.device, use.event), "event_destroy");
  }
  warn_if_failed(runtime().host_free(address), "host_free");
}
}  // namespace

at::HostAllocator* pinned_allocator() {
  return &pinned();
}
std::vector<SegmentRecord> pinned_snapshot() {
  std::vector<SegmentRecord> segments;
  std::lock_guard<std::mutex> lock(pinned().mutex);
  for (const auto& [start, block] : pinned().live) {
    const auto address = reinterpret_cast<uintptr_t>(start);
    segments.push_back({DIPU_HOST, address, false, nullptr, {{address, block.bytes, block.bytes, true, false, block.context}}});
  }
  return segments;
}
bool is_pinned(const void* address) {
  std::lock_guard<std::mutex> lock(pinned().mutex);
  return pinned().block_at(address) != pinned().live.end();
}

}  // namespace dipu
