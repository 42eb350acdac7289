// SPDX-License-Identifier: Apache-2.0
// The process group of the device: collectives of a host backend, run on the device's own bytes.
#include <array>
#include <functional>
#include <optional>

#include <c10/core/Event.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include "distributed/collective_log.h"
#include "distributed/dicl.h"
#include "distributed/group_tensors.h"
#include "graphs/capture.h"
#include "runtime/core.h"

namespace dipu {

// The host's work, with the device's tensors as its result (DDP reads them from the future).
struct DeviceWork final : Work {
  WorkPtr inner;
  Tensors outputs;
  c10::intrusive_ptr<c10::ivalue::Future> future;
  bool must_finish;
  uint64_t flight = 0;

  // `finish` runs once, in the thread that completes the host's work, before any waiter is notified.
  DeviceWork(WorkPtr work, Tensors results, int rank, OpType type, std::function<void()> finish)
      : Work(rank, type),
        inner(std::move(work)),
        outputs(std::move(results)),
        must_finish(finish != nullptr) {
    if (must_finish) future = then(std::move(finish));
  }
  bool isCompleted() override {
    return inner->isCompleted() && (!must_finish || future->completed());
  }
  bool isSuccess() const override {
    return inner->isSuccess() && !(must_finish && future->hasError());
  }
  std::exception_ptr exception() const override {
    if (must_finish && future->hasError()) return future->exception_ptr();
    return inner->exception();
  }
  bool wait(std::chrono::milliseconds timeout) override {
    try {
      const bool done = inner->wait(timeout);
      if (must_finish) future->waitAndThrow();
      flight_end(flight, nullptr);
      return done;
    } catch (...) {
      flight_end(flight, std::current_exception());
      throw;
    }
  }
  uint64_t getCompletionKey() const {  // not in torch 2.13: no override
    return flight;
  }
  // Records the end of operations without a waiter: DDP uses the future, and no one waits in a hang.
  void follow(uint64_t number) {
    flight = number;
    const auto type = opType_;
    if (number == 0 || type == OpType::SEND || type == OpType::RECV || type == OpType::RECVANYSOURCE) return;
    inner->getFuture()->addCallback([number](c10::ivalue::Future& done) {
      flight_end(number, done.hasError() ? done.exception_ptr() : nullptr);
    });
  }
  void synchronize() override {
    inner->synchronize();
    if (must_finish) future->waitAndThrow();
  }
  int sourceRank() const override {
    return inner->sourceRank();
  }
  void abort() override {
    inner->abort();
  }
  Tensors result() override {
    return outputs;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    if (future == nullptr) future = then(nullptr);
    return future;
  }
  c10::intrusive_ptr<c10::ivalue::Future> then(std::function<void()> finish) {
    return inner->getFuture()->then(
        [results = outputs, finish = std::move(finish)](c10::ivalue::Future& done) {
          if (done.hasError()) std::rethrow_exception(done.exception_ptr());
          if (finish) finish();
          return c10::IValue(results);
        },
        c10::ListType::create(c10::TensorType::get()));
  }
};

static at::Tensor host(const at::Tensor& t) {
  if (!on_device(t)) return t;
  const int device = t.device().index();
  TORCH_CHECK(host_reachable(device), "dicl: the host cannot reach the memory of dipu:", device);
  refuse_in_capture(device, current_stream(device), "a collective");
  check(runtime().stream_synchronize(device, current_stream(device)), "stream_synchronize");
  return alias_host(t);
}
static Tensors host(const Tensors& all) {
  Tensors result;
  for (auto& t : all) result.push_back(host(t));
  return result;
}
static TensorLists host(const TensorLists& all) {
  TensorLists result;
  for (auto& t : all) result.push_back(host(t));
  return result;
}
// A reduction as the host backend runs it. A backend may lack AVG and PREMUL_SUM: these are a SUM
// with a division after or a product before. Half types are reduced in float32 and rounded once.
struct Reduction {
  c10d::ReduceOp asked, op;
  std::optional<double> factor;  // of PREMUL_SUM
  int64_t divisor = 0;           // of AVG, else 0

