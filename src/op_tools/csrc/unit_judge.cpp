// Many calls that wait for their device's verdict, judged in one go with no Python for each: those that return one tensor, and
// backward passes. As op_tools/device_reference.py, which does the same where there is no native part, and for all others.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "gathered.h"

namespace op_tools {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr size_t kMaxima = 5, kFound = 10;  // the fields of `Figures`
constexpr size_t kKnown = 1 << 14;           // parts of calls of which it is known what is told of them
enum Field { steps, largest, gap, relative, beyond, steps_squared, squared, size, mine, off };

// A type that results may be of: what its rows of the table begin with, and what is allowed next to the right value.
struct Type {
  std::array<int64_t, 4> row;  // see op_tools/device_kernel.py
  double most, rms, bias;      // see `next_to` in deeplink/judge/calibrated.py
  bool one_step;               // a float32 within a step of it is right
};

// What lines on a part of a call have in common, and the errors that were accepted of such parts.
struct About {
  std::string name, first, second;
  double largest = -1, mean = -1;
  py::object kind, site;  // held, so that their addresses stay theirs
};

struct Key {
  const void *kind, *site;
  std::string module;
  bool again;     // it was made in a backward pass
  int64_t place;  // of a gradient; -1: the result
  Py_ssize_t given, named;  // arguments: a label says which
  at::ScalarType type;
  std::vector<int64_t> shape;

