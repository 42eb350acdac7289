// Copies of the gradients of calls, taken on their device by hooks on the nodes that each call made and kept until somebody
// asks for them: no Python runs in the backward pass. As op_tools/gradients.py, which does the same where there is no native part.
#include "gathered.h"

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty_strided.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>

#include "made.h"

namespace op_tools {
namespace {

int64_t size_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided ? static_cast<int64_t>(tensor.nbytes()) : 0;
}

bool is_dense(const at::Tensor& tensor) { return tensor.layout() == at::kStrided && tensor.is_non_overlapping_and_dense(); }

bool is_in(const std::vector<at::Tensor>& tensors, const at::Tensor& one) {
  return std::any_of(tensors.begin(), tensors.end(), [&](const at::Tensor& other) { return other.is_same(one); });
}

// A copy, in float64 where that changes no value: a reference needs it so.
at::Tensor widened(const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kDouble || !tensor.is_floating_point()) return tensor.clone();
  try {
    return tensor.to(at::kDouble);
  } catch (const std::exception&) {  // a device without float64
    return tensor.clone();
  }
}

class Gathered;

// One call's gradients while they come in, and then. Holds no tensor of the graph: no cycle, no leak.
class Flown : public Flowed {
 public:
  Flown(py::object of, std::shared_ptr<Gathered> owner, size_t results, size_t arguments, bool views)
      : Flowed(results, arguments), of_(std::move(of)), owner_(std::move(owner)), views_(views) {}
  ~Flown() {
    if (!Py_IsInitialized()) {  // after the end of Python nothing of it can be given back
      of_.release();
      return;
    }
    const py::gil_scoped_acquire gil;  // the graph may end in any thread
    of_ = py::object();
  }

  void enter(const variable_list& grads, const Marks& leaving);
  void leave(const variable_list& grads, const Marks& entering, const std::shared_ptr<Flown>& self);
  void cut_off(const std::shared_ptr<Flown>& self);  // the pass is over, and has been through a part of the call

  py::object of() const { return of_; }
  static py::list listed(const std::vector<at::Tensor>& tensors) {
    py::list made;
    for (const at::Tensor& tensor : tensors)
      if (tensor.defined()) made.append(py::cast(tensor));
      else made.append(py::none());
    return made;
  }

  size_t waiting = 0;  // nodes

 private:
  void end(const std::shared_ptr<Flown>& self);
  bool computed() const;
  void copy();

  py::object of_;
  std::shared_ptr<Gathered> owner_;
  const bool views_;  // of what the call returned: where no gradient is computed either, none is of interest
  bool over_ = false;
  std::mutex lock_;
};

// The calls that a backward pass has reached and not been through.
std::mutex& begun_lock() {
  static auto* lock = new std::mutex();
  return *lock;
}
std::map<Flown*, std::weak_ptr<Flown>>& begun() {
  static auto* calls = new std::map<Flown*, std::weak_ptr<Flown>>();
  return *calls;
}

// What is over and waits for somebody to ask. `full` is called, in the backward pass, where that is too much.
class Gathered : public std::enable_shared_from_this<Gathered> {
 public:
  explicit Gathered(py::object full) : full_(std::move(full)) {}
  ~Gathered() {
    if (!Py_IsInitialized()) {
      full_.release();
      return;
    }
    const py::gil_scoped_acquire gil;
    full_ = py::object();
  }

  void add(const std::shared_ptr<Flown>& flown) {
    int64_t bytes = 0, count = 0;
    for (const auto* side : {&flown->outputs, &flown->inputs})
      for (const at::Tensor& tensor : *side) bytes += size_of(tensor);
    for (const at::Tensor& tensor : flown->inputs) count += tensor.defined();
    bool full = false;
    {
      const std::lock_guard hold(lock_);
      over_.push_back(flown);
      bytes_ += bytes, count_ += count;
      full = bytes_ >= most_bytes_ || count_ >= most_;
    }
    if (!full) return;
    const py::gil_scoped_acquire gil;
    try {
      full_(shared_from_this());
    } catch (const std::exception&) {  // it tells of its errors itself
      PyErr_Clear();
    }
  }

  void limit(int64_t bytes, int64_t count) {
    const std::lock_guard hold(lock_);
    most_bytes_ = bytes, most_ = count;
  }

  std::pair<int64_t, int64_t> waiting() {
    const std::lock_guard hold(lock_);
    return {bytes_, count_};
  }

  py::list taken() {
    std::vector<std::shared_ptr<Flown>> found;
    {
      const std::lock_guard hold(lock_);
      found.swap(over_);
      bytes_ = count_ = 0;
    }
    py::list made;
    for (const auto& flown : found) made.append(py::make_tuple(flown->of(), flown));
    return made;
  }