  Reduction(const c10d::ReduceOp& wanted, int size) : asked(wanted), op(wanted) {
    if (asked == c10d::ReduceOp::AVG) {
      divisor = size;
    } else if (asked == c10d::ReduceOp::PREMUL_SUM) {
      // the name in torch 2.11; later versions have it as an alias
      auto* supplement = static_cast<c10d::NCCLPreMulSumSupplement*>(asked.supplement_.get());
      TORCH_CHECK(supplement != nullptr, "dicl: PREMUL_SUM without a factor");
      auto& tensor = supplement->tensor_factor;
      factor = tensor.defined() ? host(tensor).item().toDouble() : supplement->double_factor;
    } else {
      return;
    }
    op = c10d::ReduceOp(c10d::ReduceOp::SUM);
  }

  static at::ScalarType wide(const at::Tensor& t) {
    if (c10::isReducedFloatingType(t.scalar_type())) return at::kFloat;
    return t.scalar_type() == at::kShort ? at::kInt : t.scalar_type();
  }
  // returns the input of the backend; a copy where `kept` requires that the tensor is not modified
  at::Tensor input(const at::Tensor& t, bool kept) const {
    check_type(t, asked);
    if (factor) return t.to(wide(t)).mul(*factor);
    return t.to(wide(t), /*non_blocking=*/false, /*copy=*/kept);
  }
  Tensors input(const Tensors& all, bool kept) const {
    Tensors result;
    for (auto& t : all) result.push_back(input(t, kept));
    return result;
  }
  // copies the backend's results to the device's bytes, unless they are there already
  std::function<void()> finish(const Tensors& results, const Tensors& written) const {
    bool in_place = divisor == 0;
    for (size_t i = 0; i < results.size(); ++i) in_place &= results[i].is_same(written[i]);
    if (in_place) return nullptr;
    return [results, written, divisor = divisor] {
      at::NoGradGuard no_grad;  // this thread may be the backend's own
      for (size_t i = 0; i < results.size(); ++i) {
        auto value = written[i];
        if (divisor != 0 && at::isIntegralType(value.scalar_type(), /*includeBool=*/false)) {
          value.div_(divisor, "trunc");
        } else if (divisor != 0) {
          value.div_(divisor);
        }
        if (!results[i].is_same(value)) results[i].copy_(value);
      }
    };
  }
};

struct ProcessGroupDICL final : LoggedBackend {
  c10::intrusive_ptr<c10d::Backend> inner;

  explicit ProcessGroupDICL(c10::intrusive_ptr<c10d::Backend> backend)
      : LoggedBackend(backend->getRank(), backend->getSize()), inner(std::move(backend)) {}
  const std::string getBackendName() const override {
    return "dicl";
  }
  void setTimeout(std::chrono::milliseconds timeout) override {
    inner->setTimeout(timeout);
  }
  WorkPtr wrap(
      WorkPtr work, Tensors outputs, OpType type, std::function<void()> finish = nullptr, const Tensors& inputs = {},
      int peer = -1) {
    const auto number = flight_begin(*this, type, inputs, outputs, peer);
    auto made = c10::make_intrusive<DeviceWork>(std::move(work), std::move(outputs), rank_, type, std::move(finish));
    made->follow(number);
    return made;
  }

  // one tensor list, read and written
#define DIPU_IN_PLACE(method, Options, type)                        \
  WorkPtr method(Tensors& t, const c10d::Options& o) override {     \
    auto on_host = host(t);                                         \
    return wrap(inner->method(on_host, o), t, OpType::type);        \
  }
  DIPU_IN_PLACE(broadcast, BroadcastOptions, BROADCAST)
#undef DIPU_IN_PLACE

