// Hooks that time the backward pass of one call: see timed.py, which does the same without a compiler.
#pragma once

#include <string>
#include <unordered_map>
#include <unordered_set>

#include "../autograd/argument_edges.h"
#include "clock.h"

namespace op_tools {

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

// Nodes that autograd runs one after the other.
struct Stretch {
  Node *first, *last;
  bool idle;  // nothing is computed
};
using Stretches = c10::SmallVector<Stretch, 4>;

// The arguments that a call's backward pass leads to.
inline Places argument_places(const CallRegion& region) {
  Places places;
  for (const auto& member : region.members)
    for (const auto& link : member.arguments) places.push_back(link.place);
  std::sort(places.begin(), places.end());
  places.erase(std::unique(places.begin(), places.end()), places.end());
  return places;
}

// The nodes that compute. A reshape and the node after it are one stretch.
inline Stretches stretches_of(CallRegion& region) {
  Stretches found;
  c10::SmallVector<Node*, 8> joined;
  for (const auto& member : region.members) {
    if (member.results.empty() || work_of(*member.node) != Work::reshapes || member.node->next_edges().empty()) continue;
    Node* next = member.node->next_edges()[0].function.get();
    if (next == nullptr || region.find(next) == nullptr || work_of(*next) != Work::computes) continue;
    joined.push_back(member.node), joined.push_back(next);
    found.push_back({member.node, next, false});
  }
  for (const auto& member : region.members) {
    const Work work = work_of(*member.node);
    const bool computes = work == Work::computes || (work == Work::reshapes && !member.results.empty());
    if (computes && std::find(joined.begin(), joined.end(), member.node) == joined.end()) found.push_back({member.node, member.node, false});
  }
  if (found.empty())
    for (const auto& member : region.members) found.push_back({member.node, member.node, work_of(*member.node) == Work::idle});
  return found;
}

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

// Whether torch generated the node from a formula: such a node never writes what it is given. AddBackward0, …
inline bool is_of_a_formula(const Node& node) {
  const std::string name = node.name();
  return !name.empty() && name.back() >= '0' && name.back() <= '9';
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
