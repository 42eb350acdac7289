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

  // The bytes of some places, one after the other, once the stream has come there; null: no kernel does it.
  struct Part {
    c10::Storage storage;
    int64_t start, bytes;
  };
  const char* read(const std::vector<Part>& parts, const c10::Stream& stream);

 private:
  static constexpr size_t kRows = 64;
  struct Row {
    uint64_t from, to, bytes;
  };

  void launch(const c10::Stream& stream, std::array<Row, kRows>& rows, size_t count);

  Launchers launchers_;
  std::array<Row, kRows> rows_;
  size_t count_ = 0;
  std::vector<at::Tensor> held_;
  std::optional<c10::Stream> stream_;  // of them all
  at::Tensor found_;                   // page-locked, what was read last
};

}  // namespace op_tools
