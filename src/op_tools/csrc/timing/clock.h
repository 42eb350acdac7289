// Moments in a device's work and the calls between them, without Python.
#pragma once
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <dlfcn.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <vector>

namespace op_tools {

inline int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// An event of the device, or nanoseconds of the host where the device is the CPU. Empty: nothing was done.
struct Mark {
  c10::Event* event = nullptr;
  int64_t time = 0;
};

// What CUDA's driver does with events, asked without the layers between: that costs half as much.
struct Driver {
  int (*record)(void* event, void* stream) = nullptr;
  int (*elapsed)(float* ms, void* start, void* end) = nullptr;

  static constexpr int kNotReady = 600;  // CUDA_ERROR_NOT_READY

  static Driver of(c10::Device device) {
    void* library = device.is_cuda() ? dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD) : nullptr;
    if (library == nullptr) return {};
    const Driver found{reinterpret_cast<int (*)(void*, void*)>(dlsym(library, "cuEventRecord")),
                       reinterpret_cast<int (*)(float*, void*, void*)>(dlsym(library, "cuEventElapsedTime"))};
    return found.record != nullptr && found.elapsed != nullptr ? found : Driver();
  }
};

// Marks in the current stream of one device; events are used again and again.
class Clock {
 public:
  using Events = std::vector<c10::Event*>;

  explicit Clock(c10::Device device) : device_(device), driver_(Driver::of(device)) {}

  Mark mark() {
    if (device_.is_cpu()) return {nullptr, now()};
    c10::Event* event = take();
    const c10::impl::VirtualGuardImpl guard(device_.type());
    const c10::Stream stream = guard.getStream(device_);
    // its first time is torch's, which makes it; the driver knows the default stream of the current device as null
    const bool known = driver_.record != nullptr && event->eventId() != nullptr && stream.id() == 0;
    if (!known || guard.getDevice() != device_ || driver_.record(event->eventId(), nullptr) != 0) event->record(stream);
    return {event, 0};
  }

  bool is_host() const { return device_.is_cpu(); }

  // Milliseconds; less than 0: the device is not there yet, and is not waited for.
  double between(const Mark& start, const Mark& end, bool wait) const {
    if (end.event == nullptr) return (end.time - start.time) / 1e6;
    float ms = 0;
    const int state = driver_.elapsed == nullptr ? -1 : driver_.elapsed(&ms, start.event->eventId(), end.event->eventId());
    if (state == 0) return ms;
    if (!wait && (state == Driver::kNotReady || !end.event->query())) return -1;
    end.event->synchronize();
    return start.event->elapsedTime(*end.event);
  }

  void free(const Mark& mark) {
    if (mark.event == nullptr) return;
    std::lock_guard lock(lock_);
    free_.push_back(mark.event);
  }

  void free(Events& events) {
    std::lock_guard lock(lock_);
    free_.insert(free_.end(), events.begin(), events.end());
    events.clear();
  }

  // Makes the device the one of this thread, which is no program's.
  void go_to() const {
    if (!device_.is_cpu()) c10::impl::VirtualGuardImpl(device_.type()).uncheckedSetDevice(device_);
  }

 private:
  c10::Event* take() {
    std::lock_guard lock(lock_);
    if (free_.empty()) {
      all_.push_back(std::make_unique<c10::Event>(device_.type(), c10::EventFlag::BACKEND_DEFAULT));
      return all_.back().get();
    }
    c10::Event* event = free_.back();
    free_.pop_back();
    return event;
  }

  c10::Device device_;
  Driver driver_;
  std::mutex lock_;
  std::vector<std::unique_ptr<c10::Event>> all_;
  Events free_;
};

// One call: its marks, and those of each stretch of its backward pass.
struct Row {
  struct Stretch {
    Mark start;
    bool begun = false;
    bool still = false;  // nothing is computed: no events
  };

  int64_t id = 0;
  int group = 0, result = 0, grads = 0;  // numbers of what is the same for many rows
  std::shared_ptr<Clock> clock;
  Mark start, end;
  c10::SmallVector<std::pair<Mark, Mark>, 2> spans;
  c10::SmallVector<Stretch, 2> stretches;
  std::atomic<int> waiting{0};  // stretches that have not ended
  std::atomic<int> hooks{0};    // that live: without them nothing comes any more
  std::mutex lock;
  bool closed = false;  // nobody is to be told any more
  bool still = false;   // a view: nothing is done on the device

  Mark mark() const { return still ? Mark() : clock->mark(); }

  // Idle: nothing was computed.
  void leave(Stretch& stretch, bool idle) {
    if (idle) clock->free(stretch.start), spans.emplace_back();
    else spans.emplace_back(stretch.start, clock->mark());
    stretch.begun = false;
    waiting--;
  }

  bool complete() const { return hooks <= 0 || waiting <= 0; }

  // As new, for another call.
  void clear() {
    spans.clear();
    stretches.clear();
    grads = 0, waiting = 0, closed = still = false;
  }
};

}  // namespace op_tools
