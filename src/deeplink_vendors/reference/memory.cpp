// SPDX-License-Identifier: Apache-2.0
// The memory of the reference chip: per device one range of addresses without access (for the program)
// and one with access (for kernels); host address = device address + constant.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>

#include "chip.h"

namespace reference {
namespace {

struct Chip {
  std::mutex mutex;
  char *device = nullptr, *host = nullptr;
  int fd = -1;
  size_t used = 0;
  std::map<size_t, size_t> holes;                  // offset -> bytes, free
  std::map<size_t, std::pair<size_t, bool>> live;  // offset -> (bytes, imported)
};
Chip g_chips[kMaxDevices];

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
  sigaction(SIGSEGV, &g_previous_segv, nullptr);  // a previous handler (faulthandler, for example) runs next
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
  if (imported) {  // map the chip's own pages again
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
  if (inside != 0) {  // freed by the returned address
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

int free_around(int device, void* address) {
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

}  // namespace reference
