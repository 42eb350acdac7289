// The process group over the communicator of the chip's table: device tensors, no host back end.
//
// Operations of a group run one after the other, in a thread of its own: whoever asks for one goes
// on, and what the chip does before it returns (or on its stream) is waited for there.
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "c_call.h"
#include "core.h"
#include "dicl.h"
#include "flight.h"

namespace dipu {

bool has_communicator() {
  const auto& table = runtime();
  return table.comm_id != nullptr && table.comm_create != nullptr && table.comm_all_reduce != nullptr;
}

struct ChipWork final : Work {
  Tensors outputs;
  c10::intrusive_ptr<c10::ivalue::Future> future;
  uint64_t flight;
  std::chrono::milliseconds limit;
  std::function<void()> give_up;  // makes those that wait in the chip return

  ChipWork(int rank, OpType type, Tensors results, uint64_t number, std::chrono::milliseconds timeout)
      : Work(rank, type),
        outputs(std::move(results)),
        future(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))),
        flight(number),
        limit(timeout) {}
  void done(const std::exception_ptr& error) {
    flight_end(flight, error);
    finish(error);
    if (error) {
      future->setError(error);
    } else {
      future->markCompleted(c10::IValue(outputs));
    }
  }
  bool wait(std::chrono::milliseconds timeout) override {
    try {
      return Work::wait(timeout == kNoTimeout ? limit : timeout);
    } catch (...) {
      const bool late = !isCompleted();
      flight_end(flight, std::current_exception());
      if (late) give_up();
      throw;
    }
  }
  Tensors result() override {
    return outputs;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return future;
  }
};

struct ProcessGroupChip final : c10d::Backend {
  c10::intrusive_ptr<c10d::Store> store;
  std::chrono::milliseconds timeout;
  int device = -1;
  void* communicator = nullptr;
  void* stream = nullptr;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> jobs;
  bool closing = false, running = false;
  std::thread worker;

  ProcessGroupChip(c10::intrusive_ptr<c10d::Store> store, int rank, int size, std::chrono::milliseconds timeout)
      : c10d::Backend(rank, size), store(std::move(store)), timeout(timeout), worker([this] { work(); }) {}
  ~ProcessGroupChip() override {
    std::optional<py::gil_scoped_release> released;  // a job may need it to end
    if (Py_IsInitialized() && PyGILState_Check()) released.emplace();
    {
      std::lock_guard<std::mutex> lock(mutex);
      closing = true;
      if ((running || !jobs.empty()) && communicator != nullptr) {  // nobody will wait for it any more
        warn_if_failed(runtime().comm_abort(communicator), "comm_abort");
      }
    }
    changed.notify_all();
    worker.join();
    if (communicator != nullptr) warn_if_failed(runtime().comm_destroy(communicator), "comm_destroy");
  }
  const std::string getBackendName() const override {
    return "dicl";
  }
  void setTimeout(std::chrono::milliseconds limit) override {
    timeout = limit;
  }

  void work() {
    while (true) {
      std::function<void()> job;
      {
        std::unique_lock<std::mutex> lock(mutex);
        changed.wait(lock, [this] { return closing || !jobs.empty(); });
        if (jobs.empty()) return;
        job = std::move(jobs.front());
        jobs.pop_front();
        running = true;
      }
      job();
      job = nullptr;  // with its tensors
      std::lock_guard<std::mutex> lock(mutex);
      running = false;
    }
  }
  // In the group's thread: all processes of the group meet here the first time.
  void join(int index) {
    if (communicator != nullptr) {
      TORCH_CHECK(index == device, "dicl: this group is on dipu:", device, ", found a tensor on dipu:", index);
      return;
    }
    // whoever is missing is missed here, where waiting has an end
    if (store->add("dicl/here", 1) >= size_) store->set("dicl/all", std::vector<uint8_t>{1});
    store->wait({"dicl/all"}, timeout);
    DipuGroupId id{};
    if (rank_ == 0) {
      check(runtime().comm_id(&id), "comm_id");
      store->set("dicl/id", std::vector<uint8_t>(id.bytes, id.bytes + sizeof id.bytes));
    } else {
      const auto bytes = store->get("dicl/id");
      TORCH_CHECK(bytes.size() == sizeof id.bytes, "dicl: the store holds another kind of id");
      std::copy(bytes.begin(), bytes.end(), id.bytes);
    }
    check(runtime().stream_create(index, 0, &stream), "stream_create");
    check(runtime().comm_create(index, rank_, size_, &id, &communicator), "comm_create");
    device = index;
  }
  WorkPtr enqueue(OpType type, const Tensors& inputs, const Tensors& outputs, std::function<void()> body, int peer = -1) {
    int index = current_device();
    for (auto* list : {&inputs, &outputs}) {
      for (auto& t : *list) {
        TORCH_CHECK(on_device(t), "dicl: expected tensors on dipu, found one on ", t.device());
        index = t.device().index();
      }
    }
    index = resolve_device(index);
    auto made = c10::make_intrusive<ChipWork>(
        rank_, type, outputs, flight_begin(*this, type, inputs, outputs, peer), timeout);
    made->give_up = [this] {
      if (communicator != nullptr) warn_if_failed(runtime().comm_abort(communicator), "comm_abort");
    };
    void* current = current_stream(index);
    auto job = [this, made, inputs, index, current, body = std::move(body)] {
      std::exception_ptr error;
      try {
        at::NoGradGuard no_grad;
        c10::DeviceGuard guard(dipu_device(index));
        join(index);
        check(runtime().stream_synchronize(index, current), "stream_synchronize");
        body();
        check(runtime().stream_synchronize(index, current_stream(index)), "stream_synchronize");
      } catch (...) {
        error = std::current_exception();
      }
      made->done(error);
    };
    {
      std::lock_guard<std::mutex> lock(mutex);
      jobs.push_back(std::move(job));
    }
    changed.notify_all();
    return made;
  }

