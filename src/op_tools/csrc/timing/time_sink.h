/* SPDX-License-Identifier: Apache-2.0 */
// The sink behind OpTimeMeasure: when calls and their backward passes start and end on the device.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "../autograd/call_region.h"
#include "../call/call_view.h"
#include "../call/signature.h"
#include "clock.h"

namespace op_tools {

// The times of some calls, as `Times` of op_tools/timing/aggregate.py keeps them.
struct Totals {
  int64_t count = 0;
  double total = 0, first = 0, least = INFINITY, most = 0;  // least: of those after the first
  std::map<int, int64_t> classes;

  void add(double ms);
  py::object told() const;
};

using Places = c10::SmallVector<int, 4>;  // of arguments that get gradients

// Nodes of a backward pass that run one after the other.
struct Stretch {
  Node *first, *last;
  bool computes;
};

// One call: its marks, and those of each stretch of its backward pass.
struct Row {
  explicit Row(std::shared_ptr<Clock> clock) : clock(std::move(clock)) {}
  ~Row() { release(); }
  Mark mark() const { return moves_nothing ? Mark() : clock->mark(); }
  bool complete() const { return hooks <= 0 || waiting <= 0; }
  void release();  // the marks can be used again; whatever comes later is not timed

  int64_t id = 0;
  int kind = 0, places = 0;
  bool in_backward = false;    // a call that the backward pass makes
  bool moves_nothing = false;  // a view: nothing is done on the device
  const std::shared_ptr<Clock> clock;
  Mark start, end;
  c10::SmallVector<std::pair<Mark, Mark>, 2> spans;
  std::atomic<int> waiting{0};  // stretches that have not ended
  std::atomic<int> hooks{0};    // that live: without them nothing comes any more
  std::mutex lock;              // of the marks
  bool closed = false;
};

class TimeSink : public Sink {
 public:
  // has_clock(device) -> bool: torch's events time it; op(name) -> (its lists are told by their
  // ends, it is a view); kind(function, name, args, kwargs, result, module, site) -> number of
  // calls that are counted together; flush() is called when `limit` calls are over; problem(text).
  TimeSink(size_t limit, py::function has_clock, py::function op, py::function kind,
           py::function flush, py::function problem);
  ~TimeSink() override;

  bool accepts(const at::Tensor& tensor) override {
    return tensor.is_cpu() || clock_of(tensor.device()) != nullptr;
  }
  void enter(CallView& call) override;
  void returned(CallView& call) override;
  void follow(const CallView& call, CallRegion& region, size_t outputs,
              std::shared_ptr<void> owner) override;
  void exit(CallView& call, const TensorList& outputs) override;
  void report(PyObject* op, const char* error) override;

  // The lines of the calls that are over, with `others` among them, by their ids; everything: of
  // all, and waits for the device. cells(kind, places or None) -> the texts before and after the
  // times.
  using Line = std::pair<int64_t, std::string>;
  py::bytes lines(bool everything, std::vector<Line> others, const py::function& cells);
  py::dict sums();  // {kind: (times of forward, of backward)} of the calls that were over since the
                    // last time
  size_t pending();
  int64_t spent() const { return cost_; }

  std::atomic<size_t> limit;

 private:
  struct Op {
    bool brief, is_view;
  };
  struct Begun {
    std::shared_ptr<Row> row;
    Signature seen;
    int64_t entered = 0;
  };
  using Cells = std::pair<std::string, std::string>;

  const std::shared_ptr<Clock>& clock_of(c10::Device device);
  const Op& op_of(const std::string* name);
  int kind_of(const CallView& call, Begun& begun);
  const Cells& cells_of(const Row& row, const py::function& cells);
  void append_line(const Row& row, double forward, double backward, const Cells& cells,
                   std::string& to) const;

  py::function has_clock_, op_, kind_, flush_, problem_;
  // guarded by the GIL
  std::map<std::pair<int, int>, std::shared_ptr<Clock>> clocks_;
  std::unordered_map<const std::string*, Op> ops_;
  std::unordered_map<Words, int, WordsHash> kinds_;
  std::map<Places, int> places_;
  std::map<std::tuple<int, int>, Cells> cells_;  // by kind and places; -1: without a backward pass
  std::map<int, std::pair<Totals, Totals>> sums_;
  std::atomic<int64_t> cost_{0};  // nanoseconds

  std::mutex lock_;  // of what follows
  std::vector<std::shared_ptr<Row>> rows_;
  size_t flush_at_;
};

void bind_time_sink(py::module_& m);

}  // namespace op_tools