  // reductions of one tensor list; tensors of ranks that do not receive the result are unchanged
#define DIPU_REDUCE(method, Options, type, receives)                                          \
  WorkPtr method(Tensors& t, const c10d::Options& o) override {                               \
    const Reduction reduction(o.reduceOp, size_);                                             \
    auto on_host = host(t);                                                                   \
    auto written = reduction.input(on_host, !(receives));                                     \
    auto options = o;                                                                         \
    options.reduceOp = reduction.op;                                                          \
    auto work = inner->method(written, options);                                              \
    return wrap(work, t, OpType::type, (receives) ? reduction.finish(on_host, written) : nullptr); \
  }
  DIPU_REDUCE(allreduce, AllreduceOptions, ALLREDUCE, true)
  DIPU_REDUCE(allreduce_coalesced, AllreduceCoalescedOptions, ALLREDUCE_COALESCED, true)
  DIPU_REDUCE(reduce, ReduceOptions, REDUCE, o.rootRank == rank_)
#undef DIPU_REDUCE

  // an output and an input
#define DIPU_OUT_IN(method, Out, In, Options, type)                               \
  WorkPtr method(Out& out, In& in, const c10d::Options& o) override {             \
    auto host_out = host(out);                                                    \
    auto host_in = host(in);                                                      \
    auto work = inner->method(host_out, host_in, o);                              \
    return wrap(work, flat(out), OpType::type, nullptr, flat(in));                \
  }
  DIPU_OUT_IN(allgather, TensorLists, Tensors, AllgatherOptions, ALLGATHER)
  DIPU_OUT_IN(allgather_into_tensor_coalesced, Tensors, Tensors, AllgatherOptions, COALESCED)
  DIPU_OUT_IN(gather, TensorLists, Tensors, GatherOptions, GATHER)
  DIPU_OUT_IN(scatter, Tensors, TensorLists, ScatterOptions, SCATTER)
  DIPU_OUT_IN(alltoall, Tensors, Tensors, AllToAllOptions, ALLTOALL)
#undef DIPU_OUT_IN

  // flattened: the accelerator's contract is about element counts, the host backend checks dimension 0
  WorkPtr _allgather_base(at::Tensor& out, at::Tensor& in, const c10d::AllgatherOptions& o) override {
    auto host_out = line(host(out)), host_in = line(host(in));
    return wrap(inner->_allgather_base(host_out, host_in, o), {out}, OpType::_ALLGATHER_BASE, nullptr, {in});
  }

  // one allreduce of everything, of which each rank keeps its parts: the host backend's own
  // reduce_scatter cannot be polled, has no future, and reduces everything, too
  WorkPtr scatter_reduced(
      const Tensors& out, const TensorLists& parts, const c10d::ReduceScatterOptions& o, OpType type) {
    const Reduction reduction(o.reduceOp, size_);
    Tensors pieces, kept;
    for (auto& list : parts) {
      TORCH_CHECK(list.size() == size_t(size_), "dicl: reduce_scatter needs ", size_, " parts, found ", list.size());
      for (auto& part : list) pieces.push_back(reduction.input(line(host(part)), /*kept=*/false));
    }
    Tensors whole = {at::cat(pieces)};
    auto all = whole[0].split_with_sizes([&] {
      std::vector<int64_t> sizes;
      for (auto& piece : pieces) sizes.push_back(piece.numel());
      return sizes;
    }());
    for (size_t i = 0; i < parts.size(); ++i) kept.push_back(all[i * size_ + rank_]);
    auto results = line(host(out));
    for (size_t i = 0; i < results.size(); ++i) {
      TORCH_CHECK(
          results[i].numel() == kept[i].numel(), "dicl: reduce_scatter gives ", kept[i].numel(),
          " elements to this rank, found an output of ", results[i].numel());
    }
    c10d::AllreduceOptions options;
    options.reduceOp = reduction.op;
    options.timeout = o.timeout;
    options.asyncOp = o.asyncOp;
    return wrap(inner->allreduce(whole, options), out, type, reduction.finish(results, kept), flat(parts));
  }
  Tensors parts(const at::Tensor& in) {
    TORCH_CHECK(
        in.numel() % size_ == 0, "dicl: reduce_scatter divides its input among ", size_, " ranks, found ",
        in.numel(), " elements");
    return in.numel() == 0 ? Tensors(size_, line(in)) : line(in).chunk(size_);
  }
  WorkPtr reduce_scatter(Tensors& out, TensorLists& in, const c10d::ReduceScatterOptions& o) override {
    return scatter_reduced(out, in, o, OpType::REDUCE_SCATTER);
  }
  WorkPtr _reduce_scatter_base(at::Tensor& out, at::Tensor& in, const c10d::ReduceScatterOptions& o) override {
    return scatter_reduced({out}, {parts(in)}, o, OpType::_REDUCE_SCATTER_BASE);
  }
  WorkPtr reduce_scatter_tensor_coalesced(
      Tensors& out, Tensors& in, const c10d::ReduceScatterOptions& o) override {
    TensorLists all;
    for (auto& t : in) all.push_back(parts(t));
    return scatter_reduced(out, all, o, OpType::COALESCED);
  }