  // ---- one operation of the chip, waited for

  void call(int (*function)(const DipuCollective*), const char* name, const at::Tensor* src, at::Tensor* dst,
            int64_t count, int peer = 0, int reduction = DIPU_SUM) {
    TORCH_CHECK(function != nullptr, "dicl: the chip's table has no ", name);
    const auto& like = src != nullptr ? *src : *dst;
    DipuCollective record{};
    record.communicator = communicator;
    record.src = src != nullptr ? src->const_data_ptr() : nullptr;
    record.dst = dst != nullptr ? dst->mutable_data_ptr() : nullptr;
    record.count = static_cast<size_t>(count);
    record.dtype = c_dtype(like.scalar_type());
    record.reduction = reduction;
    record.peer = peer;
    record.stream = stream;
    check(function(&record), name);
  }
  void finish() {
    check(runtime().stream_synchronize(device, stream), "stream_synchronize");
    if (runtime().comm_query != nullptr) check(runtime().comm_query(communicator), "comm_query");
  }
  void exchange(const std::function<void()>& posts) {
    check(runtime().comm_begin(communicator), "comm_begin");
    posts();
    check(runtime().comm_end(communicator), "comm_end");
    finish();
  }
  void post_send(const at::Tensor& t, int peer) {
    call(runtime().comm_send, "comm_send", &t, nullptr, t.numel(), peer);
  }
  void post_receive(at::Tensor t, int peer) {
    call(runtime().comm_receive, "comm_receive", nullptr, &t, t.numel(), peer);
  }

  // ---- reductions

  static int reduction_of(const c10d::ReduceOp& op) {
    switch (op.op_) {
      case c10d::ReduceOp::SUM:
      case c10d::ReduceOp::PREMUL_SUM:
        return DIPU_SUM;
      case c10d::ReduceOp::AVG:
        return DIPU_AVERAGE;
      case c10d::ReduceOp::PRODUCT:
        return DIPU_PRODUCT;
      case c10d::ReduceOp::MIN:
        return DIPU_MIN;
      case c10d::ReduceOp::MAX:
        return DIPU_MAX;
      case c10d::ReduceOp::BAND:
        return DIPU_BIT_AND;
      case c10d::ReduceOp::BOR:
        return DIPU_BIT_OR;
      case c10d::ReduceOp::BXOR:
        return DIPU_BIT_XOR;
      default:
        TORCH_CHECK(false, "dicl: no such reduction");
    }
  }
  // the tensor as the chip reads it: dense, and with the factor of PREMUL_SUM in it
  static at::Tensor given(const at::Tensor& t, const c10d::ReduceOp& op) {
    check_type(t, op);
    if (op != c10d::ReduceOp::PREMUL_SUM) return t.contiguous();
    auto* supplement = static_cast<c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
    TORCH_CHECK(supplement != nullptr, "dicl: PREMUL_SUM without a factor");
    if (supplement->tensor_factor.defined()) return t.mul(supplement->tensor_factor).contiguous();
    return t.mul(supplement->double_factor).contiguous();
  }
  WorkPtr reduce_all(const Tensors& tensors, const c10d::ReduceOp& op, OpType type, int root = -1) {
    Tensors sources;
    for (auto& t : tensors) sources.push_back(given(t, op));
    const int how = reduction_of(op);
    auto body = [this, tensors, sources, how, root] {
      for (size_t i = 0; i < tensors.size(); i++) {
        auto target = at::empty_like(sources[i]);
        if (root < 0) {
          call(runtime().comm_all_reduce, "comm_all_reduce", &sources[i], &target, target.numel(), 0, how);
        } else {
          call(runtime().comm_reduce, "comm_reduce", &sources[i], &target, target.numel(), root, how);
        }
        finish();
        if (root < 0 || root == rank_) tensors[i].copy_(target);
      }
    };
    return enqueue(type, tensors, tensors, std::move(body));
  }
  WorkPtr allreduce(Tensors& t, const c10d::AllreduceOptions& o) override {
    return reduce_all(t, o.reduceOp, OpType::ALLREDUCE);
  }
  WorkPtr allreduce_coalesced(Tensors& t, const c10d::AllreduceCoalescedOptions& o) override {
    return reduce_all(t, o.reduceOp, OpType::ALLREDUCE_COALESCED);
  }
  WorkPtr reduce(Tensors& t, const c10d::ReduceOptions& o) override {
    return reduce_all(t, o.reduceOp, OpType::REDUCE, static_cast<int>(o.rootRank));
  }

