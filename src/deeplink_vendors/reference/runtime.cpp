// SPDX-License-Identifier: Apache-2.0
// The reference chip: host memory at addresses that the host must not access (memory.cpp), streams
// whose work is done at launch (streams.cpp), graphs of host calls (graphs.cpp), a communicator
// (group.cpp), and here their table.
// It uses dipu_runtime.h alone and is meant to be read as its documentation.
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "chip.h"

namespace reference {

int g_count = 0;
size_t g_capacity = 0;

namespace {

thread_local std::string tls_error;

const char* last_error() {
  return tls_error.c_str();
}

int device_count(int* count) {
  *count = g_count;
  return DIPU_OK;
}
int device_info(int, DipuDeviceInfo* info) {
  snprintf(info->name, sizeof info->name, "DIPU reference device (CPU)");
  info->total_memory = g_capacity;
  info->major = 8;  // programs written for CUDA check for 8 before they use bfloat16
  info->minor = 0;
  info->multiprocessors = static_cast<int32_t>(sysconf(_SC_NPROCESSORS_ONLN));
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
    capture_begin, capture_host, capture_end, graph_replay, graph_destroy,
};

}  // namespace

int fail(int code, std::string text) {
  tls_error = std::move(text);
  return code;
}

}  // namespace reference

#define EXPORT extern "C" __attribute__((visibility("default")))
using namespace reference;

EXPORT const DipuRuntime* dipu_runtime(void) {
  return &kTable;
}
// Functions of the reference device alone: its size, before first use, and its faults (see quirks.py).
EXPORT void dipu_reference_configure(int devices, uint64_t capacity) {
  g_count = std::min(devices, kMaxDevices);
  g_capacity = pages(capacity);
}
EXPORT void dipu_reference_delay(int device, void* stream, int64_t nanoseconds) {
  delay(device, stream, nanoseconds);
}
EXPORT void dipu_reference_late_copies(int on) {
  set_late_copies(on != 0);
}
// The actions of a kernel that manages the chip's memory itself, incorrectly.
EXPORT int dipu_reference_allocate(int device, size_t bytes) {
  void* forgotten = nullptr;
  return memory_allocate(device, bytes, &forgotten);
}
EXPORT int dipu_reference_free_around(int device, void* address) {
  return free_around(device, address);
}
EXPORT void* dipu_reference_host_address(int device, void* address) {
  return host_address(device, address);
}
