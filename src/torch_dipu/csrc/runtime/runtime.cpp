// SPDX-License-Identifier: Apache-2.0
// The binding of the chip's table to torch: devices, streams, events, the guard and the hooks.
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <pthread.h>

#include <array>
#include <mutex>

#include "graphs/capture.h"

namespace dipu {
namespace {

const DipuRuntime* g_table = nullptr;
bool g_calls_python = false;
int g_device_count = 0;
std::array<std::atomic<bool>, kMaxDevices> g_opened{};
std::atomic<bool> g_used{false};
bool g_bad_fork = false;
thread_local int tls_device = 0;
thread_local std::array<void*, kMaxDevices> tls_stream{};

constexpr int kPoolSize = 32;  // streams per device and priority, used in rotation as on CUDA
struct StreamPool {
  std::mutex mutex;
  std::array<void*, kPoolSize> streams{};
  unsigned next = 0;
};
StreamPool& stream_pool(int device, int priority) {
  static auto* pools = new std::array<StreamPool, kMaxDevices * 2>();
  return (*pools)[device * 2 + (priority < 0 ? 1 : 0)];
}

c10::Stream make_stream(int device, void* handle) {
  return c10::Stream(c10::Stream::UNSAFE, dipu_device(device), reinterpret_cast<c10::StreamId>(handle));
}
void* handle_of(const c10::Stream& stream) {
  return reinterpret_cast<void*>(stream.id());
}

// Opens a device at its first use: the window is requested here, never on import.
void open_device(int device) {
  if (C10_LIKELY(g_opened[device].load(std::memory_order_acquire))) return;
  TORCH_CHECK(
      !g_bad_fork,
      "Cannot re-initialize DIPU in forked subprocess. To use DIPU with multiprocessing, you must use "
      "the 'spawn' start method");
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  if (g_opened[device].load()) return;
  g_used = true;
  if (g_table->memory_window != nullptr) {
    DipuWindow window{};
    check(g_table->memory_window(device, &window), "memory_window");
    register_window(device, window);
  }
  g_opened[device].store(true, std::memory_order_release);
}

}  // namespace

bool calls_python() {
  return g_calls_python;
}

void warn_if_failed(int code, const char* what) {
  if (C10_LIKELY(code == DIPU_OK)) return;
  const char* text = g_table->last_error ? g_table->last_error() : nullptr;
  TORCH_WARN_ONCE("DIPU: ", what, " failed with code ", code, text && *text ? ": " : "", text ? text : "");
}

void check(int code, const char* what) {
  if (C10_LIKELY(code == DIPU_OK)) return;
  const char* text = g_table->last_error ? g_table->last_error() : nullptr;
  TORCH_CHECK(false, "DIPU error: ", what, " failed with code ", code, text && *text ? ": " : "", text ? text : "");
}

void bind_runtime(const DipuRuntime* table, bool calls_python) {
  TORCH_CHECK(table != nullptr, "the vendor's library returned no runtime table");
  TORCH_CHECK(
      table->abi == DIPU_RUNTIME_ABI && table->size == sizeof(DipuRuntime),
      "the vendor's runtime speaks ABI ", table->abi, " (", table->size, " bytes); this torch_dipu speaks ABI ",
      DIPU_RUNTIME_ABI, " (", sizeof(DipuRuntime), " bytes). Rebuild the vendor's library against dipu_runtime.h");
  TORCH_CHECK(g_table == nullptr, "a DIPU runtime is bound already; a process has one");
  g_table = table;
  g_calls_python = calls_python;
  int count = 0;
  check(table->device_count(&count), "device_count");
  g_device_count = std::min(count, kMaxDevices);
  pthread_atfork(nullptr, nullptr, [] {
    g_bad_fork = g_used.load();
    for (auto& opened : g_opened) opened = false;  // so that the child's first use raises an error
  });
}

const DipuRuntime& runtime() {
  return *g_table;
}
int device_count() {
  return g_device_count;
}
bool in_bad_fork() {
  return g_bad_fork;
}
bool is_initialized() {
  return g_used.load() && !g_bad_fork;
}
bool is_open(int device) {
  return g_opened[device].load();
}
int current_device() {
  return tls_device;
}
int resolve_device(int device) {
  const int index = device < 0 ? tls_device : device;
  TORCH_CHECK(
      index < g_device_count, "DIPU error: invalid device ordinal ", index, ": the device count is ", g_device_count);
  open_device(index);
  return index;
}
int exchange_device(int device) {
  const int previous = tls_device;
  if (device >= 0 && device != previous) tls_device = resolve_device(device);
  return previous;
}
void* current_stream(int device) {
  return tls_stream[device];
}
void synchronize_device(int device) {
  const int index = resolve_device(device);
  refuse_device_wide_in_capture(index, "synchronize()");
  check(g_table->device_synchronize(index), "device_synchronize");
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return kDipu;
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    return dipu_device(exchange_device(device.index()));
  }
  c10::Device getDevice() const override {
    return dipu_device(tls_device);
  }
  void setDevice(c10::Device device) const override {
    exchange_device(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0) tls_device = device.index();
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(g_device_count);
  }

