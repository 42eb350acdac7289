// The part of the graph that one call made, and hooks that time its backward pass. As in timed.py
// and gradients.py, which do the same where there is no native part.
#pragma once
#include "seen.h"
#include "timing.h"

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>

namespace op_tools {

using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::variable_list;

// Where the arguments hang in the graph before the call, which may write them in place.
struct Given {
  c10::SmallVector<std::pair<Edge, int>, 4> edges;  // with the place of the argument
  c10::SmallVector<std::pair<at::Tensor, int>, 4> leaves;

  explicit Given(const Tensors& tensors) {
    for (size_t place = 0; place < tensors.size(); place++) {
      const at::Tensor& tensor = *tensors[place];
      if (!tensor.requires_grad()) continue;
      const auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
      const auto& node = meta->is_view_ ? tensor.grad_fn() : meta->grad_fn_;  // a view's may have to be made anew
      if (node == nullptr) leaves.emplace_back(tensor, int(place));
      else edges.emplace_back(Edge(node, uint32_t(tensor.output_nr())), int(place));
    }
  }

  bool wanted() const { return !edges.empty() || !leaves.empty(); }

  void find_leaves() {  // after the call their nodes are there
    for (const auto& [leaf, place] : leaves) {
      const auto node = torch::autograd::impl::try_get_grad_accumulator(leaf);
      if (node != nullptr) edges.emplace_back(Edge(node, 0), place);
    }
  }

  int argument(const Node* node, uint32_t number) const {
    for (const auto& [edge, place] : edges)
      if (edge.function.get() == node && edge.input_nr == number) return place;
    return -1;
  }
};

enum class Work { computes, idle, reshapes, expands };

// Whether what an `expand` gets has the size already: torch's products of more than two dimensions expand always.
inline bool keeps_shape(const Node& node) {
  if (node.num_inputs() != 1 || node.num_outputs() != 1 || !node.next_edges()[0].is_valid()) return false;
  const Edge& edge = node.next_edges()[0];
  const auto &from = node.input_metadata(0), &to = edge.function->input_metadata(edge.input_nr);
  return !from.is_nested_tensor() && !to.is_nested_tensor() && from.shape_as_dim_vector() == to.shape_as_dim_vector();
}

// By the name of its kind alone.
inline Work kind_of_work(const Node& node) {
  thread_local std::unordered_map<const std::type_info*, Work> known;
  const auto found = known.find(&typeid(node));
  if (found != known.end()) return found->second;
  static const std::unordered_set<std::string> idle{"TBackward0", "TransposeBackward0", "PermuteBackward0", "UnsqueezeBackward0", "AliasBackward0"};
  static const std::unordered_set<std::string> reshapes{"ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0"};
  const std::string name = node.name();
  const Work work = idle.count(name) ? Work::idle : reshapes.count(name) ? Work::reshapes : name == "ExpandBackward0" ? Work::expands : Work::computes;
  return known[&typeid(node)] = work;
}

// Nodes whose gradient is a view of what comes in compute nothing; see timed.py.
inline Work work_of(const Node& node) {
  const Work work = kind_of_work(node);
  return work != Work::expands ? work : keeps_shape(node) ? Work::idle : Work::computes;
}

using Places = c10::SmallVector<int, 4>;

// Nodes that autograd does one after the other.
struct Ends {
  Node *first, *last;
  bool idle;  // nothing is computed
};
using Stretches = c10::SmallVector<Ends, 4>;

// The nodes that a call made, and the places of the arguments that they lead to.
struct Part {
  c10::SmallVector<Node*, 8> nodes, outputs;
  Places places;

  bool made(const Node* node) const { return std::find(nodes.begin(), nodes.end(), node) != nodes.end(); }

  Part(const Given& given, const Tensors& results, uint64_t sequence) {
    c10::SmallVector<Node*, 8> stack;
    for (const at::Tensor* tensor : results) {
      Node* node = tensor->grad_fn().get();
      if (node == nullptr || given.argument(node, uint32_t(tensor->output_nr())) >= 0) continue;
      if (std::find(outputs.begin(), outputs.end(), node) == outputs.end()) outputs.push_back(node);
      stack.push_back(node);
    }
    while (!stack.empty()) {
      Node* node = stack.back();
      stack.pop_back();
      if (node->sequence_nr() < sequence || made(node)) continue;
      nodes.push_back(node);
      for (const Edge& edge : node->next_edges()) {
        Node* following = edge.function.get();
        if (following == nullptr) continue;
        const int place = given.argument(following, edge.input_nr);
        if (place >= 0) places.push_back(place);
        else if (!following->next_edges().empty()) stack.push_back(following);
      }
    }
    std::sort(places.begin(), places.end());
    places.erase(std::unique(places.begin(), places.end()), places.end());
  }

