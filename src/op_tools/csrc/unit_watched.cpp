// The gradients of one call, heard by hooks on the nodes that it made; see op_tools/gradients.py, which says the same in
// Python.
#include "made.h"
#include "watched.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/python_variable.h>

#include <map>
#include <mutex>

namespace op_tools {
namespace {

// Python functions; `taken(gradient)`, `done(outputs, inputs, complete)`.
struct ByPython final : Hearer {
  ByPython(py::object take, py::object over) : take(std::move(take)), over(std::move(over)) {}
  ~ByPython() override {
    if (!Py_IsInitialized()) {  // after the end of Python nothing of it can be given back
      take.release(), over.release();
      return;
    }
    const py::gil_scoped_acquire gil;
    take = over = py::object();
  }

  Objects taken(const std::vector<at::Tensor>& gradients) override {
    Objects made;
    for (const at::Tensor& gradient : gradients) made.push_back(take(py::reinterpret_steal<py::object>(THPVariable_Wrap(gradient))));
    return made;
  }
  void done(const Objects& outputs, const Objects& inputs, bool complete) override {
    over(py::cast(outputs), py::cast(inputs), complete);
  }

  py::object take, over;
};

// One call's gradients while they come in. Holds no tensor of the graph: no cycle, no leak. All under the GIL.
struct Group {
  Group(std::unique_ptr<Hearer> hearer, size_t results, size_t arguments)
      : hearer(std::move(hearer)), outputs(results, py::none()), inputs(arguments, py::none()) {}
  ~Group() {
    if (!Py_IsInitialized()) {
      for (auto* side : {&outputs, &inputs})
        for (py::object& one : *side) one.release();
      return;
    }
    const py::gil_scoped_acquire gil;  // the graph may end in any thread
    outputs.clear(), inputs.clear();
  }

  void take(const std::vector<at::Tensor>& gradients, const std::vector<int>& places, Objects& to) {
    if (gradients.empty()) return;
    Objects made = hearer->taken(gradients);
    for (size_t at = 0; at < places.size(); at++) to[places[at]] = std::move(made[at]);
  }

  void end(bool complete) {
    waiting = 0;
    sums.clear();
    hearer->done(outputs, inputs, complete);
  }

  std::unique_ptr<Hearer> hearer;
  Objects outputs, inputs;
  std::map<int, at::Tensor> sums;
  std::unordered_set<int> several;  // arguments that get a gradient from more than one place
  size_t waiting = 0;
};

// The groups that a backward pass has reached and not been through.
std::map<Group*, std::weak_ptr<Group>>& begun() {
  static auto* groups = new std::map<Group*, std::weak_ptr<Group>>();
  return *groups;
}

struct Before final : torch::autograd::FunctionPreHook {
  std::shared_ptr<Group> group;
  Marks leaving;  // place of the result, its number among those of the node
  Before(std::shared_ptr<Group> group, Marks leaving) : group(std::move(group)), leaving(std::move(leaving)) {}

  variable_list operator()(const variable_list& grads) override {
    const py::gil_scoped_acquire gil;
    try {
      std::vector<at::Tensor> some;
      std::vector<int> places;
      for (const auto& [place, number] : leaving)
        if (grads[number].defined()) some.push_back(grads[number]), places.push_back(place);
      group->take(some, places, group->outputs);
    } catch (const std::exception&) {  // `take` tells of its errors itself
      PyErr_Clear();
    }
    return grads;
  }
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {}  // not heard there
};

struct After final : torch::autograd::FunctionPostHook {
  std::shared_ptr<Group> group;
  Marks entering;  // place among the node's following, argument
  After(std::shared_ptr<Group> group, Marks entering) : group(std::move(group)), entering(std::move(entering)) {}

  variable_list operator()(const variable_list& grads, const variable_list&) override {
    const py::gil_scoped_acquire gil;
    try {
      std::vector<at::Tensor> some;
      std::vector<int> arguments;
      for (const auto& [place, argument] : entering)
        if (grads[place].defined()) some.push_back(summed(argument, grads[place])), arguments.push_back(argument);
      group->take(some, arguments, group->inputs);
      count_down();
    } catch (const std::exception&) {
      PyErr_Clear();
    }
    return grads;
  }
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {}