  // parts of one tensor, all of a size: what each rank gives to each
  WorkPtr scatter_reduced(const Tensors& out, const Tensors& in, const c10d::ReduceOp& op, OpType type) {
    Tensors sources;
    for (size_t i = 0; i < in.size(); i++) {
      TORCH_CHECK(
          in[i].numel() == out[i].numel() * size_, "dicl: reduce_scatter divides its input among ", size_,
          " ranks, found ", in[i].numel(), " elements and an output of ", out[i].numel());
      sources.push_back(given(in[i], op));
    }
    const int how = reduction_of(op);
    auto body = [this, out, sources, how] {
      for (size_t i = 0; i < out.size(); i++) {
        auto target = at::empty({out[i].numel()}, out[i].options());
        call(runtime().comm_reduce_scatter, "comm_reduce_scatter", &sources[i], &target, target.numel(), 0, how);
        finish();
        out[i].copy_(target.view(out[i].sizes()));
      }
    };
    return enqueue(type, in, out, std::move(body));
  }
  WorkPtr reduce_scatter(Tensors& out, TensorLists& in, const c10d::ReduceScatterOptions& o) override {
    Tensors whole;
    for (auto& list : in) whole.push_back(at::cat(line(list)));
    return scatter_reduced(out, whole, o.reduceOp, OpType::REDUCE_SCATTER);
  }
  WorkPtr _reduce_scatter_base(at::Tensor& out, at::Tensor& in, const c10d::ReduceScatterOptions& o) override {
    return scatter_reduced({out}, {in}, o.reduceOp, OpType::_REDUCE_SCATTER_BASE);
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& out, Tensors& in, const c10d::ReduceScatterOptions& o) override {
    return scatter_reduced(out, in, o.reduceOp, OpType::COALESCED);
  }

  // ---- from one to all, from all to all

  WorkPtr broadcast(Tensors& t, const c10d::BroadcastOptions& o) override {
    Tensors dense;
    for (auto& one : t) dense.push_back(one.contiguous());
    const int root = static_cast<int>(o.rootRank);
    auto body = [this, tensors = t, dense, root]() mutable {
      for (size_t i = 0; i < tensors.size(); i++) {
        call(runtime().comm_broadcast, "comm_broadcast", &dense[i], &dense[i], dense[i].numel(), root);
        finish();
        if (!dense[i].is_same(tensors[i])) tensors[i].copy_(dense[i]);
      }
    };
    return enqueue(OpType::BROADCAST, t, t, std::move(body));
  }
  // `place` takes what all gave, as one line, where it belongs
  WorkPtr gather_all(
      const Tensors& in, const Tensors& out, OpType type, std::function<void(size_t, const at::Tensor&)> place) {
    Tensors dense;
    for (auto& one : in) dense.push_back(one.contiguous());
    auto body = [this, dense, place = std::move(place)] {
      for (size_t i = 0; i < dense.size(); i++) {
        auto whole = at::empty({dense[i].numel() * size_}, dense[i].options());
        call(runtime().comm_all_gather, "comm_all_gather", &dense[i], &whole, dense[i].numel());
        finish();
        place(i, whole);
      }
    };
    return enqueue(type, in, out, std::move(body));
  }
  WorkPtr allgather(TensorLists& out, Tensors& in, const c10d::AllgatherOptions& o) override {
    auto place = [this, out](size_t i, const at::Tensor& whole) {
      auto parts = whole.view({size_, -1});
      for (int r = 0; r < size_; r++) out[i][r].copy_(parts[r].view(out[i][r].sizes()));
    };
    return gather_all(in, flat(out), OpType::ALLGATHER, place);
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& out, Tensors& in, const c10d::AllgatherOptions& o) override {
    auto place = [out](size_t i, const at::Tensor& whole) { out[i].copy_(whole.view(out[i].sizes())); };
    return gather_all(in, out, OpType::COALESCED, place);
  }
  WorkPtr _allgather_base(at::Tensor& out, at::Tensor& in, const c10d::AllgatherOptions& o) override {
    auto place = [out](size_t, const at::Tensor& whole) { out.copy_(whole.view(out.sizes())); };
    return gather_all({in}, {out}, OpType::_ALLGATHER_BASE, place);
  }

