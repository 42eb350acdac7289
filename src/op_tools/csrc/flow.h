// The gradients of a call that a recorder writes down, heard by hooks on the nodes that it made: as gradients.py.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "graph.h"
#include "recorder.h"

namespace op_tools {

// One call's gradients while they come in. Holds no tensor of the graph for longer: no cycle, no leak.
class Flow {
 public:
  Flow(std::shared_ptr<Recorder> recorder, const Head& head, size_t inputs, size_t outputs)
      : recorder_(std::move(recorder)), head_(head), inputs_(inputs), outputs_(outputs), ways_(inputs, 0) {}

  // Hooks on what a call has made between its arguments and its results; nothing, where that is nothing.
  static void watch(std::shared_ptr<Recorder> recorder, const Head& head, Given& given, size_t count, const Tensors& results, uint64_t sequence);
  static void finish();  // at the end of a backward pass: those that it went through in part are written

  using Places = c10::SmallVector<std::pair<int, int>, 2>;  // number among a node's gradients, place among the call's
  // Before a node, what comes in; after it, what came in, unless that was heard before, and what it made.
  void enter(const variable_list& given, const Places& leaving, const std::shared_ptr<Flow>& self);
  void leave(const variable_list& given, const Places& leaving, const variable_list& made, const Places& entering, bool at_once,
             const std::shared_ptr<Flow>& self);

 private:
  // Where what was taken of a gradient lies among `taken_`; nothing came: at its start.
  struct Part {
    uint32_t from = 0, to = 0;
  };
  using Parts = c10::SmallVector<Part, 4>;
  void take(Batch::Hold& hold, Part& to, const at::Tensor& gradient);
  void take_outputs(Batch::Hold& hold, const variable_list& given, const Places& leaving, const std::shared_ptr<Flow>& self);
  void write();

  std::shared_ptr<Recorder> recorder_;
  const Head head_;
  Raw taken_;
  Parts inputs_, outputs_;
  std::vector<std::pair<int, at::Tensor>> sums_;  // of arguments with several ways to them
  c10::SmallVector<int, 4> ways_;                 // to each argument
  int waiting_ = 0;
  bool begun_ = false, over_ = false;
  std::mutex lock_;
};

}  // namespace op_tools