 private:
  at::Tensor summed(int argument, const at::Tensor& gradient) {
    const bool alone = !group->several.contains(argument);
    if (alone && !gradient.requires_grad()) return gradient;
    const at::NoGradGuard unrecorded;
    const at::DisableRecordFunctionGuard unwatched;
    if (alone) return gradient.detach();
    at::Tensor& sum = group->sums[argument];
    return sum = sum.defined() ? at::add(sum, gradient.detach()) : gradient.detach();
  }

  void count_down() {
    if (group->waiting == 0) return;  // of an earlier pass, over already
    if (--group->waiting > 0) {
      begun()[group.get()] = group;  // an address is used again
      return;
    }
    begun().erase(group.get());
    group->end(true);
  }
};

// Where the arguments hung in the graph before the call.
class Watch {
 public:
  explicit Watch(const std::vector<at::Tensor>& tensors) : given_(pointers(tensors)), count_(tensors.size()) {}

  // `done(outputs, inputs, complete)` is called once, when the backward pass has been through the call.
  void results(const std::vector<at::Tensor>& made, uint64_t sequence, py::object take, py::object done) {
    watch(given_, count_, pointers(made), sequence, [&] { return std::make_unique<ByPython>(std::move(take), std::move(done)); });
  }

 private:
  Given given_;
  size_t count_;
};

}  // namespace

void watch(Given& given, size_t count, const Tensors& made, uint64_t sequence,
           const std::function<std::unique_ptr<Hearer>()>& hearer) {
  given.find_leaves();
  const Made found = made_by(given, made, sequence);
  if (found.nodes.empty()) return;
  const auto group = std::make_shared<Group>(hearer(), made.size(), count);
  group->waiting = found.nodes.size();
  std::unordered_set<int> once;
  for (const auto& [node, marks] : found.inputs)
    for (const auto& [place, argument] : marks)
      if (!once.insert(argument).second) group->several.insert(argument);
  for (Node* node : found.nodes) {
    const auto leaving = found.outputs.find(node), entering = found.inputs.find(node);
    if (leaving != found.outputs.end()) node->add_pre_hook(std::make_unique<Before>(group, leaving->second));
    node->add_post_hook(std::make_unique<After>(group, entering == found.inputs.end() ? Marks() : entering->second));
  }
}

Made made_by(const Given& given, const Tensors& results, uint64_t sequence) {
  Made made;
  std::vector<Node*> stack;
  std::unordered_set<Node*> seen;
  for (size_t place = 0; place < results.size(); place++) {
    Node* node = results[place]->grad_fn().get();
    const auto number = static_cast<uint32_t>(results[place]->output_nr());
    if (node == nullptr || given.argument(node, number) >= 0) continue;  // passed through
    made.outputs[node].emplace_back(place, number);
    stack.push_back(node);
  }
  while (!stack.empty()) {
    Node* node = stack.back();
    stack.pop_back();
    if (node->sequence_nr() < sequence || !seen.insert(node).second) continue;  // older: reached through no argument
    made.nodes.push_back(node);
    int place = -1;
    for (const Edge& edge : node->next_edges()) {
      place++;
      if (edge.function == nullptr) continue;
      const int argument = given.argument(edge.function.get(), edge.input_nr);
      if (argument >= 0) made.inputs[node].emplace_back(place, argument);
      else if (!edge.function->next_edges().empty()) stack.push_back(edge.function.get());
    }
  }
  return made;
}

void bind_watched(py::module_& m) {
  py::class_<Watch>(m, "Watch").def(py::init<const std::vector<at::Tensor>&>()).def("results", &Watch::results);
  m.def("finish_gradients", [] {  // at the end of a backward pass: what it went through in part is told so
    const auto left = std::exchange(begun(), {});
    for (const auto& [_, weak] : left)
      if (const auto group = weak.lock()) group->end(false);
  });
}

}  // namespace op_tools
