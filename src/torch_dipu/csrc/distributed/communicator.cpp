// SPDX-License-Identifier: Apache-2.0
// The process group over the communicator of the chip's table: device tensors, no host backend.
#include <optional>
#include <utility>

#include <ATen/ATen.h>

#include "distributed/chip_queue.h"
#include "distributed/dicl.h"
#include "routes/c_call.h"
#include "runtime/core.h"

namespace dipu {

bool has_communicator() {
  const auto& table = runtime();
  return table.comm_id != nullptr && table.comm_create != nullptr && table.comm_all_reduce != nullptr;
}

static const char* const kReductions[] = {"sum", "product", "min", "max", "average", "bit_and", "bit_or", "bit_xor"};

struct ProcessGroupChip final : ChipQueue {
  using ChipQueue::ChipQueue;

  // ---- one operation of the chip, synchronously

  static constexpr int kMoves = -1;  // a move instead of a reduction

  void call(int (*function)(const DipuCollective*), const char* name, const at::Tensor* src, at::Tensor* dst,
            int64_t count, int peer = 0, int reduction = kMoves) {
    TORCH_CHECK(function != nullptr, "dicl: the chip's table has no ", name);
    const auto& like = src != nullptr ? *src : *dst;
    DipuCollective record{};
    record.communicator = communicator.load();
    record.src = src != nullptr ? src->const_data_ptr() : nullptr;
    record.dst = dst != nullptr ? dst->mutable_data_ptr() : nullptr;
    record.count = static_cast<size_t>(count);
    record.dtype = c_dtype(like.scalar_type());
    // a move needs no arithmetic: copy as bytes
    if (record.dtype == diopi_dtype_unsupported && reduction == kMoves) {
      record.dtype = diopi_dtype_uint8;
      record.count *= like.itemsize();
    }
    record.reduction = reduction == kMoves ? DIPU_SUM : reduction;
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
  // Returns the tensor as the chip reads it: dense, and multiplied by the factor of PREMUL_SUM.
  static at::Tensor given(const at::Tensor& t, const c10d::ReduceOp& op) {
    check_type(t, op);
    if (op != c10d::ReduceOp::PREMUL_SUM) return t.contiguous();
    auto* supplement = static_cast<c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
    TORCH_CHECK(supplement != nullptr, "dicl: PREMUL_SUM without a factor");
    if (supplement->tensor_factor.defined()) return t.mul(supplement->tensor_factor).contiguous();
    return t.mul(supplement->double_factor).contiguous();
  }
  WorkPtr reduce_all(const Tensors& tensors, const c10d::ReduceOp& op, OpType type, std::chrono::milliseconds limit, int root = -1) {
    Tensors sources;
    for (auto& t : tensors) sources.push_back(given(t, op));
    const int how = reduction_of(op);
    auto body = [this, tensors, sources, how, root] {
      for (size_t i = 0; i < tensors.size(); i++) {
        const bool in_place = root < 0 && sources[i].is_same(tensors[i]);
        auto target = in_place ? tensors[i] : at::empty_like(sources[i]);
        if (root < 0) {
          call(runtime().comm_all_reduce, "comm_all_reduce", &sources[i], &target, target.numel(), 0, how);
        } else {
          call(runtime().comm_reduce, "comm_reduce", &sources[i], &target, target.numel(), root, how);
        }
        finish();
        if (!in_place && (root < 0 || root == rank_)) tensors[i].copy_(target);
      }
    };
    return enqueue({type, tensors, tensors, std::move(body), -1, kReductions[how], limit});
  }
  WorkPtr allreduce(Tensors& t, const c10d::AllreduceOptions& o) override {
    return reduce_all(t, o.reduceOp, OpType::ALLREDUCE, o.timeout);
  }
  WorkPtr allreduce_coalesced(Tensors& t, const c10d::AllreduceCoalescedOptions& o) override {
    return reduce_all(t, o.reduceOp, OpType::ALLREDUCE_COALESCED, o.timeout);
  }
  WorkPtr reduce(Tensors& t, const c10d::ReduceOptions& o) override {
    return reduce_all(t, o.reduceOp, OpType::REDUCE, o.timeout, static_cast<int>(o.rootRank));
  }

  // equal parts of one tensor, one for each rank
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
    return enqueue({type, in, out, std::move(body), -1, kReductions[how]});
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
    return enqueue({OpType::BROADCAST, t, t, std::move(body)});
  }
  // `place` copies the gathered parts, one contiguous line, to their destination
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
    return enqueue({type, in, out, std::move(body)});
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

