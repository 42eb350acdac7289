// The reference chip: host memory behind addresses that the host may not touch, and streams whose
// work is done at launch but counts as done only when their completion clock says so.
// It is written against dipu_runtime.h alone and is meant to be read as its documentation.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "chip.h"

namespace reference {
namespace {

constexpr int kMaxDevices = 16;
constexpr size_t kPage = 4096;

int g_count = 0;
size_t g_capacity = 0;
thread_local std::string tls_error;

}  // namespace

int fail(int code, std::string text) {
  tls_error = std::move(text);
  return code;
}

namespace {

const char* last_error() {
  return tls_error.c_str();
}

// ---- streams: a completion clock, and copies that arrive late while that hazard is on

struct LateCopy {
  void* dst;
  std::vector<char> bytes;  // as they were at launch
  std::atomic<bool> delivered{false};
  void deliver() {
    if (!delivered.exchange(true)) std::memcpy(dst, bytes.data(), bytes.size());
  }
};
using LateCopies = std::vector<std::shared_ptr<LateCopy>>;

struct Stream {
  std::mutex mutex;
  int64_t ready_ns = 0;  // when everything launched so far is done
  LateCopies late;
};
struct Event {
  int64_t ready_ns = 0;
  bool recorded = false, timing = true;
  LateCopies late;
};

std::atomic<bool> g_late{false};

int64_t now_ns() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1'000'000'000LL + t.tv_nsec;
}
void wait_until(int64_t when) {
  for (int64_t left = when - now_ns(); left > 0; left = when - now_ns()) {
    timespec t{left / 1'000'000'000LL, left % 1'000'000'000LL};
    nanosleep(&t, nullptr);
  }
}
void deliver(LateCopies& late) {
  for (auto& copy : late) copy->deliver();
  late.clear();
}

// ---- memory: per device one range of addresses without access (what the program sees) and one with
// access (what kernels use); host address = device address + constant

struct Chip {
  std::mutex mutex;
  char *device = nullptr, *host = nullptr;
  int fd = -1;
  size_t used = 0;
  std::map<size_t, size_t> holes;               // offset -> bytes, free
  std::map<size_t, std::pair<size_t, bool>> live;  // offset -> (bytes, imported)
  Stream default_stream;
  std::vector<std::unique_ptr<Stream>> streams;
};
Chip g_chips[kMaxDevices];

size_t pages(size_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

struct sigaction g_previous_segv;

int chip_of(const void* address) {
  for (int i = 0; i < g_count; i++) {
    const char* base = g_chips[i].device;
    if (base != nullptr && address >= base && address < base + g_capacity) return i;
  }
  return -1;
}

void on_segv(int, siginfo_t* info, void*) {
  const int chip = chip_of(info->si_addr);
  if (chip >= 0) {
    char text[200];
    const int length = snprintf(
        text, sizeof text,
        "\n[torch_dipu] host code dereferenced device memory: %p belongs to dipu:%d. Copy the tensor with .cpu() first.\n",
        info->si_addr, chip);
    (void)!write(STDERR_FILENO, text, static_cast<size_t>(length));
  }
  sigaction(SIGSEGV, &g_previous_segv, nullptr);  // whoever was there before (faulthandler, say) goes on
}

void install_segv_handler() {
  stack_t current{};
  if (sigaltstack(nullptr, &current) == 0 && (current.ss_flags & SS_DISABLE) != 0) {
    stack_t own{};
    own.ss_size = 64 * 1024;
    own.ss_sp = malloc(own.ss_size);
    sigaltstack(&own, nullptr);
  }
  struct sigaction action{};
  action.sa_sigaction = on_segv;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &action, &g_previous_segv);
}

int open_chip(int device) {
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  Chip& chip = g_chips[device];
  if (chip.device != nullptr) return DIPU_OK;
  chip.fd = static_cast<int>(syscall(SYS_memfd_create, "dipu", 1u /* MFD_CLOEXEC */));
  if (chip.fd < 0 || ftruncate(chip.fd, static_cast<off_t>(g_capacity)) != 0) {
    return fail(DIPU_ERROR, "cannot make the device's memory");
  }
  void* host = mmap(nullptr, g_capacity, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, chip.fd, 0);
  void* seen = mmap(nullptr, g_capacity, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (host == MAP_FAILED || seen == MAP_FAILED) return fail(DIPU_ERROR, "cannot reserve the device's addresses");
  madvise(host, g_capacity, MADV_HUGEPAGE);
  chip.host = static_cast<char*>(host);
  chip.holes[0] = g_capacity;
  static bool handled = (install_segv_handler(), true);
  (void)handled;
  chip.device = static_cast<char*>(seen);
  return DIPU_OK;
}

// First fit: segments are few and large. Returns the offset, or -1.
int64_t take_hole(Chip& chip, size_t bytes, bool imported) {
  for (auto it = chip.holes.begin(); it != chip.holes.end(); ++it) {
    auto [offset, room] = *it;
    if (room < bytes) continue;
    chip.holes.erase(it);
    if (room > bytes) chip.holes[offset + bytes] = room - bytes;
    chip.live[offset] = {bytes, imported};
    return static_cast<int64_t>(offset);
  }
  return -1;
}

}  // namespace

void* host_address(int device, const void* address) {
  auto* p = static_cast<char*>(const_cast<void*>(address));
  return device == DIPU_HOST ? p : g_chips[device].host + (p - g_chips[device].device);
}

namespace {

int device_count(int* count) {
  *count = g_count;
  return DIPU_OK;
}
int device_info(int, DipuDeviceInfo* info) {
  snprintf(info->name, sizeof info->name, "DIPU reference device (CPU)");
  info->total_memory = g_capacity;
  info->major = 8;  // programs written for CUDA ask for 8 before they use bfloat16
  info->minor = 0;
  info->multiprocessors = static_cast<int32_t>(sysconf(_SC_NPROCESSORS_ONLN));
  return DIPU_OK;
}

int memory_allocate(int device, size_t bytes, void** out) {
  if (int code = open_chip(device)) return code;
  Chip& chip = g_chips[device];
  std::lock_guard<std::mutex> lock(chip.mutex);
  const size_t rounded = pages(bytes);
  if (chip.used + rounded > g_capacity) return fail(DIPU_OUT_OF_MEMORY, "out of memory");
  const int64_t offset = take_hole(chip, rounded, false);
  if (offset < 0) return fail(DIPU_OUT_OF_MEMORY, "out of memory (fragmented)");
  chip.used += rounded;
  *out = chip.device + offset;
  return DIPU_OK;
}

int memory_free(int device, void* address) {
  Chip& chip = g_chips[device];
  std::lock_guard<std::mutex> lock(chip.mutex);
  auto found = chip.live.find(static_cast<size_t>(static_cast<char*>(address) - chip.device));
  if (found == chip.live.end()) return fail(DIPU_ERROR, "memory_free: not an allocation");
  const size_t offset = found->first / kPage * kPage;  // imported memory may begin inside a page
  auto [bytes, imported] = found->second;
  chip.live.erase(found);
  if (imported) {  // our own pages again
    mmap(chip.host + offset, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, chip.fd, static_cast<off_t>(offset));
  } else {
    chip.used -= bytes;
    fallocate(chip.fd, 0x01 | 0x02 /* keep size, punch hole */, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  }
  auto next = chip.holes.lower_bound(offset);
  if (next != chip.holes.end() && offset + bytes == next->first) {
    bytes += next->second;
    next = chip.holes.erase(next);
  }
  if (next != chip.holes.begin()) {
    auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += bytes;
      return DIPU_OK;
    }
  }
  chip.holes[offset] = bytes;
  return DIPU_OK;
}

int memory_info(int device, size_t* free_bytes, size_t* total) {
  std::lock_guard<std::mutex> lock(g_chips[device].mutex);
  *free_bytes = g_capacity - g_chips[device].used;
  *total = g_capacity;
  return DIPU_OK;
}

int memory_window(int device, DipuWindow* window) {
  if (int code = open_chip(device)) return code;
  *window = {g_chips[device].device, g_chips[device].host, g_capacity};
  return DIPU_OK;
}

Stream& stream_of(int device, void* stream) {
  return stream != nullptr ? *static_cast<Stream*>(stream) : g_chips[device].default_stream;
}
}  // namespace

int stream_synchronize(int device, void* handle) {
  Stream& s = stream_of(device, handle);
  int64_t when = 0;
  LateCopies late;
  {
    std::lock_guard<std::mutex> lock(s.mutex);
    when = s.ready_ns;
    late.swap(s.late);
  }
  if (when > 0) wait_until(when);
  deliver(late);
  return DIPU_OK;
}

namespace {

int memory_copy(const DipuCopy* c) {
  if (c->blocking != 0 && c->stream_device >= 0) stream_synchronize(c->stream_device, c->stream);
  void* dst = host_address(c->dst_device, c->dst);
  const void* src = host_address(c->src_device, c->src);
  if (c->blocking == 0 && g_late.load(std::memory_order_relaxed)) {
    auto copy = std::make_shared<LateCopy>();
    copy->dst = dst;
    copy->bytes.assign(static_cast<const char*>(src), static_cast<const char*>(src) + c->bytes);
    Stream& s = stream_of(c->stream_device, c->stream);
    std::lock_guard<std::mutex> lock(s.mutex);
    s.late.push_back(std::move(copy));
    return DIPU_OK;
  }
  std::memmove(dst, src, c->bytes);
  return DIPU_OK;
}

int memory_export(int device, void* address, int* fd, uint64_t* offset) {
  *fd = g_chips[device].fd;
  *offset = static_cast<uint64_t>(static_cast<char*>(address) - g_chips[device].device);
  return DIPU_OK;
}

int memory_import(int device, int fd, uint64_t offset, size_t bytes, void** out) {
  if (int code = open_chip(device)) return code;
  Chip& chip = g_chips[device];
  const size_t inside = offset % kPage;  // mappings begin at pages
  const size_t length = pages(bytes + inside);
  std::lock_guard<std::mutex> lock(chip.mutex);
  const int64_t place = take_hole(chip, length, true);
  if (place < 0) return fail(DIPU_OUT_OF_MEMORY, "no room for the memory of another process");
  void* mapped = mmap(chip.host + place, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, static_cast<off_t>(offset - inside));
  if (mapped == MAP_FAILED) return fail(DIPU_ERROR, "cannot map the memory of another process");
  *out = chip.device + place + inside;
  if (inside != 0) {  // freed by the address that was given out
    auto node = chip.live.extract(static_cast<size_t>(place));
    node.key() = static_cast<size_t>(place) + inside;
    chip.live.insert(std::move(node));
  }
  return DIPU_OK;
}

int host_allocate(size_t bytes, void** out) {
  return posix_memalign(out, kPage, bytes) == 0 ? DIPU_OK : fail(DIPU_OUT_OF_MEMORY, "out of host memory");
}
int host_free(void* address) {
  free(address);
  return DIPU_OK;
}

int stream_create(int device, int, void** out) {
  Chip& chip = g_chips[device];
  std::lock_guard<std::mutex> lock(chip.mutex);
  chip.streams.push_back(std::make_unique<Stream>());
  *out = chip.streams.back().get();
  return DIPU_OK;
}
int stream_query(int device, void* handle) {
  Stream& s = stream_of(device, handle);
  std::lock_guard<std::mutex> lock(s.mutex);
  if (s.ready_ns > now_ns()) return DIPU_NOT_READY;
  deliver(s.late);  // the program has been told that it is done
  return DIPU_OK;
}
int stream_wait_event(int device, void* handle, void* event) {
  auto& e = *static_cast<Event*>(event);
  Stream& s = stream_of(device, handle);
  std::lock_guard<std::mutex> lock(s.mutex);
  s.ready_ns = std::max(s.ready_ns, e.ready_ns);
  s.late.insert(s.late.end(), e.late.begin(), e.late.end());
  return DIPU_OK;
}
int device_synchronize(int device) {
  stream_synchronize(device, nullptr);
  std::vector<Stream*> all;
  {
    std::lock_guard<std::mutex> lock(g_chips[device].mutex);
    for (auto& s : g_chips[device].streams) all.push_back(s.get());
  }
  for (Stream* s : all) stream_synchronize(device, s);
  return DIPU_OK;
}

int event_create(int, int timing, void** out) {
  auto* e = new Event();
  e->timing = timing != 0;
  *out = e;
  return DIPU_OK;
}
int event_destroy(int, void* event) {
  delete static_cast<Event*>(event);
  return DIPU_OK;
}
int event_record(int device, void* event, void* handle) {
  auto& e = *static_cast<Event*>(event);
  Stream& s = stream_of(device, handle);
  std::lock_guard<std::mutex> lock(s.mutex);
  e.ready_ns = std::max(s.ready_ns, now_ns());
  e.recorded = true;
  e.late = s.late;
  return DIPU_OK;
}
int event_query(void* event) {
  auto& e = *static_cast<Event*>(event);
  if (e.ready_ns > now_ns()) return DIPU_NOT_READY;
  deliver(e.late);
  return DIPU_OK;
}
int event_synchronize(void* event) {
  auto& e = *static_cast<Event*>(event);
  if (e.recorded) wait_until(e.ready_ns);
  deliver(e.late);
  return DIPU_OK;
}
int event_elapsed(void* start, void* end, double* milliseconds) {
  auto &a = *static_cast<Event*>(start), &b = *static_cast<Event*>(end);
  if (!a.recorded || !b.recorded) return fail(DIPU_ERROR, "both events must be recorded");
  if (!a.timing || !b.timing) return fail(DIPU_ERROR, "both events must be created with enable_timing=True");
  if (a.ready_ns > now_ns() || b.ready_ns > now_ns()) return fail(DIPU_NOT_READY, "both events must be completed");
  *milliseconds = static_cast<double>(b.ready_ns - a.ready_ns) / 1e6;
  return DIPU_OK;
}

const DipuRuntime kTable = {
    DIPU_RUNTIME_ABI, sizeof(DipuRuntime), last_error,
    device_count, device_info, device_synchronize,
    memory_allocate, memory_free, memory_info, memory_window, memory_copy, memory_export, memory_import,
    host_allocate, host_free,
    stream_create, stream_synchronize, stream_query, stream_wait_event,
    event_create, event_destroy, event_record, event_query, event_synchronize, event_elapsed,
    /*entropy=*/nullptr,
    group_id, group_create, group_destroy, group_abort, group_query, group_begin, group_end,
    group_all_reduce, group_broadcast, group_reduce, group_all_gather, group_reduce_scatter, group_send, group_receive, group_probe,
};

}  // namespace
}  // namespace reference

