// The gradients of a call that a recorder writes down.
#include "flow.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <array>
#include <atomic>
#include <new>
#include <string_view>
#include <typeinfo>

namespace op_tools {
namespace {

std::mutex begun_lock;
std::vector<std::weak_ptr<Flow>> begun;  // that a backward pass has come to

bool is_torchs_by_name(const Node& node) {
  const std::string_view name = typeid(node).name();  // torch keeps some of the types to itself
  const bool of_python = name == "N5torch8autograd6PyNodeE", of_others = name.starts_with("N5torch8autograd7CppNode");
  return name.starts_with("N5torch8autograd") && !of_python && !of_others;
}

// Whether torch itself does it: then it writes nothing that comes in. Hot path: a name is looked at once, as a rule.
bool is_torchs(const Node& node) {
  static std::array<std::atomic<uintptr_t>, 256> known{};  // the address of the type, and in its last bit whether it is torch's
  const auto address = reinterpret_cast<uintptr_t>(&typeid(node));
  auto& slot = known[(address * 0x9E3779B97F4A7C15ull) >> 56];
  const uintptr_t found = slot.load(std::memory_order_relaxed);
  if ((found & ~uintptr_t{1}) == address) return (found & 1) != 0;
  const bool is = is_torchs_by_name(node);
  slot.store(address | uintptr_t{is}, std::memory_order_relaxed);
  return is;
}

// Whether torch itself does a node and all that get gradients from it.
bool are_torchs(const Node& node) {
  const auto& edges = node.next_edges();
  return is_torchs(node) && std::all_of(edges.begin(), edges.end(), [](const Edge& edge) { return edge.function == nullptr || is_torchs(*edge.function); });
}

// Before a node that may write what comes in.
struct Hear final : torch::autograd::FunctionPreHook {
  std::shared_ptr<Flow> flow;
  Flow::Places leaving;
  Hear(std::shared_ptr<Flow> flow, Flow::Places leaving) : flow(std::move(flow)), leaving(std::move(leaving)) {}

  variable_list operator()(const variable_list& grads) override {
    flow->enter(grads, leaving, flow);
    return grads;
  }
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {}  // not seen there
};

// Memory for a flow with room for all of its hooks behind it: to ask for each of them alone costs more than what they do.
template <typename T>
struct Together {
  using value_type = T;
  size_t more;  // bytes
  char** behind;
  Together(size_t more, char** behind) : more(more), behind(behind) {}
  template <typename U>
  Together(const Together<U>& other) : more(other.more), behind(other.behind) {}

  T* allocate(size_t count) {
    auto* const memory = static_cast<char*>(::operator new(count * sizeof(T) + more));
    *behind = memory + count * sizeof(T);
    return reinterpret_cast<T*>(memory);
  }
  void deallocate(T* memory, size_t) { ::operator delete(memory); }
  bool operator==(const Together&) const { return true; }
};

// After a node: what came in, unless that was heard before, and what it made. It lies behind its flow, which it holds.
struct HearOut final : torch::autograd::FunctionPostHook {
  std::shared_ptr<Flow> flow;
  Flow::Places leaving, entering;
  Node& node;  // which holds this
  const bool among_torchs;
  HearOut(std::shared_ptr<Flow> flow, Flow::Places leaving, Flow::Places entering, Node& node)
      : flow(std::move(flow)), leaving(std::move(leaving)), entering(std::move(entering)), node(node), among_torchs(are_torchs(node)) {}

  static void operator delete(HearOut* hook, std::destroying_delete_t) {
    const auto held = std::move(hook->flow);
    hook->~HearOut();
  }

  variable_list operator()(const variable_list& grads, const variable_list& given) override {
    flow->leave(given, leaving, grads, entering, meets_others(), flow);
    return grads;
  }
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {}