  WorkPtr alltoall_base(
      at::Tensor& out, at::Tensor& in, std::vector<int64_t>& out_sizes, std::vector<int64_t>& in_sizes,
      const c10d::AllToAllOptions& o) override {
    auto host_out = host(out), host_in = host(in);
    auto work = inner->alltoall_base(host_out, host_in, out_sizes, in_sizes, o);
    return wrap(work, {out}, OpType::ALLTOALL_BASE, nullptr, {in});
  }
  WorkPtr send(Tensors& t, int destination, int tag) override {
    auto on_host = host(t);
    return wrap(inner->send(on_host, destination, tag), {}, OpType::SEND, nullptr, t, destination);
  }
  WorkPtr recv(Tensors& t, int source, int tag) override {
    auto on_host = host(t);
    return wrap(inner->recv(on_host, source, tag), t, OpType::RECV, nullptr, {}, source);
  }
  WorkPtr recvAnysource(Tensors& t, int tag) override {
    auto on_host = host(t);
    return wrap(inner->recvAnysource(on_host, tag), t, OpType::RECVANYSOURCE);
  }
  WorkPtr barrier(const c10d::BarrierOptions& o) override {
    auto options = o;
    options.device_ids.clear();  // the host backend has no devices
    return wrap(inner->barrier(options), {}, OpType::BARRIER);
  }
  void setSequenceNumberForGroup() override {
    inner->setSequenceNumberForGroup();
  }
  uint64_t getSequenceNumberForGroup() override {
    return inner->getSequenceNumberForGroup();
  }
};

c10::intrusive_ptr<c10d::Backend> make_process_group(c10::intrusive_ptr<c10d::Backend> host_backend) {
  return c10::make_intrusive<ProcessGroupDICL>(std::move(host_backend));
}

// DDP's clock: events of the device's current stream, read when DDP logs
struct DeviceTimer final : c10d::Timer {
  c10::Device device;
  std::array<std::optional<c10::Event>, 5> events;

  explicit DeviceTimer(c10::Device device) : device(device) {}
  void record(Event event) override {
    Timer::record(event);  // the host's time, which DDP shows, too
    auto& mark = events[static_cast<size_t>(event)].emplace(kDipu, c10::EventFlag::BACKEND_DEFAULT);
    mark.record(c10::impl::VirtualGuardImpl(kDipu).getStream(device));
  }
  std::optional<int64_t> measureDifference(Event start, Event end) override {
    auto& first = events[static_cast<size_t>(start)];
    auto& last = events[static_cast<size_t>(end)];
    if (!first || !last) return std::nullopt;  // no backward pass yet, or one under no_sync
    first->synchronize();
    last->synchronize();
    const double milliseconds = first->elapsedTime(*last);
    if (milliseconds < 0) return std::nullopt;
    return static_cast<int64_t>(milliseconds * 1e6);
  }
};

}  // namespace dipu

namespace c10d {
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kPrivateUse1, dipu::DeviceTimer)
}  // namespace c10d