#define EXPORT extern "C" __attribute__((visibility("default")))
using namespace reference;

EXPORT const DipuRuntime* dipu_runtime(void) {
  return &kTable;
}
// The reference device's own knobs: its size, before first use, and its faults (see quirks.py).
EXPORT void dipu_reference_configure(int devices, uint64_t capacity) {
  g_count = std::min(devices, kMaxDevices);
  g_capacity = pages(capacity);
}
EXPORT void dipu_reference_delay(int device, void* handle, int64_t nanoseconds) {
  Stream& s = stream_of(device, handle);
  std::lock_guard<std::mutex> lock(s.mutex);
  s.ready_ns = std::max(s.ready_ns, now_ns()) + nanoseconds;
}
EXPORT void dipu_reference_late_copies(int on) {
  g_late = on != 0;
}
// What a kernel does that manages the chip's memory itself, and badly.
EXPORT int dipu_reference_allocate(int device, size_t bytes) {
  void* forgotten = nullptr;
  return memory_allocate(device, bytes, &forgotten);
}
EXPORT int dipu_reference_free_around(int device, void* address) {
  Chip& chip = g_chips[device];
  size_t offset = static_cast<size_t>(static_cast<char*>(address) - chip.device);
  {
    std::lock_guard<std::mutex> lock(chip.mutex);
    auto after = chip.live.upper_bound(offset);
    if (after == chip.live.begin()) return fail(DIPU_ERROR, "not inside an allocation");
    offset = std::prev(after)->first;
  }
  return memory_free(device, chip.device + offset);
}
EXPORT void* dipu_reference_host_address(int device, void* address) {
  return host_address(device, address);
}