 private:
  bool meets_others() const;  // whether something that is not torch's comes to see the gradients here, or next
};

// Whether only we listen to it.
bool is_ours_alone(Node& node) {
  const auto& before = node.pre_hooks();
  const auto& after = node.post_hooks();
  return node.tensor_pre_hooks().empty() && node.tensor_post_acc_grad_hooks() == nullptr &&
      std::all_of(before.begin(), before.end(), [](const auto& hook) { return typeid(*hook) == typeid(Hear); }) &&
      std::all_of(after.begin(), after.end(), [](const auto& hook) { return typeid(*hook) == typeid(HearOut); });
}

bool HearOut::meets_others() const {
  if (!among_torchs || !is_ours_alone(node)) return true;
  const auto& edges = node.next_edges();
  return std::any_of(edges.begin(), edges.end(), [](const Edge& edge) { return edge.function != nullptr && !is_ours_alone(*edge.function); });
}

// The nodes that a call made: where its results leave them, where its arguments enter.
struct Made {
  struct Node_ {
    Node* node = nullptr;
    Flow::Places leaving, entering;
    bool is_edge() const { return !leaving.empty() || !entering.empty(); }  // gradients of the call come by
  };
  c10::SmallVector<Node_, 8> nodes;

  Node_* find(const Node* node) {
    for (auto& one : nodes)
      if (one.node == node) return &one;
    return nullptr;
  }