  // The nodes that compute, as pairs of the first and the last of a row of them; see timed.py.
  Stretches stretches() const {
    Stretches found;
    c10::SmallVector<Work, 8> works;
    c10::SmallVector<bool, 8> joined(nodes.size(), false);
    for (const Node* node : nodes) works.push_back(work_of(*node));
    const auto place = [&](const Node* node) { return size_t(std::find(nodes.begin(), nodes.end(), node) - nodes.begin()); };
    for (Node* node : outputs) {
      const size_t at = place(node);
      if (at == nodes.size() || works[at] != Work::reshapes) continue;
      Node* following = node->next_edges().empty() ? nullptr : node->next_edges()[0].function.get();
      const size_t next = place(following);
      if (next == nodes.size() || works[next] != Work::computes) continue;
      joined[at] = joined[next] = true;
      found.push_back({node, following, false});
    }
    for (size_t at = 0; at < nodes.size(); at++) {
      Node* node = nodes[at];
      const bool output = std::find(outputs.begin(), outputs.end(), node) != outputs.end();
      const bool computes = works[at] == Work::computes || (works[at] == Work::reshapes && output);
      if (computes && !joined[at]) found.push_back({node, node, false});
    }
    if (found.empty())
      for (size_t at = 0; at < nodes.size(); at++) found.push_back({nodes[at], nodes[at], works[at] == Work::idle});
    return found;
  }
};

// A hook of one stretch. It holds neither the call nor a tensor: no cycle in the graph.
struct Hook {
  std::shared_ptr<Row> row;
  size_t at;
  Hook(std::shared_ptr<Row> given, size_t at) : row(std::move(given)), at(at) { row->hooks++; }
  Hook(const Hook&) = delete;
  ~Hook() { row->hooks--; }
};

struct Enter final : torch::autograd::FunctionPreHook {
  Hook hook;
  Enter(std::shared_ptr<Row> row, size_t at) : hook(std::move(row), at) {}

  variable_list operator()(const variable_list& grads) override {
    try {
      Row& row = *hook.row;
      std::lock_guard hold(row.lock);
      if (!row.closed) {
        auto& stretch = row.stretches[hook.at];
        if (stretch.still) row.leave(stretch, true);  // there is no hook after it
        else stretch.start = row.clock->mark(), stretch.begun = true;
      }
    } catch (...) {  // a device whose events fail: the program goes on without this time
    }
    return grads;
  }
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {}  // not timed there
};

// Whether a node of torch's own gave on what it got, or a view of it, as that of a sum does.
inline bool gave_on(const variable_list& outputs, const variable_list& inputs) {
  return std::all_of(outputs.begin(), outputs.end(), [&](const at::Tensor& output) {
    const auto is_it = [&](const at::Tensor& input) {
      return input.is_same(output) || (input.defined() && input.has_storage() && output.has_storage() && input.is_alias_of(output));
    };
    return !output.defined() || std::any_of(inputs.begin(), inputs.end(), is_it);
  });
}

// Whether torch has made its kind from a formula: such a node writes nothing that it is given. AddBackward0, …
inline bool is_of_a_formula(const Node& node) {
  thread_local std::unordered_map<const std::type_info*, bool> known;
  const auto found = known.find(&typeid(node));
  if (found != known.end()) return found->second;
  const std::string name = node.name();
  return known[&typeid(node)] = !name.empty() && name.back() >= '0' && name.back() <= '9';
}

struct Leave final : torch::autograd::FunctionPostHook {
  Hook hook;
  bool alone;  // the stretch is this node, which writes nothing that it is given
  Leave(std::shared_ptr<Row> row, size_t at, bool alone) : hook(std::move(row), at), alone(alone) {}

  variable_list operator()(const variable_list& outputs, const variable_list& inputs) override {
    try {
      Row& row = *hook.row;
      std::lock_guard hold(row.lock);
      auto& stretch = row.stretches[hook.at];
      if (stretch.begun && !row.closed) row.leave(stretch, alone && !row.clock->is_host() && gave_on(outputs, inputs));
    } catch (...) {
    }
    return outputs;
  }
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {}
};

}  // namespace op_tools
