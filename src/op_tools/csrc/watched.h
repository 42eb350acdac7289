// The gradients of one call, heard by hooks on the nodes that it made.
#pragma once
#include "graph.h"

#include <torch/csrc/utils/pybind.h>

#include <functional>
#include <memory>
#include <vector>

namespace op_tools {

using Objects = std::vector<py::object>;

// What becomes of a call's gradients. All under the GIL, but for its end: the graph may end in any thread.
struct Hearer {
  virtual ~Hearer() = default;
  virtual Objects taken(const std::vector<at::Tensor>& gradients) = 0;  // at once: they may be changed in place later
  virtual void done(const Objects& outputs, const Objects& inputs, bool complete) = 0;
};

// Has them heard, of a call that was given so many tensors and made these; `hearer` gives one where any will be.
void watch(Given& given, size_t count, const Tensors& made, uint64_t sequence,
           const std::function<std::unique_ptr<Hearer>()>& hearer);

}  // namespace op_tools
