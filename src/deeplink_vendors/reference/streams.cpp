// SPDX-License-Identifier: Apache-2.0
// The streams of the reference chip: work is done at launch, and counts as complete when its completion
// clock is reached. Copies arrive late while that fault is on.
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "chip.h"

namespace reference {
namespace {

struct LateCopy {
  void* dst;
  std::vector<char> bytes;  // the bytes at launch
  std::atomic<bool> delivered{false};
  void deliver() {
    if (!delivered.exchange(true)) std::memcpy(dst, bytes.data(), bytes.size());
  }
};
using LateCopies = std::vector<std::shared_ptr<LateCopy>>;

struct Stream {
  std::mutex mutex;
  int64_t ready_ns = 0;  // time of completion of all launched work
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

struct Streams {
  std::mutex mutex;
  Stream first;  // the default stream
  std::vector<std::unique_ptr<Stream>> others;
};
Streams g_streams[kMaxDevices];

Stream& stream_of(int device, void* stream) {
  return stream != nullptr ? *static_cast<Stream*>(stream) : g_streams[device].first;
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

int memory_copy(const DipuCopy* c) {
  if (c->blocking != 0 && c->stream_device >= 0) stream_synchronize(c->stream_device, c->stream);
  void* dst = host_address(c->dst_device, c->dst);
  const void* src = host_address(c->src_device, c->src);
  // kernels after a copy to the device on its stream must read the copied bytes
  if (c->blocking == 0 && c->dst_device == DIPU_HOST && g_late.load(std::memory_order_relaxed)) {
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

int stream_create(int device, int, void** out) {
  Streams& streams = g_streams[device];
  std::lock_guard<std::mutex> lock(streams.mutex);
  streams.others.push_back(std::make_unique<Stream>());
  *out = streams.others.back().get();
  return DIPU_OK;
}
int stream_query(int device, void* handle) {
  Stream& s = stream_of(device, handle);
  std::lock_guard<std::mutex> lock(s.mutex);
  if (s.ready_ns > now_ns()) return DIPU_NOT_READY;
  deliver(s.late);  // the program has been notified of the completion
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
    std::lock_guard<std::mutex> lock(g_streams[device].mutex);
    for (auto& s : g_streams[device].others) all.push_back(s.get());
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

void delay(int device, void* handle, int64_t nanoseconds) {
  Stream& s = stream_of(device, handle);
  std::lock_guard<std::mutex> lock(s.mutex);
  s.ready_ns = std::max(s.ready_ns, now_ns()) + nanoseconds;
}
void set_late_copies(bool on) {
  g_late = on;
}

}  // namespace reference
