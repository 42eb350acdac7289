// SPDX-License-Identifier: Apache-2.0
#include "time_sink.h"

#include <c10/core/DeviceGuard.h>
#include <pybind11/stl.h>
#include <torch/csrc/Device.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>

namespace op_tools {
namespace {

// Whether what an `expand` gets has the size already: torch's products of more than two dimensions
// expand always.
bool keeps_shape(const Node& node) {
  if (node.num_inputs() != 1 || node.num_outputs() != 1 || !node.next_edges()[0].is_valid())
    return false;
  const Edge& edge = node.next_edges()[0];
  const auto &from = node.input_metadata(0), &to = edge.function->input_metadata(edge.input_nr);
  return !from.is_nested_tensor() && !to.is_nested_tensor() &&
         from.shape_as_dim_vector() == to.shape_as_dim_vector();
}

// Nodes whose gradient is a view of what comes in compute nothing; see
// op_tools/timing/call_timer.py.
enum class Work { computes, idle, reshapes };

Work work_of(const Node& node) {
  static const std::unordered_set<std::string> idle{"TBackward0", "TransposeBackward0",
                                                    "PermuteBackward0", "UnsqueezeBackward0",
                                                    "AliasBackward0"};
  static const std::unordered_set<std::string> reshapes{"ViewBackward0", "UnsafeViewBackward0",
                                                        "ReshapeAliasBackward0"};
  const std::string name = node.name();
  if (idle.count(name) || (name == "ExpandBackward0" && keeps_shape(node))) return Work::idle;
  return reshapes.count(name) ? Work::reshapes : Work::computes;
}

// The nodes that compute. A reshape that gets the call's gradient and the node after it are one
// stretch.
c10::SmallVector<Stretch, 4> stretches_of(CallRegion& region) {
  c10::SmallVector<Stretch, 4> found;
  c10::SmallVector<const Node*, 8> joined;
  for (const auto& member : region.members) {
    if (member.results.empty() || work_of(*member.node) != Work::reshapes ||
        member.node->next_edges().empty())
      continue;
    Node* next = member.node->next_edges()[0].function.get();
    if (next == nullptr || region.find(next) == nullptr || work_of(*next) != Work::computes)
      continue;
    joined.push_back(member.node), joined.push_back(next);
    found.push_back({member.node, next, true});
  }
  for (const auto& member : region.members) {
    const Work work = work_of(*member.node);
    const bool computes =
        work == Work::computes || (work == Work::reshapes && !member.results.empty());
    if (computes && std::find(joined.begin(), joined.end(), member.node) == joined.end())
      found.push_back({member.node, member.node, true});
  }
  if (found.empty())
    for (const auto& member : region.members)
      found.push_back({member.node, member.node, work_of(*member.node) != Work::idle});
  return found;
}

Places argument_places(const CallRegion& region) {
  Places places;
  for (const auto& member : region.members)
    for (const auto& link : member.arguments) places.push_back(link.place);
  std::sort(places.begin(), places.end());
  places.erase(std::unique(places.begin(), places.end()), places.end());
  return places;
}

// Whether a node gave on what it got, or a view of it, as that of a sum does.
bool gave_on(const variable_list& outputs, const variable_list& inputs) {
  return std::all_of(outputs.begin(), outputs.end(), [&](const at::Tensor& output) {
    const auto is_it = [&](const at::Tensor& input) {
      return input.is_same(output) || (input.defined() && input.has_storage() &&
                                       output.has_storage() && input.is_alias_of(output));
    };
    return !output.defined() || std::any_of(inputs.begin(), inputs.end(), is_it);
  });
}

// Whether torch generated the node: then it never writes what it is given. AddBackward0, …
bool is_generated(const Node& node) {
  const std::string name = node.name();
  return !name.empty() && name.back() >= '0' && name.back() <= '9';
}

// What the two hooks of a stretch share. It holds neither the call nor a tensor: no cycle in the
// graph.
struct Timed {
  Timed(std::shared_ptr<Row> given, bool computes, bool may_give_on)
      : row(std::move(given)),
        computes(computes),
        may_give_on(may_give_on) {
    row->hooks++;
  }
  ~Timed() {
    row->clock->free(start);
    row->hooks--;
  }

  template <typename Work>
  void guarded(Work work) {
    try {
      std::lock_guard hold(row->lock);
      if (!row->closed) work();
    } catch (const std::exception&) {  // a device whose events fail: the program goes on without
                                       // this time
    }
  }
  void end(const Mark& end) {
    row->spans.emplace_back(std::exchange(start, {}), end);
    begun = false;
    row->waiting--;
  }