 private:
  py::object full_;
  std::vector<std::shared_ptr<Flown>> over_;
  int64_t bytes_ = 0, count_ = 0, most_bytes_ = INT64_MAX, most_ = INT64_MAX;
  std::mutex lock_;
};

void Flown::enter(const variable_list& grads, const Marks& leaving) {
  const std::lock_guard hold(lock_);
  if (over_) return;  // of an earlier pass
  try {
    const Aside aside;
    for (const auto& [place, number] : leaving)
      if (grads[number].defined()) outputs[place] = views_ ? grads[number].detach() : widened(grads[number]);
  } catch (const std::exception& failed) {  // no memory: the program goes on
    error = failed.what();
  }
}

void Flown::leave(const variable_list& grads, const Marks& entering, const std::shared_ptr<Flown>& self) {
  bool last = false;
  {
    const std::lock_guard hold(lock_);
    if (over_) return;
    try {
      const Aside aside;
      std::vector<at::Tensor> own, copies;  // what is alike is copied by one launch
      for (const auto& [place, argument] : entering) {
        const at::Tensor& grad = grads[place];
        if (!grad.defined()) continue;
        at::Tensor& sum = inputs[argument];
        if (sum.defined() && is_in(copies, sum)) at::_foreach_copy_(copies, own), own.clear(), copies.clear();
        if (sum.defined()) {
          sum = at::add(sum, grad);
        } else if (views_) {
          sum = grad.detach();
        } else if (is_dense(grad) && (own.empty() || (grad.scalar_type() == own[0].scalar_type() && grad.device() == own[0].device()))) {
          own.push_back(grad);
          sum = at::empty_strided(grad.sizes(), grad.strides(), grad.options());
          copies.push_back(sum);
        } else {
          sum = grad.clone();
        }
      }
      if (own.size() == 1) copies[0].copy_(own[0]);
      else if (!own.empty()) at::_foreach_copy_(copies, own);
    } catch (const std::exception& failed) {
      error = failed.what();
    }
    last = over_ = --waiting == 0;
  }
  if (last) {
    end(self);
    return;
  }
  const std::lock_guard hold(begun_lock());
  begun()[this] = self;
}

void Flown::cut_off(const std::shared_ptr<Flown>& self) {
  {
    const std::lock_guard hold(lock_);
    if (over_) return;
    over_ = true, complete = false;
  }
  end(self);
}

void Flown::end(const std::shared_ptr<Flown>& self) {
  {
    const std::lock_guard hold(begun_lock());
    begun().erase(this);
  }
  const auto owner = std::move(owner_);
  if (views_ && complete && !computed()) return;
  if (views_) copy();
  owner->add(self);
}

// Whether a gradient lies elsewhere than in what came in.
bool Flown::computed() const {
  const auto memory = [](const at::Tensor& tensor) { return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr; };
  for (const at::Tensor& own : inputs) {
    if (!own.defined()) continue;
    const bool within = std::any_of(outputs.begin(), outputs.end(), [&](const at::Tensor& tensor) {
      return tensor.defined() && memory(tensor) == memory(own) && memory(own) != nullptr;
    });
    if (!within) return true;
  }
  return false;
}

void Flown::copy() {
  try {
    const Aside aside;
    for (auto* side : {&outputs, &inputs})
      for (at::Tensor& tensor : *side)
        if (tensor.defined()) tensor = tensor.clone();
  } catch (const std::exception& failed) {
    error = failed.what();
  }
}

struct Before final : torch::autograd::FunctionPreHook {
  std::shared_ptr<Flown> flown;
  Marks leaving;  // place of the result, its number among those of the node
  Before(std::shared_ptr<Flown> flown, Marks leaving) : flown(std::move(flown)), leaving(std::move(leaving)) {}

  variable_list operator()(const variable_list& grads) override {
    flown->enter(grads, leaving);
    return grads;
  }
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {}  // not heard there
};

struct After final : torch::autograd::FunctionPostHook {
  std::shared_ptr<Flown> flown;
  Marks entering;  // place among the node's following, argument
  After(std::shared_ptr<Flown> flown, Marks entering) : flown(std::move(flown)), entering(std::move(entering)) {}

  variable_list operator()(const variable_list& grads, const variable_list&) override {
    flown->leave(grads, entering, flown);
    return grads;
  }
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {}
};

