/* SPDX-License-Identifier: Apache-2.0 */
// Statistics of tensors on a device, by one kernel of its vendor for all tensors of a call. The
// kernel is launched at once, on the current stream; the results are read later by another thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "host_view.h"
#include "kernel_launcher.h"
#include "statistics.h"

namespace op_tools {

class DeviceReducer {
 public:
  // starter(device type) -> start(table, device) or None; launcher(type, index): see
  // kernel_launcher.h; see op_tools/tensors/device_reduction.py for both. problem(text) reports an
  // error.
  DeviceReducer(Reads reads, py::function starter, py::function launcher, py::function problem);
  ~DeviceReducer();

  bool accepts(const at::Tensor& tensor);  // the vendor of the device offers a kernel

  // The tensors of one call: add them, then launch.
  class Batch {
   public:
    explicit Batch(DeviceReducer& reducer) : reducer_(reducer) {}
    int64_t add(const at::Tensor& tensor, Kind kind, int parts);  // the number of its statistics
    void launch();

   private:
    friend class DeviceReducer;
    struct Piece {
      at::Tensor tensor;  // a contiguous copy is held until the launch
      Layout layout;
      Kind kind;
      int parts;
      int64_t number;
      size_t values() const { return layout.count * parts; }
    };
    DeviceReducer& reducer_;
    c10::SmallVector<Piece, 4> pieces_;
  };

  // For the thread that reads. `wait`: until the device has finished all that is launched.
  void read(bool wait);
  int64_t launched() const { return launched_; }  // batches
  int64_t finished() const { return finished_; }
  std::optional<Measured> take(int64_t number,
                               std::string& problem);  // once; none: with the reason

 private:
  struct Asked {
    int64_t number, times;
    size_t values;
    Kind kind;
  };
  struct LaunchedBatch {
    Launched native;  // or
    py::object read;  // of Python
    std::vector<Asked> asked;
    std::string failed;
  };
  using Piece = Batch::Piece;

  PyObject* starter_of(c10::DeviceType type);
  void launch(c10::ArrayRef<Piece> pieces);
  void launch_on_stream(LaunchedBatch& to, c10::SmallVector<Piece, 4>& pieces,
                        const c10::Stream& stream);
  bool give(GivenTensors& to, c10::ArrayRef<Piece> pieces) const;
  uint64_t kind_of(const Piece& piece) const;
  void tabulate(int64_t* row, int64_t* gaps, c10::ArrayRef<Piece> pieces) const;
  void finish(LaunchedBatch& group);
  const int64_t* merge_rows(const Asked& asked, const int64_t* row, Measured& to) const;

  const Reads reads_;
  py::function starter_, problem_;
  KernelLauncher launcher_;
  std::map<c10::DeviceType, PyObject*> starters_;  // null: none
  std::mutex starters_lock_;
  std::atomic<int64_t> next_{0}, launched_{0}, finished_{0};
  std::mutex lock_;  // of what follows
  std::deque<LaunchedBatch> pending_;
  std::chrono::steady_clock::time_point flushed_{};  // by the thread that reads
  std::unordered_map<int64_t, Measured> found_;
  std::unordered_map<int64_t, std::string> failed_;
};

}  // namespace op_tools
