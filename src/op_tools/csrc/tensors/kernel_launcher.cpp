// SPDX-License-Identifier: Apache-2.0
#include "kernel_launcher.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

namespace op_tools {
namespace {

constexpr int64_t kChunk = 1 << 14;  // rows: 1 MiB

std::pair<int, int> key_of(c10::Device device) {
  return {static_cast<int>(device.type()), device.index()};
}

// Operators below autograd, without the modes and observers of the program.
struct Unobserved {
  const at::AutoDispatchBelowADInplaceOrView below;
  const c10::impl::ExcludeDispatchKeyGuard modes{
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot})};
  const at::DisableRecordFunctionGuard unrecorded;
};

}  // namespace

const KernelLauncher::Kernel& KernelLauncher::of(c10::Device device) {
  const auto key = key_of(device);
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

Launched KernelLauncher::launch(const c10::Stream& stream, int64_t rows, GivenTensors& given,
                                at::Tensor table) {
  const Kernel& by = of(stream.device());
  int state = 0;
  if (by.capturing(nullptr, &state) != 0 || state != 0) return {};  // a graph is being captured
  std::lock_guard hold(lock_);  // a chunk is not copied between its use and the launch
  const auto& chunk = chunk_for(stream, rows);
  Launched made{chunk, chunk->rows, std::move(table)};
  void* results = chunk->device.data_ptr<int64_t>() + kFields * made.first;
  void* from = made.table.defined() ? made.table.data_ptr() : nullptr;
  void* arguments[] = {&from, &results, &given};
  if (by.launch(by.kernel, static_cast<unsigned>(rows), 1, 1, by.threads, 1, 1, 0, nullptr,
                arguments, nullptr) != 0)
    return {};
  chunk->rows += rows;
  return made;
}

// The open chunk of a stream, with room for so many rows.
std::shared_ptr<ResultChunk>& KernelLauncher::chunk_for(const c10::Stream& stream, int64_t rows) {
  auto& open = open_[key_of(stream.device())];
  if (open != nullptr && open->rows + rows <= open->device.size(0) / kFields) return open;
  if (open != nullptr) copy(*open);
  const Unobserved unobserved;
  const int64_t size = kFields * std::max(kChunk, rows);
  open = std::make_shared<ResultChunk>();
  open->stream = stream;
  open->device = at::empty({size}, at::TensorOptions().dtype(at::kLong).device(stream.device()));
  return open;
}

void KernelLauncher::copy(ResultChunk& chunk) {
  const Unobserved unobserved;
  const c10::DeviceGuard on(chunk.stream->device());
  const c10::impl::VirtualGuardImpl guard(chunk.stream->device_type());
  const c10::Stream before = guard.exchangeStream(*chunk.stream);
  const at::Tensor used = chunk.device.narrow(0, 0, kFields * chunk.rows);
  chunk.host = at::empty(used.sizes(), at::TensorOptions().dtype(at::kLong).pinned_memory(true));
  chunk.host.copy_(used, /*non_blocking=*/true);
  chunk.copied.emplace(chunk.stream->device_type(), c10::EventFlag::BACKEND_DEFAULT);
  chunk.copied->record(*chunk.stream);
  guard.exchangeStream(before);
}

void KernelLauncher::flush() {
  std::lock_guard hold(lock_);
  for (auto& [key, chunk] : open_) {
    if (chunk == nullptr || chunk->rows == 0) continue;
    copy(*chunk);
    chunk = nullptr;
  }
}

bool KernelLauncher::is_done(const Launched& of) {
  std::lock_guard hold(lock_);
  return of.chunk->copied && of.chunk->copied->query();
}

void KernelLauncher::wait(const Launched& of) {
  if (!is_done(of)) flush();
  of.chunk->copied->synchronize();
}

}  // namespace op_tools
