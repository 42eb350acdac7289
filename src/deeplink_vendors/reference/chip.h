/* SPDX-License-Identifier: Apache-2.0 */
// Interfaces between the parts of the reference chip: memory.cpp, streams.cpp, graphs.cpp,
// group.cpp (its communicator), and runtime.cpp, which builds the table.
#pragma once

#include <dipu_runtime.h>

#include <string>

namespace reference {

constexpr int kMaxDevices = 16;
constexpr size_t kPage = 4096;
constexpr size_t pages(size_t bytes) {  // rounded up to whole pages
  return (bytes + kPage - 1) / kPage * kPage;
}

extern int g_count;  // number of devices; set, with their capacity, before any other call
extern size_t g_capacity;

int fail(int code, std::string text);  // stores the text for `last_error`, and returns the code

int memory_allocate(int device, size_t bytes, void** out);
int memory_free(int device, void* address);
int memory_info(int device, size_t* free_bytes, size_t* total);
int memory_window(int device, DipuWindow* window);
int memory_export(int device, void* address, int* fd, uint64_t* offset);
int memory_import(int device, int fd, uint64_t offset, size_t bytes, void** out);
int host_allocate(size_t bytes, void** out);
int host_free(void* address);
void* host_address(int device, const void* address);
int free_around(int device, void* address);  // frees the allocation that contains an address

int memory_copy(const DipuCopy* copy);
int device_synchronize(int device);
int stream_create(int device, int priority, void** out);
int stream_synchronize(int device, void* stream);
int stream_query(int device, void* stream);
int stream_wait_event(int device, void* stream, void* event);
int event_create(int device, int timing, void** out);
int event_destroy(int device, void* event);
int event_record(int device, void* event, void* stream);
int event_query(void* event);
int event_synchronize(void* event);
int event_elapsed(void* start, void* end, double* milliseconds);
void delay(int device, void* stream, int64_t nanoseconds);  // delays the completion of the next launch
void set_late_copies(bool on);  // asynchronous copies arrive at the next synchronization

int capture_begin(int device, void* stream);
int capture_host(int device, void* stream, const DipuHostCall* call);
int capture_end(int device, void* stream, void** graph);
int graph_replay(int device, void* graph, void* stream);
int graph_destroy(int device, void* graph);

int group_id(DipuGroupId* id);
int group_create(int device, int rank, int size, const DipuGroupId* id, void** out);
int group_destroy(void* communicator);
int group_abort(void* communicator);
int group_query(void* communicator);
int group_begin(void* communicator);
int group_end(void* communicator);
int group_all_reduce(const DipuCollective* call);
int group_broadcast(const DipuCollective* call);
int group_reduce(const DipuCollective* call);
int group_all_gather(const DipuCollective* call);
int group_reduce_scatter(const DipuCollective* call);
int group_send(const DipuCollective* call);
int group_receive(const DipuCollective* call);
int group_probe(void* communicator, int* source);

}  // namespace reference
