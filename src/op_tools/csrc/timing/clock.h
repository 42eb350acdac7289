/* SPDX-License-Identifier: Apache-2.0 */
// Moments in the work of one device.
#pragma once
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <vector>

namespace op_tools {

inline int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// An event of the device, or nanoseconds of the host where the device is the CPU. Empty: nothing
// was done.
struct Mark {
  c10::Event* event = nullptr;
  int64_t time = 0;
};

// cuEventRecord of the driver, which takes half the time of torch's way to it; null: not CUDA.
using RecordEvent = int (*)(void* event, void* stream);
inline RecordEvent driver_record(c10::Device device) {
  void* library = device.is_cuda() ? dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD) : nullptr;
  return library == nullptr ? nullptr
                            : reinterpret_cast<RecordEvent>(dlsym(library, "cuEventRecord"));
}

// Marks in the current stream of one device. Events are used again and again.
class Clock {
 public:
  explicit Clock(c10::Device device) : device_(device), record_(driver_record(device)) {}

  c10::Device device() const { return device_; }
  bool is_host() const { return device_.is_cpu(); }

  Mark mark() {
    if (is_host()) return {nullptr, now()};
    c10::Event* event = take();
    const c10::impl::VirtualGuardImpl guard(device_.type());
    const c10::Stream stream = guard.getStream(device_);
    // torch makes an event when it is first recorded; null is the default stream of the current
    // device
    const bool known = record_ != nullptr && event->eventId() != nullptr && stream.id() == 0;
    if (!known || guard.getDevice() != device_ || record_(event->eventId(), nullptr) != 0)
      event->record(stream);
    return {event, 0};
  }

  bool has_reached(const Mark& mark) const { return mark.event == nullptr || mark.event->query(); }

  // Milliseconds; waits for the device.
  double between(const Mark& start, const Mark& end) const {
    if (end.event == nullptr) return static_cast<double>(end.time - start.time) / 1e6;
    end.event->synchronize();
    return start.event->elapsedTime(*end.event);
  }

  void free(Mark& mark) {
    if (mark.event == nullptr) return;
    std::lock_guard hold(lock_);
    free_.push_back(std::exchange(mark.event, nullptr));
  }

 private:
  c10::Event* take() {
    std::lock_guard hold(lock_);
    if (free_.empty()) {
      all_.push_back(std::make_unique<c10::Event>(device_.type(), c10::EventFlag::BACKEND_DEFAULT));
      return all_.back().get();
    }
    c10::Event* event = free_.back();
    free_.pop_back();
    return event;
  }

  const c10::Device device_;
  const RecordEvent record_;
  std::mutex lock_;
  std::vector<std::unique_ptr<c10::Event>> all_;
  std::vector<c10::Event*> free_;
};

}  // namespace op_tools