  // what goes to each rank and comes from each; an undefined tensor: nothing
  WorkPtr exchange_all(const Tensors& out, const Tensors& in, const Tensors& all_in, const Tensors& all_out, OpType type) {
    Tensors sources, targets;
    for (auto& t : in) sources.push_back(t.defined() ? t.contiguous() : t);
    auto body = [this, out, sources] {
      Tensors staged;
      for (auto& t : out) staged.push_back(t.defined() ? at::empty(t.sizes(), t.options()) : t);
      if (sources[rank_].defined() && staged[rank_].defined()) staged[rank_].copy_(sources[rank_].view(staged[rank_].sizes()));
      check(runtime().stream_synchronize(device, current_stream(device)), "stream_synchronize");
      exchange([&] {
        for (int r = 0; r < size_; r++) {
          if (r == rank_) continue;
          if (sources[r].defined() && sources[r].numel() > 0) post_send(sources[r], r);
          if (staged[r].defined() && staged[r].numel() > 0) post_receive(staged[r], r);
        }
      });
      for (size_t r = 0; r < out.size(); r++) {
        if (out[r].defined()) out[r].copy_(staged[r]);
      }
    };
    return enqueue(type, all_in, all_out, std::move(body));
  }
  WorkPtr alltoall(Tensors& out, Tensors& in, const c10d::AllToAllOptions& o) override {
    return exchange_all(out, in, in, out, OpType::ALLTOALL);
  }
  WorkPtr alltoall_base(
      at::Tensor& out, at::Tensor& in, std::vector<int64_t>& out_sizes, std::vector<int64_t>& in_sizes,
      const c10d::AllToAllOptions& o) override {
    const auto parts = [this](const at::Tensor& t, const std::vector<int64_t>& sizes) {
      if (!sizes.empty()) return t.split_with_sizes(sizes);
      TORCH_CHECK(t.size(0) % size_ == 0, "dicl: all_to_all divides dimension 0 among ", size_, " ranks, found ", t.size(0));
      return t.split_with_sizes(std::vector<int64_t>(size_, t.size(0) / size_));
    };
    return exchange_all(parts(out, out_sizes), parts(in, in_sizes), {in}, {out}, OpType::ALLTOALL_BASE);
  }
  WorkPtr gather(TensorLists& out, Tensors& in, const c10d::GatherOptions& o) override {
    Tensors to(size_), from(size_);
    to[o.rootRank] = in[0];
    if (rank_ == o.rootRank) from = out[0];
    return exchange_all(from, to, in, flat(out), OpType::GATHER);
  }
  WorkPtr scatter(Tensors& out, TensorLists& in, const c10d::ScatterOptions& o) override {
    Tensors to(size_), from(size_);
    from[o.rootRank] = out[0];
    if (rank_ == o.rootRank) to = in[0];
    return exchange_all(from, to, flat(in), out, OpType::SCATTER);
  }

  // ---- from one to one

  WorkPtr send(Tensors& t, int destination, int) override {
    auto dense = t[0].contiguous();
    auto body = [this, dense, destination] { exchange([&] { post_send(dense, destination); }); };
    return enqueue(OpType::SEND, t, {}, std::move(body), destination);
  }
  WorkPtr recv(Tensors& t, int source, int) override {
    auto body = [this, target = t[0], source] {
      auto staged = at::empty(target.sizes(), target.options());
      exchange([&] { post_receive(staged, source); });
      target.copy_(staged);
    };
    return enqueue(OpType::RECV, {}, t, std::move(body), source);
  }
  WorkPtr barrier(const c10d::BarrierOptions& o) override {
    const int index = o.device_ids.empty() ? current_device() : static_cast<int>(o.device_ids[0]);
    Tensors one = {at::ones({1}, at::TensorOptions().dtype(at::kInt).device(dipu_device(index)))};
    auto body = [this, one]() mutable {
      auto target = at::empty_like(one[0]);
      call(runtime().comm_all_reduce, "comm_all_reduce", &one[0], &target, 1);
      finish();
    };
    return enqueue(OpType::BARRIER, one, {}, std::move(body));
  }
};

c10::intrusive_ptr<c10d::Backend> make_chip_group(
    c10::intrusive_ptr<c10d::Store> store, int rank, int size, std::chrono::milliseconds timeout) {
  return c10::make_intrusive<ProcessGroupChip>(std::move(store), rank, size, timeout);
}

}  // namespace dipu
