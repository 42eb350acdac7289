/* SPDX-License-Identifier: Apache-2.0 */
// Launches a vendor's kernel for statistics without Python: see `launcher` in
// op_tools/tensors/device_reduction.py.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <torch/csrc/utils/pybind.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "statistics.h"

namespace op_tools {

constexpr int64_t kGiven = 3,
                  kFields = 2 + kFieldCount;  // numbers of a row: in the table, in the results
constexpr int64_t kDims = 8, kGapsWords = 2 + 2 * kDims;  // of the layout of non-contiguous values

// A few contiguous tensors, as an argument of the kernel: to read a table from the host's memory
// takes longer than to reduce a small tensor. Each is divided into pieces as in the table.
struct GivenTensors {
  static constexpr int64_t kMost = 16;
  int64_t count = 0;             // 0: there is a table
  int64_t tensors[kMost][3];     // address, bytes, kind
  int64_t first_row[kMost + 1];  // of each tensor
};

// Results of several launches on one stream: in the memory of the device, and then on the host.
struct ResultChunk {
  at::Tensor device, host;
  int64_t rows = 0;                   // that are used
  std::optional<c10::Stream> stream;  // of the launches
  std::optional<c10::Event> copied;   // none: the copy to the host is not launched
};

struct Launched {
  std::shared_ptr<ResultChunk> chunk;  // null: nothing is launched
  int64_t first = 0;                   // row in it
  at::Tensor table;                    // page-locked, which the kernel may still read

  const int64_t* results() const { return chunk->host.const_data_ptr<int64_t>() + kFields * first; }
};

class KernelLauncher {
 public:
  explicit KernelLauncher(py::function launcher) : launcher_(std::move(launcher)) {}
  void close() { launcher_ = py::function(); }

  bool has(const c10::Stream& stream);
  bool reads_gaps(const c10::Stream& stream) { return of(stream.device()).gaps; }
  // By `given`, or by a table in page-locked memory. Null: not now, as while a graph is captured.
  Launched launch(const c10::Stream& stream, int64_t rows, GivenTensors& given, at::Tensor table);

  bool is_done(const Launched& of);  // its results are on the host
  void wait(const Launched& of);     // raises an error if the device has failed
  void flush();                      // launches the copies of results to the host

 private:
  struct Kernel {
    int (*launch)(void* kernel, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                  unsigned, void* stream, void** arguments, void** more) = nullptr;
    void* kernel = nullptr;
    unsigned threads = 0;
    int (*capturing)(void* stream, int* state) = nullptr;
    bool gaps = false;
  };
  const Kernel& of(c10::Device device);
  std::shared_ptr<ResultChunk>& chunk_for(const c10::Stream& stream, int64_t rows);
  static void copy(ResultChunk& chunk);

  py::function launcher_;
  std::map<std::pair<int, int>, Kernel> kernels_;                     // by device type and index
  std::map<std::pair<int, int>, std::shared_ptr<ResultChunk>> open_;  // that launches add to
  std::mutex lock_;
};

}  // namespace op_tools
