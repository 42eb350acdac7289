// SPDX-License-Identifier: Apache-2.0
#include "kernel_launcher.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace op_tools {
namespace {

constexpr int64_t kMissing = INT64_MIN;  // in the last field of a row, which the kernel writes last
constexpr int64_t kSmall = 64, kLarge = 4096;  // rows of the memory that is kept
constexpr int64_t kRow = kGiven + kFields;
static_assert(kGapsWords % kGiven == 0);
constexpr int kPolls = 400;  // before the stream is synchronized

bool is_there(const int64_t* row) {
  return std::atomic_ref<int64_t>(const_cast<int64_t&>(row[kFields - 1]))
             .load(std::memory_order_acquire) != kMissing;
}

}  // namespace

void Launched::clear(int64_t count) const {
  int64_t* last = results() + kFields - 1;
  for (int64_t row = 0; row < count; row++) last[kFields * row] = kMissing;
}

bool Launched::done() const {
  for (int64_t row = rows - 1; row >= 0; row--)
    if (!is_there(results() + kFields * row)) return false;
  return true;
}

void Launched::wait() const {
  for (int poll = 0; poll < kPolls; poll++) {
    if (done()) return;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  c10::impl::VirtualGuardImpl(stream->device_type()).synchronizeStream(*stream);
  TORCH_CHECK(done(), "the kernel for statistics has not run");
}

const KernelLauncher::Kernel& KernelLauncher::of(c10::Device device) {
  const std::pair<int, int> key(static_cast<int>(device.type()), device.index());
  {
    std::lock_guard hold(lock_);
    const auto found = kernels_.find(key);
    if (found != kernels_.end()) return found->second;
  }
  Kernel made;
  {  // without the lock: Python may wait for this thread
    py::gil_scoped_acquire gil;
    const py::object found = launcher_(c10::DeviceTypeName(device.type(), true), device.index());
    if (!found.is_none()) {
      const auto parts = found.cast<py::tuple>();
      made.launch = reinterpret_cast<decltype(made.launch)>(parts[0].cast<uintptr_t>());
      made.kernel = reinterpret_cast<void*>(parts[1].cast<uintptr_t>());
      made.threads = parts[2].cast<unsigned>();
      made.capturing = reinterpret_cast<decltype(made.capturing)>(parts[3].cast<uintptr_t>());
      made.gaps = parts.size() > 4 && parts[4].cast<bool>();
    }
  }
  std::lock_guard hold(lock_);
  return kernels_.try_emplace(key, made).first->second;
}

// The driver's null stream is the default stream of the current device; other streams are left to
// Python.
bool KernelLauncher::has(const c10::Stream& stream) {
  return stream.id() == 0 && of(stream.device()).launch != nullptr;
}

Launched KernelLauncher::prepare(const c10::Stream& stream, int64_t rows, int64_t gaps) {
  Launched made;
  made.rows = rows;
  made.stream = stream;
  const int64_t need = rows + gaps * kGapsWords / kGiven;  // as rows of the table
  {
    std::lock_guard hold(lock_);
    auto& free = need <= kSmall ? small_ : large_;
    if (need <= kLarge && !free.empty()) {
      made.memory = std::move(free.back());
      free.pop_back();
    }
  }
  made.room = need <= kSmall ? kSmall : std::max(need, kLarge);
  const bool is_new = !made.memory.defined();
  if (is_new)
    made.memory =
        at::empty({made.room * kRow}, at::TensorOptions().dtype(at::kLong).pinned_memory(true));
  made.start = made.memory.data_ptr<int64_t>();
  if (is_new) made.clear(made.room);
  return made;
}

bool KernelLauncher::launch(const Launched& prepared) {
  const Kernel& by = of(prepared.stream->device());
  int state = 0;
  if (by.capturing(nullptr, &state) != 0 || state != 0) return false;  // a graph is being captured
  void *table = prepared.table(), *results = prepared.results();
  void* arguments[] = {&table, &results};
  return by.launch(by.kernel, static_cast<unsigned>(prepared.rows), 1, 1, by.threads, 1, 1, 0,
                   nullptr, arguments, nullptr) == 0;
}

void KernelLauncher::free(Launched& done) {
  if (!done.memory.defined()) return;
  if (done.room <= kLarge) {
    done.clear(done.rows);
    std::lock_guard hold(lock_);
    (done.room <= kSmall ? small_ : large_).push_back(std::move(done.memory));
  }
  done.memory = at::Tensor();
}

}  // namespace op_tools