  // The chip holds every type that the host computes with, unless a fault takes one away.
  c10::DeviceCapability getDeviceCapability(c10::Device) const override {
    c10::DeviceCapability found;
    auto& types = found.capability_data.supported_scalar_types;
#define DIPU_TAKE_AWAY(_, name) \
  if (is_refused(at::ScalarType::name)) types.has_##name = 0;
    AT_FORALL_SCALAR_TYPES_WITH_COMPLEX_AND_QINTS(DIPU_TAKE_AWAY)
#undef DIPU_TAKE_AWAY
    return found;
  }

  c10::Stream getStream(c10::Device device) const override {
    const int index = device.index() < 0 ? tls_device : device.index();
    return make_stream(index, tls_stream[index]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return make_stream(resolve_device(device.index()), nullptr);
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    const int index = resolve_device(device.index());
    auto& pool = stream_pool(index, priority);
    std::lock_guard<std::mutex> lock(pool.mutex);
    void*& slot = pool.streams[pool.next++ % kPoolSize];
    if (slot == nullptr) check(g_table->stream_create(index, priority, &slot), "stream_create");
    return make_stream(index, slot);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
    return getNewStream(device, high_priority ? -1 : 0);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    void*& slot = tls_stream[stream.device_index()];
    auto previous = make_stream(stream.device_index(), slot);
    slot = handle_of(stream);
    return previous;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return handle_of(stream);
  }
  bool queryStream(const c10::Stream& stream) const override {
    refuse_in_capture(stream.device_index(), handle_of(stream), "stream.query()");
    const int code = g_table->stream_query(stream.device_index(), handle_of(stream));
    if (code == DIPU_NOT_READY) return false;
    check(code, "stream_query");
    return true;
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    refuse_in_capture(stream.device_index(), handle_of(stream), "stream.synchronize()");
    check(g_table->stream_synchronize(stream.device_index(), handle_of(stream)), "stream_synchronize");
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    synchronize_device(device);
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    device_allocator()->recordStream(data, stream);
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex device, const c10::EventFlag flag)
      const override {
    TORCH_CHECK(
        device < 0 || device == stream.device_index(), "Event device ", static_cast<int>(device),
        " does not match recording stream's device ", static_cast<int>(stream.device_index()));
    if (*event == nullptr) {
      const int timing = flag == c10::EventFlag::BACKEND_DEFAULT ? 1 : 0;
      check(g_table->event_create(stream.device_index(), timing, event), "event_create");
    }
    const int index = stream.device_index();
    note_captured_event(index, handle_of(stream), *event);
    if (C10_UNLIKELY(records_host_calls() && capture_of(index, handle_of(stream)) != nullptr)) return;  // calls keep their order
    check(g_table->event_record(index, *event, handle_of(stream)), "event_record");
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    if (C10_UNLIKELY(join_by_event(stream.device_index(), handle_of(stream), event)) && records_host_calls()) return;
    check(g_table->stream_wait_event(stream.device_index(), handle_of(stream), event), "stream_wait_event");
  }
  bool queryEvent(void* event) const override {
    if (event == nullptr) return true;
    refuse_captured_event(event, "event.query()");
    const int code = g_table->event_query(event);
    if (code == DIPU_NOT_READY) return false;
    check(code, "event_query");
    return true;
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    refuse_captured_event(event, "event.synchronize()");
    check(g_table->event_synchronize(event), "event_synchronize");
  }
  void destroyEvent(void* event, const c10::DeviceIndex device) const noexcept override {
    if (event != nullptr && !g_bad_fork) g_table->event_destroy(device, event);
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    TORCH_CHECK(start != nullptr && end != nullptr, "Both events must be recorded before calculating elapsed time.");
    double milliseconds = 0;
    check(g_table->event_elapsed(start, end, &milliseconds), "event_elapsed");
    return milliseconds;
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return g_device_count > 0;
  }
  bool hasPrimaryContext(c10::DeviceIndex device) const override {
    return device >= 0 && device < g_device_count && g_opened[device].load() && !g_bad_fork;
  }
  void init() const override {}
  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(g_device_count);
  }
  void setCurrentDevice(c10::DeviceIndex device) const override {
    exchange_device(device);
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(tls_device);
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return static_cast<c10::DeviceIndex>(exchange_device(device));
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchangeDevice(device);
  }
  bool isPinnedPtr(const void* address) const override {
    return is_pinned(address);
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return pinned_allocator();
  }
  c10::Device getDeviceFromPtr(void* address) const override {
    const int device = device_of(address);
    TORCH_CHECK(device >= 0, "The pointer ", address, " is not on a DIPU device");
    return dipu_device(device);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return make_generator(device);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(storage.unsafeGetStorageImpl(), bytes);
  }
};

void register_hooks() {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  c10::SetAllocator(kDipu, device_allocator());
  at::setHostAllocator(kDipu, pinned_allocator());
}

}  // namespace dipu
