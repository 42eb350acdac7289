// Copies in the current stream of a device, many in one launch.
#include "copies.h"

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

namespace op_tools {

constexpr uint64_t kEach = 1 << 14, kColumns = 64;  // bytes for a block of threads, and blocks for a row
constexpr int64_t kFound = 1 << 18;                 // bytes that are read at once, mostly

Copies::~Copies() {
  const py::gil_scoped_acquire gil;  // it may be a call in another thread that held it last
  launchers_.close();
}

void Copies::add(const at::Tensor& tensor, char* to, const c10::Stream& stream) {
  stream_ = stream;
  rows_[count_++] = {reinterpret_cast<uint64_t>(tensor.const_data_ptr()), reinterpret_cast<uint64_t>(to), tensor.nbytes()};
  held_.push_back(tensor);
}

void Copies::give() {
  const size_t count = count_;
  if (count == 0) return;
  drop();  // they are held by whoever gave them
  launch(*stream_, rows_, count);
}

void Copies::launch(const c10::Stream& stream, std::array<Row, kRows>& rows, size_t count) {
  uint64_t most = 0;
  for (size_t row = 0; row < count; row++) most = std::max(most, rows[row].bytes);
  const auto columns = static_cast<unsigned>(std::clamp<uint64_t>((most + kEach - 1) / kEach, 1, kColumns));
  void* arguments[] = {rows.data()};
  const c10::DeviceGuard on(stream.device());
  const bool started = launchers_.start(stream, columns, static_cast<unsigned>(count), arguments);
  TORCH_CHECK(started, "the kernel for copies was not started");
}

const char* Copies::read(const std::vector<Part>& parts, const c10::Stream& stream) try {
  if (!takes(stream)) return nullptr;
  int64_t size = 0;
  for (const Part& part : parts) size += part.bytes;
  if (!found_.defined() || found_.numel() < size)
    found_ = at::empty({std::max(size, kFound)}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
  auto to = reinterpret_cast<uint64_t>(found_.data_ptr());
  std::array<Row, kRows> rows;
  size_t count = 0;
  for (const Part& part : parts) {
    rows[count++] = {reinterpret_cast<uint64_t>(part.storage.data()) + static_cast<uint64_t>(part.start), to, static_cast<uint64_t>(part.bytes)};
    to += static_cast<uint64_t>(part.bytes);
    if (count == kRows) launch(stream, rows, std::exchange(count, 0));
  }
  if (count > 0) launch(stream, rows, count);
  c10::impl::VirtualGuardImpl(stream.device_type()).synchronizeStream(stream);
  return static_cast<const char*>(found_.const_data_ptr());
} catch (const c10::Error&) {  // not now: torch may still do it
  return nullptr;
}

}  // namespace op_tools