  const std::shared_ptr<Row> row;
  const bool computes, may_give_on;
  bool begun = false;
  Mark start;
};

struct Enter final : torch::autograd::FunctionPreHook {
  explicit Enter(std::shared_ptr<Timed> timed) : timed(std::move(timed)) {}
  variable_list operator()(const variable_list& grads) override {
    timed->guarded([&] {
      if (!timed->computes) return timed->end({});
      timed->start = timed->row->clock->mark();
      timed->begun = true;
    });
    return grads;
  }
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {
  }  // not timed there
  const std::shared_ptr<Timed> timed;
};

struct Leave final : torch::autograd::FunctionPostHook {
  explicit Leave(std::shared_ptr<Timed> timed) : timed(std::move(timed)) {}
  variable_list operator()(const variable_list& outputs, const variable_list& inputs) override {
    timed->guarded([&] {
      if (!timed->begun) return;
      Clock& clock = *timed->row->clock;
      if (!timed->may_give_on || !gave_on(outputs, inputs)) return timed->end(clock.mark());
      clock.free(timed->start);
      timed->end({});
    });
    return outputs;
  }
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {}
  const std::shared_ptr<Timed> timed;
};

void append_ms(std::string& to, double ms) {
  char digits[64];
  to.append(digits, static_cast<size_t>(std::snprintf(digits, sizeof digits, "%.8f", ms)));
}

}  // namespace

void Totals::add(double ms) {
  if (count == 0) first = ms;
  else least = std::min(least, ms);
  most = std::max(most, ms);
  count++;
  total += ms;
  classes[ms > 0 ? static_cast<int>(std::nearbyint(std::log(ms) * 50)) : -1'000'000]++;
}

py::object Totals::told() const {
  return py::make_tuple(count, total, first, least, most, py::cast(classes));
}

void Row::release() {
  closed = true;
  clock->free(start), clock->free(end);
  for (auto& [from, to] : spans) clock->free(from), clock->free(to);
}

TimeSink::TimeSink(size_t limit, py::function has_clock, py::function op, py::function kind,
                   py::function flush, py::function problem)
    : limit(limit),
      has_clock_(std::move(has_clock)),
      op_(std::move(op)),
      kind_(std::move(kind)),
      flush_(std::move(flush)),
      problem_(std::move(problem)),
      flush_at_(limit) {}

TimeSink::~TimeSink() {
  py::gil_scoped_acquire gil;  // the last owner may be a call in another thread
  for (auto* function : {&has_clock_, &op_, &kind_, &flush_, &problem_}) *function = py::function();
}

const std::shared_ptr<Clock>& TimeSink::clock_of(c10::Device device) {
  const auto [found, fresh] =
      clocks_.try_emplace({static_cast<int>(device.type()), device.index()});
  if (fresh && (device.is_cpu() ||
                has_clock_(py::reinterpret_steal<py::object>(THPDevice_New(device))).cast<bool>()))
    found->second = std::make_shared<Clock>(device);
  return found->second;
}

const TimeSink::Op& TimeSink::op_of(const std::string* name) {
  const auto found = ops_.find(name);
  if (found != ops_.end()) return found->second;
  const auto [brief, is_view] = op_(*name).cast<std::pair<bool, bool>>();
  return ops_[name] = {brief, is_view};
}

void TimeSink::enter(CallView& call) {
  const int64_t entered = now();
  const auto begun = std::make_shared<Begun>();
  const auto on_device = std::find_if(call.inputs.begin(), call.inputs.end(),
                                      [](const auto& input) { return !input.tensor.is_cpu(); });
  begun->row = std::make_shared<Row>(clock_of(
      on_device == call.inputs.end() ? c10::Device(c10::kCPU) : on_device->tensor.device()));
  const Op& op = op_of(call.header.op);
  Row& row = *begun->row;
  row.id = call.header.id, row.in_backward = call.header.backward;
  row.moves_nothing = op.is_view && !row.clock->is_host();
  Signature& seen = begun->seen;
  seen.brief = op.brief;
  seen.words = {reinterpret_cast<uint64_t>(call.header.op),
                reinterpret_cast<uint64_t>(call.header.module),
                reinterpret_cast<uint64_t>(call.header.site)};
  read_arguments(call.args, call.kwargs, seen);
  call.state = begun;
  cost_ += now() - entered;
  row.start = row.mark();
}

void TimeSink::returned(CallView& call) {
  auto& begun = *static_cast<Begun*>(call.state.get());
  begun.row->end = begun.row->mark();
  begun.entered = now();
  begun.row->kind = kind_of(call, begun);
}

int TimeSink::kind_of(const CallView& call, Begun& begun) {
  Signature& seen = begun.seen;
  if (seen.plain) read(call.result, seen);
  const auto known = seen.plain ? kinds_.find(seen.words) : kinds_.end();
  if (known != kinds_.end()) return known->second;
  const auto text = [](const std::string* one) { return one == nullptr ? std::string() : *one; };
  const auto handle = [](PyObject* one) { return py::handle(one); };
  const int kind =
      kind_(handle(call.function), *call.header.op, handle(call.args), handle(call.kwargs),
            handle(call.result), text(call.header.module), text(call.header.site))
          .cast<int>();
  if (seen.plain) kinds_[seen.words] = kind;
  return kind;
}

void TimeSink::follow(const CallView& call, CallRegion& region, size_t, std::shared_ptr<void>) {
  const auto& begun = *static_cast<Begun*>(call.state.get());
  if (begun.seen.brief) return;
  const auto& row = begun.row;
  row->places =
      places_.try_emplace(argument_places(region), static_cast<int>(places_.size())).first->second;
  for (const auto& [first, last, computes] : stretches_of(region)) {
    const bool on_host = row->clock->is_host(),
               may_give_on = !on_host && first == last && is_generated(*first);
    const auto timed = std::make_shared<Timed>(row, computes || on_host, may_give_on);
    row->waiting++;
    first->add_pre_hook(std::make_unique<Enter>(timed));
    if (timed->computes) last->add_post_hook(std::make_unique<Leave>(timed));
  }
}

void TimeSink::exit(CallView& call, const TensorList&) {
  const auto& begun = *static_cast<Begun*>(call.state.get());
  bool is_full = false;
  {
    std::lock_guard hold(lock_);
    rows_.push_back(begun.row);
    if (rows_.size() >= flush_at_)
      is_full = true, flush_at_ = SIZE_MAX;  // until the lines are taken
  }
  if (is_full) flush_();
  cost_ += now() - begun.entered;
}

const TimeSink::Cells& TimeSink::cells_of(const Row& row, const py::function& cells) {
  const int places = row.spans.empty() ? -1 : row.places;
  const auto [at, fresh] = cells_.try_emplace({row.kind, places});
  if (!fresh) return at->second;
  py::object own = py::none();
  for (const auto& [all, number] : places_)
    if (number == places) own = py::cast(std::vector<int>(all.begin(), all.end()));
  return at->second = cells(row.kind, own).cast<Cells>();
}

void TimeSink::append_line(const Row& row, double forward, double backward, const Cells& cells,
                           std::string& to) const {
  (to += cells.first) += ',' + std::to_string(row.id) + ',';
  append_ms(to, forward);
  to += ',';
  if (row.spans.empty()) to += '-';
  else append_ms(to, backward);
  ((to += ",ms,") += cells.second) += "\r\n";
}

py::bytes TimeSink::lines(bool everything, std::vector<Line> others, const py::function& cells) {
  std::vector<std::shared_ptr<Row>> rows, kept;
  {
    std::lock_guard hold(lock_);
    rows.swap(rows_);
  }
  struct Over {
    std::shared_ptr<Row> row;
    double forward, backward;
    const Cells* cells = nullptr;
  };
  std::vector<Over> over;
  std::string failed;
  {
    py::gil_scoped_release release;  // what a device waits for may need it
    c10::OptionalDeviceGuard on;     // else a thread of ours would begin to use the first device
    for (auto& row : rows) try {
        if (!row->clock->is_host()) on.reset_device(row->clock->device());
        std::lock_guard hold(row->lock);
        const auto reached = [&](const auto& span) { return row->clock->has_reached(span.second); };
        const bool is_over = row->complete() && row->clock->has_reached(row->end) &&
                             std::all_of(row->spans.begin(), row->spans.end(), reached);
        if (!everything && !is_over) {
          kept.push_back(std::move(row));
          continue;
        }
        double backward = 0;
        for (const auto& [from, to] : row->spans) backward += row->clock->between(from, to);
        over.push_back({row, row->clock->between(row->start, row->end), backward});
        row->release();
      } catch (const std::exception& error) {  // its events fail: the call has no line
        failed = error.what();
      }
  }
  if (!failed.empty()) problem_(failed);
  for (auto& [row, forward, backward, texts] : over) {
    texts = &cells_of(*row, cells);
    auto& [of_forward, of_backward] = sums_[row->kind];
    (row->in_backward ? of_backward : of_forward).add(forward);
    if (!row->spans.empty()) of_backward.add(backward);
  }
  std::string text;
  {
    py::gil_scoped_release release;
    for (const auto& [row, forward, backward, texts] : over)
      append_line(*row, forward, backward, *texts,
                  others.emplace_back(row->id, std::string()).second);
    std::sort(others.begin(), others.end());
    for (const auto& [id, line] : others) text += line;
  }
  std::lock_guard hold(lock_);
  rows_.insert(rows_.begin(), kept.begin(), kept.end());
  flush_at_ = std::max<size_t>(
      limit, 2 * rows_.size());  // a large graph is not gone through again for each call
  return py::bytes(text);
}

py::dict TimeSink::sums() {
  py::dict found;
  for (const auto& [kind, of] : std::exchange(sums_, {}))
    found[py::int_(kind)] = py::make_tuple(of.first.told(), of.second.told());
  return found;
}

size_t TimeSink::pending() {
  std::lock_guard hold(lock_);
  return rows_.size();
}

void TimeSink::report(PyObject*, const char* error) {
  py::gil_scoped_acquire gil;
  problem_(error);
}

void bind_time_sink(py::module_& m) {
  py::class_<TimeSink, Sink, std::shared_ptr<TimeSink>>(m, "TimeSink")
      .def(py::init<size_t, py::function, py::function, py::function, py::function, py::function>())
      .def("lines", &TimeSink::lines)
      .def("sums", &TimeSink::sums)
      .def_property_readonly("pending", &TimeSink::pending)
      .def_property_readonly("spent", &TimeSink::spent)
      .def_property(
          "limit", [](TimeSink& self) { return self.limit.load(); },
          [](TimeSink& self, size_t limit) { self.limit = limit; });
}

}  // namespace op_tools