  Made(const Given& given, const Tensors& results, uint64_t sequence) {
    c10::SmallVector<Node*, 8> stack;
    c10::SmallVector<std::tuple<Node*, int, int>, 4> leaving;
    for (size_t place = 0; place < results.size(); place++) {
      Node* node = results[place]->grad_fn().get();
      const auto number = uint32_t(results[place]->output_nr());
      if (node == nullptr || given.argument(node, number) >= 0) continue;  // passed through
      leaving.emplace_back(node, int(number), int(place));
      stack.push_back(node);
    }
    while (!stack.empty()) {
      Node* node = stack.back();
      stack.pop_back();
      if (node->sequence_nr() < sequence || find(node) != nullptr) continue;
      nodes.emplace_back().node = node;
      const auto& edges = node->next_edges();
      for (size_t number = 0; number < edges.size(); number++) {
        Node* following = edges[number].function.get();
        if (following == nullptr) continue;
        const int argument = given.argument(following, edges[number].input_nr);
        if (argument >= 0) nodes.back().entering.emplace_back(int(number), argument);
        else if (!following->next_edges().empty()) stack.push_back(following);
      }
    }
    for (const auto& [node, number, place] : leaving)
      if (auto* own = find(node)) own->leaving.emplace_back(number, place);
  }
};

}  // namespace

void Flow::watch(std::shared_ptr<Recorder> recorder, const Head& head, Given& given, size_t count, const Tensors& results, uint64_t sequence) {
  given.find_leaves();
  Made made(given, results, sequence);
  if (made.nodes.empty()) return;
  const auto edges = std::count_if(made.nodes.begin(), made.nodes.end(), [](const auto& one) { return one.is_edge(); });
  char* behind = nullptr;
  const Together<Flow> memory(static_cast<size_t>(edges) * sizeof(HearOut), &behind);
  const auto flow = std::allocate_shared<Flow>(memory, std::move(recorder), head, count, results.size());
  flow->waiting_ = static_cast<int>(edges);
  for (const auto& one : made.nodes) {
    for (const auto& [number, argument] : one.entering) flow->ways_[argument]++;
  }
  for (auto& one : made.nodes) {
    if (!one.is_edge()) continue;
    if (!one.leaving.empty() && !is_torchs(*one.node)) one.node->add_pre_hook(std::make_unique<Hear>(flow, std::exchange(one.leaving, {})));
    auto* const hook = ::new (behind) HearOut(flow, std::move(one.leaving), std::move(one.entering), *one.node);
    behind += sizeof(HearOut);
    one.node->add_post_hook(std::unique_ptr<torch::autograd::FunctionPostHook>(hook));
  }
}

static std::vector<Raw>& spare() {  // this thread's memory for what is taken of gradients, used again
  static thread_local std::vector<Raw> all;
  return all;
}

void Flow::take(Batch::Hold& hold, Part& to, const at::Tensor& gradient) {
  constexpr size_t kGradients = 256;  // bytes that those of most calls take
  if (taken_.size() == 0) {
    if (auto& memory = spare(); !memory.empty()) std::swap(taken_, memory.back()), memory.pop_back();
    taken_.reserve(kGradients);
  }
  const auto from = static_cast<uint32_t>(taken_.size());
  recorder_->tensor(hold, recorder_->way(gradient), taken_, gradient);
  to = {from, static_cast<uint32_t>(taken_.size())};
}

void Flow::take_outputs(Batch::Hold& hold, const variable_list& given, const Places& leaving, const std::shared_ptr<Flow>& self) {
  if (!std::exchange(begun_, true)) {
    std::lock_guard all(begun_lock);
    begun.push_back(self);
  }
  for (const auto& [number, place] : leaving)
    if (size_t(number) < given.size() && given[number].defined()) take(hold, outputs_[place], given[number]);
}

void Flow::enter(const variable_list& given, const Places& leaving, const std::shared_ptr<Flow>& self) {
  try {
    std::lock_guard hold(lock_);
    if (over_) return;
    auto batch = recorder_->hold();
    take_outputs(batch, given, leaving, self);
    batch.free();
    recorder_->settle_at_once();
  } catch (const std::exception& error) {  // a tool must not kill the program that it watches
    recorder_->report(nullptr, error.what());
  }
}

void Flow::leave(const variable_list& given, const Places& leaving, const variable_list& made, const Places& entering, bool at_once,
                 const std::shared_ptr<Flow>& self) {
  try {
    std::lock_guard hold(lock_);
    if (over_) return;
    auto batch = recorder_->hold();
    if (!leaving.empty()) take_outputs(batch, given, leaving, self);
    for (const auto& [number, argument] : entering) {
      if (size_t(number) >= made.size() || !made[number].defined()) continue;
      if (ways_[argument] == 1) {
        take(batch, inputs_[argument], made[number]);
        continue;
      }
      batch.free();  // torch may ask for anything
      at::NoGradGuard no_grad;
      auto before = std::find_if(sums_.begin(), sums_.end(), [&, at = argument](const auto& sum) { return sum.first == at; });
      if (before == sums_.end()) before = sums_.insert(sums_.end(), {argument, made[number].detach()});
      else before->second = before->second + made[number].detach();
      take(batch, inputs_[argument], before->second);
    }
    batch.free();
    if (at_once) recorder_->settle_at_once();
    if (--waiting_ == 0) write();
  } catch (const std::exception& error) {
    recorder_->report(nullptr, error.what());
  }
}

void Flow::write() {
  over_ = true;
  sums_.clear();
  static thread_local Raw line;  // its memory is used again
  line.clear();
  const auto side = [&](const Parts& all) {
    for (const Part& one : all) {
      if (one.to == 0) line.nothing();
      else line.add(taken_.bytes().substr(one.from, one.to - one.from));
    }
  };
  line.gradients(head_);
  side(inputs_);
  line.of_outputs();
  side(outputs_);
  line.end();
  constexpr size_t kSpare = 64;
  if (auto& memory = spare(); memory.size() < kSpare) taken_.clear(), memory.push_back(std::move(taken_));
  taken_ = {};
  recorder_->add(line);
}

void Flow::finish() {
  Batch::start_all();  // from here on the program may write the gradients
  std::vector<std::weak_ptr<Flow>> left;
  {
    std::lock_guard hold(begun_lock);
    left.swap(begun);
  }
  for (const auto& one : left) {
    const auto flow = one.lock();
    if (flow == nullptr) continue;
    std::lock_guard hold(flow->lock_);
    if (!flow->over_) flow->write();
  }
}

}  // namespace op_tools
