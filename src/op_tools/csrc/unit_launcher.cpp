// A vendor's kernel, started without Python.
#include "launcher.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace op_tools {
namespace {

constexpr int64_t kNotYet = INT64_MIN;  // in the last field of a row, which the kernel writes last
constexpr int64_t kFew = 64, kMany = 4096;  // rows
constexpr int64_t kRow = kGiven + kFields;  // numbers
static_assert(kGapsWords % kGiven == 0);
constexpr int kLooks = 400;                 // before the device is waited for

bool is_there(const int64_t* row) { return std::atomic_ref<int64_t>(const_cast<int64_t&>(row[kFields - 1])).load(std::memory_order_acquire) != kNotYet; }

}  // namespace

void Launched::empty(int64_t count) const {
  int64_t* last = results() + kFields - 1;
  for (int64_t row = 0; row < count; row++) last[kFields * row] = kNotYet;
}

bool Launched::done() const {
  for (int64_t row = rows - 1; row >= 0; row--)
    if (!is_there(results() + kFields * row)) return false;
  return true;
}

void Launched::wait() const {
  for (int look = 0; look < kLooks; look++) {
    if (done()) return;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  const c10::impl::VirtualGuardImpl device(stream->device_type());
  device.synchronizeStream(*stream);
  TORCH_CHECK(done(), "the kernel for statistics has not run");
}

const Launchers::Launcher& Launchers::found(c10::Device device) {
  {
    std::lock_guard hold(lock_);
    const auto found = known_.find(device);
    if (found != known_.end()) {
      last_.store(&*found, std::memory_order_release);
      return found->second;
    }
  }
  Launcher made;
  {
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
  return known_.try_emplace(device, made).first->second;
}

// The driver knows the default stream of the current device as null; others are left to Python.
bool Launchers::has(const c10::Stream& stream) { return stream.id() == 0 && of(stream.device()).launch != nullptr; }

Launched Launchers::prepared(const c10::Stream& stream, int64_t rows, int64_t gaps) {
  Launched made;
  made.rows = rows;
  made.stream = stream;
  const int64_t need = rows + gaps * kGapsWords / kGiven;  // as if they were rows of the table
  {
    std::lock_guard hold(lock_);
    auto& free = need <= kFew ? few_ : many_;
    if (need <= kMany && !free.empty()) {
      made.memory = std::move(free.back());
      free.pop_back();
    }
  }
  made.room = need <= kFew ? kFew : std::max(need, kMany);
  const bool is_new = !made.memory.defined();
  if (is_new) made.memory = at::empty({made.room * kRow}, at::TensorOptions().dtype(at::kLong).pinned_memory(true));
  made.start = made.memory.data_ptr<int64_t>();
  if (is_new) made.empty(made.room);
  return made;
}

bool Launchers::launch(const Launched& made) {
  void *table = made.table(), *results = made.results();
  void* arguments[] = {&table, &results};
  return start(*made.stream, static_cast<unsigned>(made.rows), 1, arguments);
}

bool Launchers::start(const c10::Stream& stream, unsigned columns, unsigned rows, void** arguments) {
  const Launcher& by = of(stream.device());
  int state = 0;
  if (by.capturing(nullptr, &state) != 0 || state != 0) return false;  // a graph is being captured
  return by.launch(by.kernel, columns, rows, 1, by.threads, 1, 1, 0, nullptr, arguments, nullptr) == 0;
}

void Launchers::free(Launched& done) {
  if (!done.memory.defined()) return;
  if (done.room <= kMany) {
    done.empty(done.rows);  // by the one who has just read them, as a rule
    std::lock_guard hold(lock_);
    (done.room <= kFew ? few_ : many_).push_back(std::move(done.memory));
  }
  done.memory = at::Tensor();
}

}  // namespace op_tools
