// Copies in the current stream of a device, many in one launch.
#include "copies.h"

#include <c10/core/DeviceGuard.h>

#include <algorithm>

namespace op_tools {

constexpr uint64_t kEach = 1 << 14, kColumns = 64;  // bytes for a block of threads, and blocks for a row

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
  if (count_ == 0) return;
  uint64_t most = 0;
  for (size_t row = 0; row < count_; row++) most = std::max(most, rows_[row].bytes);
  const auto columns = static_cast<unsigned>(std::clamp<uint64_t>((most + kEach - 1) / kEach, 1, kColumns));
  void* arguments[] = {rows_.data()};
  const c10::DeviceGuard on(stream_->device());
  const bool started = launchers_.start(*stream_, columns, static_cast<unsigned>(count_), arguments);
  drop();
  TORCH_CHECK(started, "the kernel for copies was not started");
}

}  // namespace op_tools
