// SPDX-License-Identifier: Apache-2.0
#include "gradient_hooks.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <mutex>

namespace op_tools {
namespace {

struct Group;
std::mutex begun_lock;
std::vector<std::weak_ptr<Group>> begun;  // groups that a backward pass has come to

// The gradients of one call while they come in. Held by its hooks alone.
struct Group : std::enable_shared_from_this<Group> {
  Group(std::shared_ptr<GradientSink> sink, size_t arguments)
      : sink(std::move(sink)),
        paths(arguments, 0) {}

  std::mutex lock;
  std::shared_ptr<GradientSink> sink;
  std::vector<int> paths;  // by argument: nodes through which it gets gradients
  std::vector<std::pair<int, at::Tensor>> sums;  // by argument, of those that get several
  int pending = 0;  // nodes that the backward pass has not gone through
  bool begun_ = false, over = false;

  template <typename Work>
  void guarded(Work work) {
    try {
      std::lock_guard hold(lock);
      if (!over) work();
    } catch (const std::exception& error) {  // a tool must not end the program that it watches
      sink->report(error.what());
    }
  }

  void begin() {
    if (std::exchange(begun_, true)) return;
    std::lock_guard all(begun_lock);
    begun.push_back(weak_from_this());
  }

  void end() {
    over = true;
    sums.clear();
    sink->end();
  }

  // The sum of all gradients of an argument so far.
  const at::Tensor* summed(int place, const at::Tensor& gradient) {
    if (paths[place] == 1) return &gradient;
    at::NoGradGuard no_grad;
    auto sum =
        std::find_if(sums.begin(), sums.end(), [&](const auto& one) { return one.first == place; });
    if (sum == sums.end()) sum = sums.insert(sums.end(), {place, gradient.detach()});
    else sum->second = sum->second + gradient.detach();
    return &sum->second;
  }
};

using Links = CallRegion::Links;
using Gradients = c10::SmallVector<Gradient, 4>;

void add_results(Gradients& to, const variable_list& given, const Links& links) {
  for (const auto& [number, place] : links)
    if (size_t(number) < given.size() && given[number].defined())
      to.push_back({true, place, &given[number]});
}

struct BeforeNode final : torch::autograd::FunctionPreHook {
  std::shared_ptr<Group> group;
  Links results;
  BeforeNode(std::shared_ptr<Group> group, Links results)
      : group(std::move(group)),
        results(std::move(results)) {}

  variable_list operator()(const variable_list& grads) override {
    group->guarded([&] {
      group->begin();
      Gradients found;
      add_results(found, grads, results);
      group->sink->take(found);
    });
    return grads;
  }
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {}
};

struct AfterNode final : torch::autograd::FunctionPostHook {
  std::shared_ptr<Group> group;
  Links results, arguments;
  AfterNode(std::shared_ptr<Group> group, Links results, Links arguments)
      : group(std::move(group)),
        results(std::move(results)),
        arguments(std::move(arguments)) {}

  variable_list operator()(const variable_list& grads, const variable_list& given) override {
    group->guarded([&] {
      group->begin();
      Gradients found;
      add_results(found, given, results);
      for (const auto& [number, place] : arguments)
        if (size_t(number) < grads.size() && grads[number].defined())
          found.push_back({false, place, group->summed(place, grads[number])});
      group->sink->take(found);
      if (--group->pending == 0) group->end();
    });
    return grads;
  }
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {}
};

// Nodes that torch derives from formulas never write what they are given: it can be read after
// them.
bool keeps_gradients(const Node& node) {
  return dynamic_cast<const torch::autograd::TraceableFunction*>(&node) != nullptr;
}

}  // namespace

void watch_gradients(CallRegion& region, size_t inputs, std::shared_ptr<GradientSink> sink) {
  const auto group = std::make_shared<Group>(std::move(sink), inputs);
  for (const auto& member : region.members) {
    for (const auto& link : member.arguments) group->paths[link.place]++;
    group->pending += !member.results.empty() || !member.arguments.empty();
  }
  for (auto& member : region.members) {
    if (member.results.empty() && member.arguments.empty()) continue;
    if (!member.results.empty() && !keeps_gradients(*member.node))
      member.node->add_pre_hook(
          std::make_unique<BeforeNode>(group, std::exchange(member.results, {})));
    member.node->add_post_hook(
        std::make_unique<AfterNode>(group, std::move(member.results), std::move(member.arguments)));
  }
}

void finish_gradients() {
  std::vector<std::weak_ptr<Group>> left;
  {
    std::lock_guard hold(begun_lock);
    left.swap(begun);
  }
  for (const auto& one : left)
    if (const auto group = one.lock()) group->guarded([&] { group->end(); });
}

}  // namespace op_tools
