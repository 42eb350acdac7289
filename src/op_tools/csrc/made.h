// The nodes that one call made, and which of its results and arguments each of them leads to.
#pragma once

#include <map>
#include <unordered_set>
#include <vector>

#include "graph.h"

namespace op_tools {

using Marks = std::vector<std::pair<int, int>>;

struct Made {
  std::vector<Node*> nodes;
  std::map<Node*, Marks> outputs;  // place of the result, its number among those of the node
  std::map<Node*, Marks> inputs;   // place among the node's following, argument
};

Made made_by(const Given& given, const Tensors& results, uint64_t sequence);  // unit_watched.cpp

inline Tensors pointers(const std::vector<at::Tensor>& tensors) {
  Tensors found;
  for (const at::Tensor& tensor : tensors) found.push_back(&tensor);
  return found;
}

}  // namespace op_tools
