/* SPDX-License-Identifier: Apache-2.0 */
// Where the arguments of a call are in the autograd graph, and which nodes a call made.
#pragma once

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "../call/python_tensors.h"

namespace op_tools {

using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::variable_list;

// Taken before the call, which may write its arguments in place.
struct ArgumentEdges {
  c10::SmallVector<std::pair<Edge, int>, 4> edges;         // with the place of the argument
  c10::SmallVector<std::pair<at::Tensor, int>, 4> leaves;  // their nodes exist only after the call

  explicit ArgumentEdges(const TensorList& tensors) {
    for (size_t place = 0; place < tensors.size(); place++) {
      const at::Tensor& tensor = *tensors[place];
      if (!tensor.requires_grad()) continue;
      const auto& node = tensor.grad_fn();
      if (node == nullptr) leaves.emplace_back(tensor, int(place));
      else edges.emplace_back(Edge(node, uint32_t(tensor.output_nr())), int(place));
    }
  }

  bool any() const { return !edges.empty() || !leaves.empty(); }

  void find_leaves() {
    for (const auto& [leaf, place] : leaves) {
      const auto node = torch::autograd::impl::try_get_grad_accumulator(leaf);
      if (node != nullptr) edges.emplace_back(Edge(node, 0), place);
    }
    leaves.clear();
  }

  // The first place of an argument; -1: no argument.
  int place_of(const Node* node, uint32_t number) const {
    for (const auto& [edge, place] : edges)
      if (edge.function.get() == node && edge.input_nr == number) return place;
    return -1;
  }
};

// The nodes that a call made: through which of them its results leave and its arguments enter.
struct CallRegion {
  struct Link {
    int number;  // of the node's input or output
    int place;   // of the result or argument
  };
  using Links = c10::SmallVector<Link, 2>;
  struct Member {
    Node* node;
    Links results, arguments;
  };
  c10::SmallVector<Member, 4> members;

  // `sequence`: autograd's count before the call.
  CallRegion(ArgumentEdges& arguments, const TensorList& results, uint64_t sequence) {
    arguments.find_leaves();
    c10::SmallVector<Node*, 8> stack;
    c10::SmallVector<std::pair<Node*, Link>, 4> leaving;
    for (size_t place = 0; place < results.size(); place++) {
      Node* node = results[place]->grad_fn().get();
      const auto number = uint32_t(results[place]->output_nr());
      if (node == nullptr || arguments.place_of(node, number) >= 0)
        continue;  // an argument that is returned
      leaving.push_back({node, {int(number), int(place)}});
      stack.push_back(node);
    }
    while (!stack.empty()) {
      Node* node = stack.back();
      stack.pop_back();
      if (node->sequence_nr() < sequence || find(node) != nullptr)
        continue;  // older than the call, or known
      members.push_back({node, {}, {}});
      const auto& edges = node->next_edges();
      for (size_t number = 0; number < edges.size(); number++) {
        Node* next = edges[number].function.get();
        if (next == nullptr) continue;
        const int place = arguments.place_of(next, edges[number].input_nr);
        if (place >= 0) members.back().arguments.push_back({int(number), place});
        else if (!next->next_edges().empty()) stack.push_back(next);
      }
    }
    for (const auto& [node, link] : leaving)
      if (Member* member = find(node)) member->results.push_back(link);
  }

  Member* find(const Node* node) {
    const auto found = std::find_if(members.begin(), members.end(),
                                    [&](const Member& member) { return member.node == node; });
    return found == members.end() ? nullptr : found;
  }
};

}  // namespace op_tools