// Copies of a call's arguments, one of each: in float64 where that changes no value, as leaves of a graph where that is wanted.
// What is of another type is copied too, unless `own`: then nobody else has it.
std::vector<at::Tensor> leaves_of(const std::vector<at::Tensor>& given, const std::vector<bool>& wanted, bool own) {
  std::vector<at::Tensor> made, narrow, wide;
  made.reserve(given.size());
  const Aside aside;
  for (size_t at = 0; at < given.size(); at++) {
    const at::Tensor& tensor = given[at];
    const auto same = std::find_if(given.begin(), given.begin() + static_cast<std::ptrdiff_t>(at), [&](const at::Tensor& other) { return other.is_same(tensor); });
    if (same != given.begin() + static_cast<std::ptrdiff_t>(at)) {
      made.push_back(made[static_cast<size_t>(same - given.begin())]);
      continue;
    }
    const bool widens = tensor.is_floating_point() && tensor.scalar_type() != at::kDouble;
    // what is alike is copied by one launch
    const bool alike = widens && is_dense(tensor) && (narrow.empty() || (tensor.scalar_type() == narrow[0].scalar_type() && tensor.device() == narrow[0].device()));
    if (alike) {
      narrow.push_back(tensor);
      wide.push_back(at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().dtype(at::kDouble)));
      made.push_back(wide.back());
    } else {
      made.push_back(widens ? tensor.to(at::kDouble) : own ? tensor.detach() : tensor.detach().clone());
    }
  }
  if (narrow.size() == 1) wide[0].copy_(narrow[0]);
  else if (!narrow.empty()) at::_foreach_copy_(wide, narrow);
  for (size_t at = 0; at < given.size(); at++)
    if (wanted[at] && given[at].is_floating_point()) made[at].set_requires_grad(true);
  return made;
}

// For a block of Python.
struct Block {
  std::optional<Aside> held;
};

// Where the arguments hang in the graph before the call.
class Hanging {
 public:
  explicit Hanging(const std::vector<at::Tensor>& tensors) : given_(pointers(tensors)), count_(tensors.size()) {}

  bool wanted() const { return given_.wanted(); }

  // What is gathered of `of`, once the backward pass has been through the call that made `results`; false: it never will.
  bool watch(const std::shared_ptr<Gathered>& owner, const std::vector<at::Tensor>& results, uint64_t sequence, bool views, py::object of) {
    given_.find_leaves();
    const Made made = made_by(given_, pointers(results), sequence);
    if (made.nodes.empty()) return false;
    const auto flown = std::make_shared<Flown>(std::move(of), owner, results.size(), count_, views);
    flown->waiting = made.nodes.size();
    for (Node* node : made.nodes) {
      const auto leaving = made.outputs.find(node), entering = made.inputs.find(node);
      if (leaving != made.outputs.end()) node->add_pre_hook(std::make_unique<Before>(flown, leaving->second));
      node->add_post_hook(std::make_unique<After>(flown, entering == made.inputs.end() ? Marks() : entering->second));
    }
    return true;
  }

 private:
  Given given_;
  size_t count_;
};

}  // namespace

void finish_gathered() {
  std::map<Flown*, std::weak_ptr<Flown>> left;
  {
    const std::lock_guard hold(begun_lock());
    left.swap(begun());
  }
  for (const auto& [_, weak] : left)
    if (const auto flown = weak.lock()) flown->cut_off(flown);
}

void bind_gathered(py::module_& m) {
  m.def("leaves_of", &leaves_of);
  py::class_<Block>(m, "Aside").def(py::init<>()).def("__enter__", [](Block& own) { own.held.emplace(); }).def("__exit__", [](Block& own, const py::args&) { own.held.reset(); });
  py::class_<Flowed, std::shared_ptr<Flowed>>(m, "Flowed")
      .def_property_readonly("outputs", [](const Flowed& flown) { return Flown::listed(flown.outputs); })
      .def_property_readonly("inputs", [](const Flowed& flown) { return Flown::listed(flown.inputs); })
      .def_readonly("complete", &Flowed::complete)
      .def_readonly("error", &Flowed::error);
  py::class_<Flown, Flowed, std::shared_ptr<Flown>>(m, "Flown");
  py::class_<Gathered, std::shared_ptr<Gathered>>(m, "Gathered")
      .def(py::init<py::object>())
      .def("limit", &Gathered::limit)
      .def("waiting", &Gathered::waiting)
      .def("taken", &Gathered::taken);
  py::class_<Hanging>(m, "Hanging")
      .def(py::init<const std::vector<at::Tensor>&>())
      .def_property_readonly("wanted", &Hanging::wanted)
      .def("watch", &Hanging::watch);
}

}  // namespace op_tools