  auto tied() const { return std::tie(kind, site, place, type, shape, module, again, given, named); }
  bool operator<(const Key& other) const {
    return tied() < other.tied();
  }
};

std::string shortest(double value) {  // as Python's repr, so far as JSON tells them apart
  char digits[40];
  const std::string text(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

std::string number(double value, std::chars_format how) {  // "%.9f" or "%.9g", in any locale
  char digits[400];
  return std::string(digits, std::to_chars(digits, digits + sizeof digits, value, how, 9).ptr);
}

double cosine(const double* found) {  // as `Figures.cosine`
  if (found[gap] == 0.0) return 1.0;
  const double lengths = std::sqrt(found[mine]) * std::sqrt(found[size]);
  if (lengths == 0.0 || !std::isfinite(lengths)) return std::nan("");
  return std::min(1.0, std::max(-1.0, (found[mine] + found[size] - found[squared]) / 2 / lengths));
}

py::object attribute(py::handle owner, PyObject* name) {
  PyObject* found = PyObject_GetAttr(owner.ptr(), name);
  if (found == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(found);
}

PyObject* word(const char* text) { return PyUnicode_InternFromString(text); }

bool is_tensor(const py::object& value) { return THPVariable_Check(value.ptr()); }
const at::Tensor& tensor_of(const py::object& value) { return THPVariable_Unpack(value.ptr()); }

// The tensors of a list or tuple of nothing else, or one of them; false: it is something else.
bool tensors_of(const py::object& value, Tensors& found) {
  if (is_tensor(value)) {
    found.push_back(tensor_of(value));
    return true;
  }
  if (!PyTuple_CheckExact(value.ptr()) && !PyList_CheckExact(value.ptr())) return false;
  for (Py_ssize_t at = 0; at < PySequence_Fast_GET_SIZE(value.ptr()); at++) {
    const auto item = py::reinterpret_borrow<py::object>(PySequence_Fast_GET_ITEM(value.ptr(), at));
    if (!is_tensor(item)) return false;
    found.push_back(tensor_of(item));
  }
  return true;
}

// What the calls of one run of the tool have in common.
class Judge {
 public:
  // `describe(taken, forward, place, mine)`: the name as it is in a line, two texts, and the accepted errors. `types`: a tensor of
  // each type, its row, and what is allowed of it.
  using Given = std::tuple<at::Tensor, std::array<int64_t, 4>, std::array<double, 3>, bool>;
  Judge(py::object describe, const std::vector<Given>& types, double outlier, double many, size_t most)
      : outlier(outlier), many(many), most(most), describe_(std::move(describe)) {
    for (const auto& [tensor, row, allowed, one] : types) types_[tensor.scalar_type()] = {row, allowed[0], allowed[1], allowed[2], one};
  }

  void forget() { about_.clear(); }  // other errors are accepted now

  const Type* type(const at::Tensor& tensor) const {
    const auto found = types_.find(tensor.scalar_type());
    return found == types_.end() ? nullptr : &found->second;
  }

  std::shared_ptr<const About> about(const py::handle taken, const py::handle call, int64_t place, const py::object& mine, const at::Tensor& tensor) {
    static PyObject *const kind_word = word("about"), *const site_word = word("site"), *const module_word = word("module");
    static PyObject *const direction_word = word("direction"), *const args_word = word("args"), *const kwargs_word = word("kwargs");
    const py::object kind = attribute(taken, kind_word), site = attribute(call, site_word), module = attribute(call, module_word);
    const bool again = *PyUnicode_AsUTF8(attribute(call, direction_word).ptr()) == 'b';
    const auto given = PyObject_Size(attribute(call, args_word).ptr()), named = PyObject_Size(attribute(call, kwargs_word).ptr());
    Key key{kind.ptr(), site.ptr(), PyUnicode_AsUTF8(module.ptr()), again, place, given, named, tensor.scalar_type(), tensor.sizes().vec()};
    const auto known = about_.find(key);
    if (known != about_.end()) return known->second;
    const py::object own = mine ? mine : py::cast(tensor);
    const auto [name, first, second, largest, mean] =
        describe_(taken, place < 0, std::max<int64_t>(0, place), own).cast<std::tuple<std::string, std::string, std::string, double, double>>();
    auto made = std::make_shared<About>(About{name, first, second, largest, mean, kind, site});
    if (about_.size() >= kKnown) about_.clear();
    about_.emplace(std::move(key), made);
    return made;
  }

  const double outlier, many;  // elements from which on statistics are looked at
  const size_t most;  // parts of a call that are told of one by one

 private:
  py::object describe_;
  std::map<at::ScalarType, Type> types_;
  std::map<Key, std::shared_ptr<const About>> about_;  // by who has the GIL
};

struct Pair {
  at::Tensor mine, theirs;
  const Type* type;
  std::shared_ptr<const About> about;
  int64_t wanted = -1;  // which of the gradients `theirs` will be
};

struct Entry {
  bool pass;  // a backward one
  int64_t id, step;
  size_t begin, end;  // its pairs
  bool right = true;
};

// Calls that are judged together. Used by one thread.
class Portion {
 public:
  explicit Portion(std::shared_ptr<Judge> judge) : judge_(std::move(judge)) {}

  // A call; false: it is none of those that are judged here.
  bool forward(const py::object& taken) {
    static PyObject *const result_word = word("result"), *const after_word = word("after");
    py::object run, call;
    if (!fits(taken, run, call)) return false;
    const py::object own = attribute(taken, result_word), right = attribute(run, result_word), after = attribute(taken, after_word);
    if (!is_tensor(own) || !is_tensor(right)) return false;
    for (const py::handle now : after)
      if (!now.is_none()) return false;  // an argument was read again
    const size_t begin = pairs_.size();
    if (!add(taken, call, own, tensor_of(own), -1)) return false;
    if (!put(pairs_.back(), tensor_of(right))) {
      pairs_.pop_back();
      return false;
    }
    enter(false, call, begin);
    return true;
  }

  // The same of its backward pass.
  bool backward(const py::object& taken, const std::shared_ptr<Flowed>& flown) {
    static PyObject *const result_word = word("result"), *const leaves_word = word("leaves");
    py::object run, call;
    Tensors results, leaves;
    if (!fits(taken, run, call) || !tensors_of(attribute(run, result_word), results) || !tensors_of(attribute(run, leaves_word), leaves)) return false;
    if (results.size() != flown->outputs.size() || leaves.size() != flown->inputs.size()) return false;
    bool any = false;
    for (size_t at = 0; at < results.size(); at++) {
      const at::Tensor &grad = flown->outputs[at], &result = results[at];
      if (!grad.defined() || !result.requires_grad()) continue;
      if (grad.scalar_type() != result.scalar_type() || grad.device() != result.device() || grad.sizes() != result.sizes()) return false;
      any = true;
    }
    const size_t begin = pairs_.size(), wanted = wanted_.size();
    bool good = any;
    for (size_t place = 0; good && place < leaves.size(); place++) {
      if (!flown->inputs[place].defined()) continue;
      const bool twice = std::any_of(wanted_.begin() + static_cast<std::ptrdiff_t>(wanted), wanted_.end(), [&](const at::Tensor& other) { return other.is_same(leaves[place]); });
      good = leaves[place].requires_grad() && !twice && add(taken, call, py::object(), flown->inputs[place], static_cast<int64_t>(place));
      if (!good) break;
      pairs_.back().wanted = static_cast<int64_t>(wanted_.size());
      wanted_.push_back(leaves[place]);
    }
    if (!good || pairs_.size() == begin || pairs_.size() - begin > judge_->most) {
      pairs_.resize(begin), wanted_.resize(wanted);
      return false;
    }
    for (size_t at = 0; at < results.size(); at++)
      if (flown->outputs[at].defined() && results[at].requires_grad()) results_.push_back(results[at]), grads_.push_back(flown->outputs[at]);
    enter(true, call, begin);
    return true;
  }

  // The gradients of the references, by one pass through their graphs; without the GIL.
  void gradients() {
    if (wanted_.empty()) return;
    const Aside aside;  // so are the threads that do it
    torch::autograd::edge_list roots, edges;
    for (const at::Tensor& result : results_) roots.push_back(torch::autograd::impl::gradient_edge(result));
    std::vector<int64_t> places;  // among the edges
    for (const at::Tensor& leaf : wanted_) {
      const auto own = leaf.grad_fn();
      const auto node = own ? own : torch::autograd::impl::try_get_grad_accumulator(leaf);
      places.push_back(node ? static_cast<int64_t>(edges.size()) : -1);  // -1: nothing leads there
      if (node) edges.emplace_back(node, static_cast<uint32_t>(leaf.output_nr()));
    }
    Tensors found;
    if (!edges.empty()) found = torch::autograd::Engine::get_default_engine().execute(roots, grads_, true, false, false, edges);
    for (Entry& entry : entries_) {
      for (size_t at = entry.begin; at < entry.end; at++) {
        if (pairs_[at].wanted < 0) continue;
        const int64_t place = places[static_cast<size_t>(pairs_[at].wanted)];
        if (place < 0 || !put(pairs_[at], found[static_cast<size_t>(place)])) entry.right = false;
      }
    }
  }

  // What is to be measured: see op_tools/device_kernel.py.
  at::Tensor table(int64_t most) {
    const Aside aside;
    std::vector<int64_t> rows;
    const auto dense = [&](const at::Tensor& tensor) {
      if (tensor.is_contiguous()) return tensor;
      held_.push_back(tensor.contiguous());
      return held_.back();
    };
    pieces_.clear();
    for (const Entry& entry : entries_) {
      for (size_t at = entry.begin; at < entry.end; at++) {
        int64_t pieces = 0;
        if (entry.right) {
          const at::Tensor own = dense(pairs_[at].mine), right = dense(pairs_[at].theirs);
          const auto first = reinterpret_cast<int64_t>(own.const_data_ptr()), second = reinterpret_cast<int64_t>(right.const_data_ptr());
          const int64_t count = own.numel(), width = static_cast<int64_t>(own.element_size());
          for (int64_t begin = 0; begin < count; begin += most, pieces++) {
            rows.insert(rows.end(), {first + width * begin, second + 8 * begin, std::min(most, count - begin)});
            rows.insert(rows.end(), pairs_[at].type->row.begin(), pairs_[at].type->row.end());
          }
        }
        pieces_.push_back(pieces);
      }
    }
    const at::Tensor made = at::empty({static_cast<int64_t>(rows.size()) / 7, 7}, at::kLong);
    std::copy(rows.begin(), rows.end(), made.mutable_data_ptr<int64_t>());
    return made;
  }

  // Verdicts by what was measured, a row for each of the table: which entries are not found right. Writes lines on the others.
  std::vector<size_t> judge(const at::Tensor& measured) {
    const double* row = static_cast<const double*>(measured.const_data_ptr());
    std::vector<size_t> others;
    std::vector<std::array<double, kFound>> found;
    for (size_t at = 0; at < entries_.size(); at++) {
      Entry& entry = entries_[at];
      found.assign(entry.end - entry.begin, {});
      for (size_t pair = entry.begin; pair < entry.end; pair++) {
        auto& sums = found[pair - entry.begin];
        for (int64_t piece = 0; piece < pieces_[pair]; piece++, row += kFound)
          for (size_t field = 0; field < kFound; field++) {
            if (field >= kMaxima) sums[field] += row[field];
            else if (piece == 0 || !(row[field] <= sums[field])) sums[field] = std::isnan(sums[field]) ? sums[field] : row[field];
          }
        entry.right = entry.right && is_right(pairs_[pair], sums.data());
      }
      if (!entry.right) {
        others.push_back(at);
        continue;
      }
      (entry.pass ? passes : calls)++;
      for (size_t pair = entry.begin; pair < entry.end; pair++) write(entry, *pairs_[pair].about, found[pair - entry.begin].data());
    }
    return others;
  }

  std::string lines, details;
  size_t calls = 0, passes = 0, items = 0;

 private:
  // Whether all of a call is in types that are known; the run of its reference, and its record.
  static bool fits(const py::object& taken, py::object& run, py::object& call) {
    static PyObject *const run_word = word("run"), *const again_word = word("again"), *const call_word = word("call");
    static PyObject *const rounded_word = word("rounded"), *const inside_word = word("inside");
    run = attribute(taken, run_word);
    const py::object again = attribute(taken, again_word);
    if (run.is_none() || !attribute(again, rounded_word).is_none() || !attribute(again, inside_word).is_none()) return false;
    call = attribute(again, call_word);
    return true;
  }

  bool add(const py::object& taken, const py::object& call, const py::object& held, const at::Tensor& own, int64_t place) {
    const Type* type = judge_->type(own);
    if (type == nullptr || own.layout() != at::kStrided || own.numel() == 0) return false;
    pairs_.push_back({own, at::Tensor(), type, judge_->about(taken, call, place, held, own)});
    return true;
  }

  static bool put(Pair& pair, const at::Tensor& right) {
    if (!right.defined() || right.scalar_type() != at::kDouble || right.sizes() != pair.mine.sizes() || right.device() != pair.mine.device()) return false;
    pair.theirs = right;
    return true;
  }

  void enter(bool pass, const py::object& call, size_t begin) {
    static PyObject *const id_word = word("id"), *const step_word = word("step");
    entries_.push_back({pass, attribute(call, id_word).cast<int64_t>(), attribute(call, step_word).cast<int64_t>(), begin, pairs_.size()});
  }

  // As `rule_of` in op_tools/device_verdicts.py; and what is not finite is told in other words.
  bool is_right(const Pair& pair, const double* found) const {
    if (!std::isfinite(found[gap]) || !std::isfinite(found[relative]) || !std::isfinite(cosine(found))) return false;
    const Type& type = *pair.type;
    if (type.one_step && found[beyond] <= 0.0) return true;
    const auto count = static_cast<double>(pair.mine.numel());
    const bool few = count < judge_->many || (!(12 * found[steps_squared] > type.rms * type.rms * count) && std::sqrt(12.0) * found[off] / count <= type.bias);
    if (found[steps] <= type.most && few) return true;
    if (!(found[size] > 0.0)) return false;
    const double top = found[largest] / std::sqrt(found[size] / count), mean = std::sqrt(found[squared] / found[size]);
    return top / judge_->outlier <= pair.about->largest && mean <= pair.about->mean;
  }

  // As `Rows` in op_tools/comparison_report.py.
  void write(const Entry& entry, const About& about, const double* found) {
    static const std::string zero = number(0.0, std::chars_format::fixed);
    const auto text = [](double value) { return value == 0.0 ? zero : number(value, std::chars_format::general); };
    const std::string id = std::to_string(entry.id);
    lines += id + "," + about.name + ",True," + number(cosine(found), std::chars_format::fixed) + "," + text(found[gap]) + "," + text(found[relative]) + "," + zero + "," + zero + ",\n";
    details += "{\"id\": " + id + about.first + std::to_string(entry.step) + about.second + shortest(found[gap]) + ", \"message\": \"\"}\n";
    items++;
  }

  std::shared_ptr<Judge> judge_;
  std::vector<Entry> entries_;
  std::vector<Pair> pairs_;
  Tensors results_, grads_, wanted_, held_;
  std::vector<int64_t> pieces_;  // of each pair
};

}  // namespace

void bind_judge(py::module_& m) {
  using Released = py::call_guard<py::gil_scoped_release>;
  py::class_<Judge, std::shared_ptr<Judge>>(m, "Judge")
      .def(py::init<py::object, const std::vector<Judge::Given>&, double, double, size_t>())
      .def("forget", &Judge::forget);
  py::class_<Portion>(m, "Portion")
      .def(py::init<std::shared_ptr<Judge>>())
      .def("forward", &Portion::forward)
      .def("backward", &Portion::backward)
      .def("gradients", &Portion::gradients, Released())
      .def("table", &Portion::table, Released())
      .def("judge", &Portion::judge, Released())
      .def_readonly("lines", &Portion::lines)
      .def_readonly("details", &Portion::details)
      .def_readonly("calls", &Portion::calls)
      .def_readonly("passes", &Portion::passes)
      .def_readonly("items", &Portion::items);
}

}  // namespace op_tools
