// The process group of the device: collectives of a host backend, run on the device's own bytes.
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "core.h"
#include "dicl.h"

namespace dipu {

using c10d::OpType;
using c10d::Work;
using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<Tensors>;
using WorkPtr = c10::intrusive_ptr<Work>;

// The host's work, with the device's tensors as its result (DDP takes them from the future).
struct DeviceWork final : Work {
  WorkPtr inner;
  Tensors outputs;
  c10::intrusive_ptr<c10::ivalue::Future> future;

  DeviceWork(WorkPtr work, Tensors results, int rank, OpType type)
      : Work(rank, type), inner(std::move(work)), outputs(std::move(results)) {}
  bool isCompleted() override {
    return inner->isCompleted();
  }
  bool isSuccess() const override {
    return inner->isSuccess();
  }
  std::exception_ptr exception() const override {
    return inner->exception();
  }
  bool wait(std::chrono::milliseconds timeout) override {
    return inner->wait(timeout);
  }
  void synchronize() override {
    inner->synchronize();
  }
  Tensors result() override {
    return outputs;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    if (future == nullptr) {
      future = inner->getFuture()->then(
          [results = outputs](c10::ivalue::Future& done) {
            if (done.hasError()) std::rethrow_exception(done.exception_ptr());
            return c10::IValue(results);
          },
          c10::ListType::create(c10::TensorType::get()));
    }
    return future;
  }
};

static at::Tensor host(const at::Tensor& t) {
  if (!on_device(t)) return t;
  const int device = t.device().index();
  TORCH_CHECK(host_reachable(device), "dicl: the host cannot reach the memory of dipu:", device);
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
static Tensors flat(const TensorLists& all) {
  Tensors result;
  for (auto& list : all) result.insert(result.end(), list.begin(), list.end());
  return result;
}
static Tensors flat(const Tensors& all) {
  return all;
}
static Tensors flat(const at::Tensor& one) {
  return {one};
}

struct ProcessGroupDICL final : c10d::Backend {
  c10::intrusive_ptr<c10d::Backend> inner;

  explicit ProcessGroupDICL(c10::intrusive_ptr<c10d::Backend> backend)
      : c10d::Backend(backend->getRank(), backend->getSize()), inner(std::move(backend)) {}
  const std::string getBackendName() const override {
    return "dicl";
  }
  void setTimeout(std::chrono::milliseconds timeout) override {
    inner->setTimeout(timeout);
  }
  WorkPtr wrap(WorkPtr work, Tensors outputs, OpType type) {
    return c10::make_intrusive<DeviceWork>(std::move(work), std::move(outputs), rank_, type);
  }

  // one tensor list, read and written
#define DIPU_IN_PLACE(method, Options, type)                        \
  WorkPtr method(Tensors& t, const c10d::Options& o) override {     \
    auto on_host = host(t);                                         \
    return wrap(inner->method(on_host, o), t, OpType::type);        \
  }
  DIPU_IN_PLACE(broadcast, BroadcastOptions, BROADCAST)
  DIPU_IN_PLACE(allreduce, AllreduceOptions, ALLREDUCE)
  DIPU_IN_PLACE(allreduce_coalesced, AllreduceCoalescedOptions, ALLREDUCE_COALESCED)
  DIPU_IN_PLACE(reduce, ReduceOptions, REDUCE)
#undef DIPU_IN_PLACE

  // an output and an input
#define DIPU_OUT_IN(method, Out, In, Options, type)                               \
  WorkPtr method(Out& out, In& in, const c10d::Options& o) override {             \
    auto host_out = host(out);                                                    \
    auto host_in = host(in);                                                      \
    return wrap(inner->method(host_out, host_in, o), flat(out), OpType::type);    \
  }
  DIPU_OUT_IN(allgather, TensorLists, Tensors, AllgatherOptions, ALLGATHER)
  DIPU_OUT_IN(allgather_into_tensor_coalesced, Tensors, Tensors, AllgatherOptions, COALESCED)
  DIPU_OUT_IN(reduce_scatter_tensor_coalesced, Tensors, Tensors, ReduceScatterOptions, COALESCED)
  DIPU_OUT_IN(reduce_scatter, Tensors, TensorLists, ReduceScatterOptions, REDUCE_SCATTER)
  DIPU_OUT_IN(gather, TensorLists, Tensors, GatherOptions, GATHER)
  DIPU_OUT_IN(scatter, Tensors, TensorLists, ScatterOptions, SCATTER)
  DIPU_OUT_IN(alltoall, Tensors, Tensors, AllToAllOptions, ALLTOALL)
#undef DIPU_OUT_IN

  // flat: the accelerator's contract is about element counts, the host backend looks at dimension 0
  WorkPtr _allgather_base(at::Tensor& out, at::Tensor& in, const c10d::AllgatherOptions& o) override {
    auto host_out = host(out).view({-1}), host_in = host(in).view({-1});
    return wrap(inner->_allgather_base(host_out, host_in, o), {out}, OpType::_ALLGATHER_BASE);
  }
  WorkPtr _reduce_scatter_base(at::Tensor& out, at::Tensor& in, const c10d::ReduceScatterOptions& o) override {
    auto host_out = host(out).view({-1}), host_in = host(in).view({-1});
    return wrap(inner->_reduce_scatter_base(host_out, host_in, o), {out}, OpType::_REDUCE_SCATTER_BASE);
  }
  WorkPtr alltoall_base(
      at::Tensor& out, at::Tensor& in, std::vector<int64_t>& out_sizes, std::vector<int64_t>& in_sizes,
      const c10d::AllToAllOptions& o) override {
    auto host_out = host(out), host_in = host(in);
    return wrap(inner->alltoall_base(host_out, host_in, out_sizes, in_sizes, o), {out}, OpType::ALLTOALL_BASE);
  }
  WorkPtr send(Tensors& t, int destination, int tag) override {
    auto on_host = host(t);
    return wrap(inner->send(on_host, destination, tag), {}, OpType::SEND);
  }
  WorkPtr recv(Tensors& t, int source, int tag) override {
    auto on_host = host(t);
    return wrap(inner->recv(on_host, source, tag), t, OpType::RECV);
  }
  WorkPtr recvAnysource(Tensors& t, int tag) override {
    auto on_host = host(t);
    return wrap(inner->recvAnysource(on_host, tag), t, OpType::RECVANYSOURCE);
  }
  WorkPtr barrier(const c10d::BarrierOptions& o) override {
    auto options = o;
    options.device_ids.clear();  // the host backend knows no devices
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

}  // namespace dipu
