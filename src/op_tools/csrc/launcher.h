// A vendor's kernel, started without Python: see `launcher` in op_tools/reducing.py, and in copying.py.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

namespace op_tools {

constexpr int64_t kGiven = 3, kFields = 8;  // numbers of each piece: in the table, in the results
constexpr int64_t kDims = 8, kGapsWords = 2 + 2 * kDims;  // of what tells where values with gaps lie, behind the table

// What was started: the results come into page-locked memory, row by row.
struct Launched {
  at::Tensor memory;  // the table, then what tells of gaps, then the results
  int64_t rows = 0, room = 0;  // of the memory, in rows
  std::optional<c10::Stream> stream;
  int64_t* start = nullptr;  // of the memory

  int64_t* table() const { return start; }
  int64_t* gaps() const { return start + kGiven * rows; }
  int64_t* results() const { return start + kGiven * room; }
  void empty(int64_t count) const;  // as many rows of results are not there
  bool done() const;
  void wait() const;  // raises where the device has failed
};

class Launchers {
 public:
  // launcher(kind of device, index) -> four numbers and, if it may, that it reads values with gaps; or None
  explicit Launchers(py::function launcher) : launcher_(std::move(launcher)) {}
  void close() { launcher_ = py::function(); }

  bool has(const c10::Stream& stream);  // for it
  bool reads_gaps(const c10::Stream& stream) { return has(stream) && of(stream.device()).gaps; }
  Launched prepared(const c10::Stream& stream, int64_t rows, int64_t gaps);  // its table is to be written
  bool launch(const Launched& made);    // false: it cannot, now
  bool start(const c10::Stream& stream, unsigned columns, unsigned rows, void** arguments);  // the same, of any kernel
  void free(Launched& done);            // it is used again

 private:
  struct Launcher {
    int (*launch)(void* kernel, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void* stream,
                  void** arguments, void** more) = nullptr;
    void* kernel = nullptr;
    unsigned threads = 0;
    int (*capturing)(void* stream, int* state) = nullptr;
    bool gaps = false;
  };
  const Launcher& of(c10::Device device) {
    const auto* last = last_.load(std::memory_order_acquire);
    return last != nullptr && last->first == device ? last->second : found(device);
  }
  const Launcher& found(c10::Device device);

  py::function launcher_;
  struct Earlier {
    bool operator()(const c10::Device& a, const c10::Device& b) const { return std::pair(a.type(), a.index()) < std::pair(b.type(), b.index()); }
  };
  using Known = std::map<c10::Device, Launcher, Earlier>;
  Known known_;
  std::atomic<const Known::value_type*> last_{nullptr};  // the one that was asked for last
  std::vector<at::Tensor> few_, many_;  // memory that is free
  std::mutex lock_;
};

}  // namespace op_tools
