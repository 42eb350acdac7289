/* SPDX-License-Identifier: Apache-2.0 */
// Interfaces between the parts of the core. Order of the parts: runtime (the chip's table, devices,
// streams, events), memory (caching allocator, pinned, redirect), generator, alias (device tensor
// <-> host tensor on the same bytes), engine (one boxed kernel for all operators), kernels (the
// device's own operators: allocation, views, copies), span (around each kernel: profiler,
// memcheck), autocast, sparse, flight (the last collectives), dicl, chip_queue and communicator
// (the process group), bind. graphs: captures, of all of these.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "include/dipu_runtime.h"

namespace at {
struct HostAllocator;
}

namespace dipu {

constexpr c10::DeviceType kDipu = c10::DeviceType::PrivateUse1;
constexpr int kMaxDevices = 16;

// ---- runtime.cpp
void bind_runtime(const DipuRuntime* table, bool calls_python);
bool calls_python();  // the table's functions are Python's: they need the GIL
const DipuRuntime& runtime();
void check(int code, const char* what);  // throws with the vendor's error text
void warn_if_failed(int code, const char* what);  // where no exception can be caught: warns once
int device_count();
int current_device();
int exchange_device(int device);  // checked; returns the previous one
int resolve_device(int device);   // -1 -> current
void* current_stream(int device);
void synchronize_device(int device);
bool in_bad_fork();
bool is_initialized();
bool is_open(int device);  // the device has been used
inline c10::Device dipu_device(int index) {
  return c10::Device(kDipu, static_cast<c10::DeviceIndex>(index));
}

// ---- memory.cpp
struct Block;
c10::DeviceAllocator* device_allocator();
at::HostAllocator* pinned_allocator();
bool is_pinned(const void* address);
int device_of(const void* address);  // -1: not device memory
bool host_reachable(int device);     // the chip's memory has a host window
// device address, host address, bytes; zeros: none
std::tuple<uintptr_t, uintptr_t, size_t> host_window(int device);
void* to_host(const void* address);  // device address -> host address of the same byte
void register_window(int device, const DipuWindow& window);
c10::DataPtr allocate(size_t bytes, int device);
void resize_storage(c10::StorageImpl* storage, size_t bytes);
c10::DataPtr import_memory(int device, int fd, uint64_t offset, size_t bytes, int token_fd);
std::pair<size_t, size_t> memory_info(int device);
void set_memory_limit(int device, size_t bytes);

// The host StorageImpl on the same bytes as a device storage; cached with the allocation.
c10::intrusive_ptr<c10::StorageImpl> host_storage(c10::StorageImpl* device_storage);
// Returns the device DataPtr of memory that a host kernel allocated while redirected; else empty.
c10::DataPtr adopt_redirected(c10::StorageImpl* host_storage);

// While alive, host allocations of this thread come from the device's memory, so that the results
// of a host kernel are in device memory already.
class RedirectGuard {
 public:
  explicit RedirectGuard(int device);
  ~RedirectGuard();
  RedirectGuard(const RedirectGuard&) = delete;

 private:
  int previous_;
};
void install_redirect();

// ---- generator.cpp
const at::Generator& default_generator(int device);
at::Generator make_generator(int device);
// Returns the generator, or the default one of `device` when none is given; error for a host generator.
at::Generator device_generator(const std::optional<at::Generator>& generator, int device);
// The state of a host generator that produces the numbers of the next call on the device.
at::Tensor host_state(int device);
// Seed and offset.
std::pair<uint64_t, uint64_t> generator_state(const at::Generator& generator);
void set_generator_state(const at::Generator& generator, std::pair<uint64_t, uint64_t> state);
// The random numbers of one call: a host engine created from the seed and the offset of a device
// generator, which advances to the next offset. A call that draws no number leaves the offset unchanged.
class HostEngine {
 public:
  HostEngine(const std::optional<at::Generator>& generator, int device);
  ~HostEngine();
  HostEngine(const HostEngine&) = delete;
  const at::Generator& engine() const {
    return engine_;
  }

 private:
  at::Generator owner_, engine_;
  uint64_t seed_ = 0, offset_ = 0;
};
// Replaces the host's default engine by such an engine, for operators without a generator argument.
class BorrowEngine {
 public:
  explicit BorrowEngine(int device);
  ~BorrowEngine();
  BorrowEngine(const BorrowEngine&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// ---- alias.cpp
at::Tensor alias_host(const at::Tensor& device_tensor);  // for any use
at::Tensor alias_for_kernel(const at::Tensor& device_tensor);  // for the arguments of a host kernel
at::Tensor adopt_host(const at::Tensor& host_result, int device);
at::Tensor device_view(c10::Storage device_storage, const at::Tensor& like);
at::Tensor host_view(c10::Storage host_storage, const at::Tensor& like);
void copy_geometry(const at::Tensor& from, c10::TensorImpl* to);
// The storage half of write_back: `to` gets the memory that a kernel allocated for `from`.
void write_back_storage(c10::StorageImpl* from, c10::StorageImpl* to);
// A host kernel may have resized, re-strided or flipped the lazy bits of its outputs.
void write_back(const at::Tensor& host, const at::Tensor& device);
void write_back_geometry(const at::Tensor& host, const at::Tensor& device);
inline bool on_device(const at::Tensor& t) {
  return t.defined() && t.device().type() == kDipu;
}

// ---- engine.cpp
struct Operator;
void register_engine();
struct Route;
struct OperatorRecord {
  std::string name;
  uint8_t special;
  std::vector<Route*> routes;
  uint64_t forced_calls, host_calls;
  bool has_host_kernel;
};
void set_hook(const std::vector<std::string>& names, void* callable);  // nullptr: remove
void set_watcher(const std::vector<std::string>& names, void* callable);  // nullptr: remove
void set_forced(const std::vector<std::string>& names, int forced);  // values of Forced
// empty: the host, whose calls are counted
void set_routes(const std::string& name, std::vector<Route*> routes);
void clear_routes(const std::vector<std::string>& names);
// torch's own composite (x + y by add.out); nullptr if there is none
Route* composite_route(const std::string& name);
std::vector<OperatorRecord> operator_records();  // operator.cpp, as the next
std::vector<std::string> known_operators();

// ---- device_ops.cpp
void refuse_dtype(std::optional<at::ScalarType> dtype);  // nullopt: everything is supported
bool is_refused(at::ScalarType dtype);
void copy_tensor(const at::Tensor& src, const at::Tensor& dst, bool non_blocking);

// ---- graphs/graph.cpp
void register_graphs();

}  // namespace dipu
