/* SPDX-License-Identifier: Apache-2.0 */
// Launches a vendor's kernel for statistics without Python: see `launcher` in
// op_tools/tensors/device_reduction.py.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <torch/csrc/utils/pybind.h>

#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "statistics.h"

namespace op_tools {

constexpr int64_t kGiven = 3,
                  kFields = 2 + kFieldCount;  // numbers of a row: in the table, in the results
constexpr int64_t kDims = 8, kGapsWords = 2 + 2 * kDims;  // of the layout of non-contiguous values

// A launched kernel, and the page-locked memory that it reads its table from and writes its results
// to.
struct Launched {
  at::Tensor memory;           // the table, the layouts of non-contiguous values, the results
  int64_t rows = 0, room = 0;  // room: of the memory, in rows
  std::optional<c10::Stream> stream;
  int64_t* start = nullptr;

  int64_t* table() const { return start; }
  int64_t* gaps() const { return start + kGiven * rows; }
  int64_t* results() const { return start + kGiven * room; }
  void clear(int64_t count) const;  // marks that many results as missing
  bool done() const;
  void wait() const;  // raises an error if the device has failed
};

class KernelLauncher {
 public:
  explicit KernelLauncher(py::function launcher) : launcher_(std::move(launcher)) {}
  void close() { launcher_ = py::function(); }

  bool has(const c10::Stream& stream);
  bool reads_gaps(const c10::Stream& stream) { return of(stream.device()).gaps; }
  Launched prepare(const c10::Stream& stream, int64_t rows,
                   int64_t gaps);         // the caller writes the table
  bool launch(const Launched& prepared);  // false: not possible, as while a graph is captured
  void free(Launched& done);              // its memory can be used again

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

  py::function launcher_;
  std::map<std::pair<int, int>, Kernel> kernels_;  // by device type and index
  std::vector<at::Tensor> small_, large_;          // memory that is free
  std::mutex lock_;
};

}  // namespace op_tools
