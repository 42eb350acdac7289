// Copies in the current stream of a device, many in one launch of a vendor's kernel: see op_tools/copying.py.
#pragma once

#include "launcher.h"

#include <array>

namespace op_tools {

class Copies {
 public:
  explicit Copies(py::function launcher) : launchers_(std::move(launcher)) {}
  ~Copies();

  bool takes(const c10::Stream& stream) { return launchers_.has(stream); }
  bool full(const c10::Stream& stream) const { return count_ == kRows || (count_ > 0 && *stream_ != stream); }  // `give` comes first
  // Values that lie one after the other; into memory of the device or page-locked memory. `give` is to follow.
  void add(const at::Tensor& tensor, char* to, const c10::Stream& stream);
  void give();  // raises where the device has failed
  void drop() { count_ = 0, held_.clear(); }

 private:
  static constexpr size_t kRows = 64;
  struct Row {
    uint64_t from, to, bytes;
  };

  Launchers launchers_;
  std::array<Row, kRows> rows_;
  size_t count_ = 0;
  std::vector<at::Tensor> held_;
  std::optional<c10::Stream> stream_;  // of them all
};

}  // namespace op_tools