  // exchanges one tensor with each rank; an undefined tensor: nothing
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
    return enqueue({type, all_in, all_out, std::move(body)});
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

  struct Message {
    at::Tensor dense, target;  // one of the two is set
    int peer;
  };
  // Messages between start and end are collected and run together, so that their order does not matter.
  struct Batch {
    std::vector<Message> messages;
    Tensors sent, received;
    ChipWorkPtr work;
  };
  std::optional<Batch> batch;

  bool supportsCoalescing() const override {
    return true;
  }
  void startCoalescing() override {
    TORCH_CHECK(!batch, "dicl: coalescing has begun already");
    batch.emplace().work = make_work({OpType::UNKNOWN});
  }
  WorkPtr endCoalescing() override {
    TORCH_CHECK(batch, "dicl: coalescing ends that has not begun");
    auto [messages, sent, received, work] = *std::exchange(batch, std::nullopt);
    work->outputs = received;
    enqueue({OpType::UNKNOWN, sent, received, [this, messages = messages] { pass(messages); }}, work);
    return work;
  }
  WorkPtr post(OpType type, const at::Tensor& t, Message message) {
    const bool sends = type == OpType::SEND;
    ChipCall call{type, sends ? Tensors{t} : Tensors{}, sends ? Tensors{} : Tensors{t}};
    call.peer = message.peer;
    if (batch) {
      announce(call, *batch->work);
      batch->messages.push_back(std::move(message));
      (sends ? batch->sent : batch->received).push_back(t);
      return batch->work;
    }
    call.body = [this, message] { pass({message}); };
    return enqueue(std::move(call));
  }
  void pass(const std::vector<Message>& messages) {
    Tensors staged;
    for (auto& m : messages) staged.push_back(m.target.defined() ? at::empty(m.target.sizes(), m.target.options()) : m.dense);
    exchange([&] {
      for (size_t i = 0; i < messages.size(); i++) {
        if (messages[i].target.defined()) post_receive(staged[i], messages[i].peer);
        else post_send(staged[i], messages[i].peer);
      }
    });
    for (size_t i = 0; i < messages.size(); i++) {
      if (messages[i].target.defined()) messages[i].target.copy_(staged[i]);
    }
  }

  WorkPtr send(Tensors& t, int destination, int) override {
    return post(OpType::SEND, t[0], {t[0].contiguous(), {}, destination});
  }
  WorkPtr recv(Tensors& t, int source, int) override {
    return post(OpType::RECV, t[0], {{}, t[0], source});
  }
  WorkPtr recvAnysource(Tensors& t, int) override {
    TORCH_CHECK(runtime().comm_probe != nullptr, "dicl: the chip's table has no comm_probe: it cannot receive from any rank");
    ChipCall call{OpType::RECVANYSOURCE, {}, t};
    auto work = make_work(call);
    announce(call, *work);
    call.body = [this, target = t[0], work] {
      work->source = sender();
      pass({{{}, target, work->source}});
    };
    enqueue(std::move(call), work);
    return work;
  }
  int sender() {
    int source = -1, code = DIPU_NOT_READY;
    while ((code = runtime().comm_probe(communicator, &source)) == DIPU_NOT_READY) {
      TORCH_CHECK(!is_closing(), "the group was left");
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    check(code, "comm_probe");
    return source;
  }
  WorkPtr barrier(const c10d::BarrierOptions& o) override {
    const int index = o.device_ids.empty() ? current_device() : static_cast<int>(o.device_ids[0]);
    Tensors one = {at::ones({1}, at::TensorOptions().dtype(at::kInt).device(dipu_device(index)))};
    auto body = [this, one]() mutable {
      auto target = at::empty_like(one[0]);
      call(runtime().comm_all_reduce, "comm_all_reduce", &one[0], &target, 1, 0, DIPU_SUM);
      finish();
    };
    return enqueue({OpType::BARRIER, one, {}, std::move(body), -1, "", o.timeout});
  }
};

c10::intrusive_ptr<c10d::Backend> make_chip_group(
    c10::intrusive_ptr<c10d::Store> store, int rank, int size, std::chrono::milliseconds timeout) {
  auto group = c10::make_intrusive<ProcessGroupChip>(std::move(store), rank, size, timeout);
  ChipQueue::remember(group);
  return group;
}

}  // namespace dipu
