// SPDX-License-Identifier: Apache-2.0
// Graphs: a capture runs each call as usual, on memory of a private pool, and gives it to the chip as a host
// call; a replay runs them again on the same memory. The end of a capture restores what its calls wrote
// outside the pool, and the random generators, so that a capture itself changes nothing, as on CUDA.
#include "graphs/capture.h"

#include <ATen/core/Generator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <fstream>

#include "engine/engine.h"

#if __has_include(<ATen/core/GraphImplInterface.h>)
#include <ATen/core/GraphImplInterface.h>
#define DIPU_HAS_GRAPH_INTERFACE 1
#endif

namespace dipu {

using c10::IValue;
using torch::jit::Stack;

namespace {

// Arguments that an operator writes and its schema does not mark.
const std::unordered_map<std::string, std::vector<size_t>> kUnmarkedWrites = {
    {"native_batch_norm", {3, 4}}, {"batch_norm_update_stats", {1, 2}}};

// The host calls of a graph run below autograd and autocast, as they did in the capture.
class BelowAutograd {
  c10::impl::ExcludeDispatchKeyGuard autograd_{c10::autograd_dispatch_keyset_with_ADInplaceOrView};
  c10::impl::ExcludeDispatchKeyGuard autocast_{c10::autocast_dispatch_keyset};
};

bool in_pool(const Capture& capture, const c10::StorageImpl* storage) {
  const auto& data = const_cast<c10::StorageImpl*>(storage)->_mutable_data_ptr_no_checks();
  return data.get_deleter() == &free_block && data.get_context() != nullptr &&
      static_cast<Block*>(data.get_context())->owner == capture.memory;
}

template <class F>
void for_each_tensor(const IValue& value, const F& f) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) f(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& t : value.toTensorVector()) if (t.defined()) f(t);
  } else if (value.isList()) {
    for (const IValue& element : value.toListRef()) if (element.isTensor() && element.toTensor().defined()) f(element.toTensor());
  }
}
void refuse_layout(const at::Tensor& t, const std::string& op) {
  TORCH_CHECK(
      !on_device(t) || (t.layout() == at::kStrided && t.has_storage()), "DIPU: ", op, " on a tensor of layout ", t.layout(),
      " is not permitted while a graph captures the stream. Hint: call it before or after the capture");
}

// A value whose device tensors do not keep their memory alive.
IValue unowned_value(const IValue& value) {
  const auto replace = [](const at::Tensor& t) { return on_device(t) ? unowned(t) : t; };
  if (value.isTensor()) return replace(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& t : value.toTensorVector()) list.push_back(replace(t));
    return list;
  }
  if (value.isList() && value.toList().elementType()->kind() == c10::TypeKind::OptionalType) {
    c10::List<std::optional<at::Tensor>> list;
    for (const IValue& element : value.toListRef()) {
      if (!element.isTensor() && !element.isNone()) return value;
      list.push_back(element.isTensor() ? std::optional<at::Tensor>(replace(element.toTensor())) : std::nullopt);
    }
    return list;
  }
  return value;
}

void copy_bytes(const at::Tensor& to, const at::Tensor& from, const std::string& op) {
  TORCH_CHECK(
      to.sizes().equals(from.sizes()), "DIPU: a replay of ", op, " has a result of size ", from.sizes(), ", and of ",
      to.sizes(), " in the capture: sizes that depend on values cannot be captured");
  alias_host(to).copy_(alias_host(from));
}

// Results that are new tensors: a replay copies its own into their memory.
std::vector<at::Tensor> new_results(const Operator& op, const Stack& call, const Stack& results) {
  std::set<const c10::StorageImpl*> arguments;
  for (const auto& value : call) {
    for_each_tensor(value, [&](const at::Tensor& t) { if (on_device(t)) arguments.insert(t.storage().unsafeGetStorageImpl()); });
  }
  std::vector<at::Tensor> found;
  for (size_t i = 0; i < op.returns; i++) {
    if (op.return_of[i] >= 0) continue;
    for_each_tensor(results[i], [&](const at::Tensor& t) {
      refuse_layout(t, op.name);
      const bool is_new = on_device(t) && arguments.count(t.storage().unsafeGetStorageImpl()) == 0;
      found.push_back(is_new ? unowned(t) : at::Tensor());
    });
  }
  return found;
}

// Whether the sizes of the results depend on values. torch marks all of `index` so, which only masks do.
bool has_values_in_shape(const Operator& op, const Stack& stack) {
  if (op.handle.hasTag(at::Tag::data_dependent_output)) return true;
  if (!op.handle.hasTag(at::Tag::dynamic_output_shape)) return false;
  const size_t base = stack.size() - op.arguments;
  if (op.name != "index.Tensor" && op.name != "_unsafe_index.Tensor") {
    const auto& last = op.handle.schema().arguments().back();  // of repeat_interleave
    return last.name() != "output_size" || stack[base + op.arguments - 1].isNone();
  }
  bool masks = false;
  for_each_tensor(stack[base + 1], [&](const at::Tensor& t) { masks |= t.scalar_type() == at::kBool || t.scalar_type() == at::kByte; });
  return masks;
}

struct GraphCall {
  std::function<void()> run;
};
thread_local std::exception_ptr tls_failure;

int run_host_call(void* data) {
  try {
    static_cast<GraphCall*>(data)->run();
    return DIPU_OK;
  } catch (...) {
    tls_failure = std::current_exception();
    return DIPU_ERROR;
  }
}
void release_host_call(void* data) {
  delete static_cast<GraphCall*>(data);
}

std::atomic<uint64_t> g_pools{0};

}  // namespace

bool records_host_calls() {
  return runtime().capture_host != nullptr;
}

at::Tensor unowned(const at::Tensor& t) {
  auto* storage = t.storage().unsafeGetStorageImpl();
  auto impl = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), storage->nbytes(),
      c10::DataPtr(storage->_mutable_data_ptr_no_checks().get(), t.device()), device_allocator(), /*resizable=*/true);
  return device_view(c10::Storage(std::move(impl)), t);
}

void note_read(const CapturePtr& capture, const at::Tensor& t, const std::string& op) {
  if (!on_device(t)) return;
  auto* storage = t.storage().unsafeGetStorageImpl();
  if (storage->nbytes() == 0 || in_pool(*capture, storage)) return;
  std::lock_guard<std::mutex> lock(capture->mutex);
  capture->outside.try_emplace(
      storage, OutsideMemory{t.storage().getWeakStorageImpl(), storage->_mutable_data_ptr_no_checks().get(), op});
}
void note_written(const CapturePtr& capture, const at::Tensor& t, const std::string& op) {
  if (!on_device(t)) return;
  note_read(capture, t, op);
  auto* storage = t.storage().unsafeGetStorageImpl();
  if (storage->nbytes() == 0 || !records_host_calls() || in_pool(*capture, storage)) return;
  std::lock_guard<std::mutex> lock(capture->mutex);
  if (capture->saved.count(storage) > 0) return;
  const char* bytes = static_cast<const char*>(to_host(storage->_mutable_data_ptr_no_checks().get()));
  capture->saved.emplace(storage, std::make_pair(t.storage(), std::vector<char>(bytes, bytes + storage->nbytes())));
}

void record_run(const CapturePtr& capture, std::string name, std::function<void()> run) {
  auto* call = new GraphCall{std::move(run)};
  const DipuHostCall host{&run_host_call, &release_host_call, call};
  check(runtime().capture_host(capture->device, capture->stream, &host), "capture_host");
  std::lock_guard<std::mutex> lock(capture->mutex);
  capture->names.push_back(std::move(name));
}

bool record_call(Operator& op, Stack* stack, c10::DispatchKey host_key) {
  const auto where = where_is(op, *stack);
  const int device = where.device < 0 ? current_device() : where.device;
  const auto capture = capture_of_current(device);
  if (capture == nullptr) return false;
  TORCH_CHECK(
      !has_values_in_shape(op, *stack), "DIPU: ", op.name, " is not permitted while a graph captures the stream: the ",
      "size of its result depends on values. Hint: call it before or after the capture");
  if (!records_host_calls()) {  // the chip records what a vendor's kernel launches
    TORCH_CHECK(
        run_routes(op, stack), "DIPU: ", op.name, " runs on the host, and this chip cannot capture calls of the host ",
        "(its table has no capture_host)");
    return true;
  }
  const Stack call(stack->end() - static_cast<int64_t>(op.arguments), stack->end());
  for (const auto& a : op.looked_at) {
    for_each_tensor(call[a.index], [&](const at::Tensor& t) {
      refuse_layout(t, op.name);
      if (a.write) note_written(capture, t, op.name);
      else note_read(capture, t, op.name);
    });
  }
  if (const auto unmarked = kUnmarkedWrites.find(op.name); unmarked != kUnmarkedWrites.end()) {
    for (size_t index : unmarked->second) for_each_tensor(call[index], [&](const at::Tensor& t) { note_written(capture, t, op.name); });
  }
  {
    const CapturePause pause;  // an operator inside it is a part of it
    run(op, stack, host_key);
  }
  const Stack results(stack->end() - static_cast<int64_t>(op.returns), stack->end());
  auto outputs = new_results(op, call, results);
  Stack arguments;  // after the call: it may have resized what it writes
  for (const auto& value : call) arguments.push_back(unowned_value(value));
  record_run(capture, op.name, [&op, host_key, arguments = std::move(arguments), outputs = std::move(outputs)] {
    Stack again = arguments;
    run(op, &again, host_key);
    size_t index = 0;
    for (size_t i = 0; i < op.returns; i++) {
      if (op.return_of[i] >= 0) continue;
      for_each_tensor(again[i], [&](const at::Tensor& t) {
        const at::Tensor& output = outputs[index++];
        if (output.defined()) copy_bytes(output, t, op.name);
      });
    }
  });
  return true;
}

Graph::~Graph() {
  if (in_bad_fork()) return;
  try {
    if (capture_ != nullptr) capture_end();
    reset();
  } catch (const std::exception& error) {
    TORCH_WARN("DIPU: a graph could not be released: ", error.what());
  }
}

void Graph::capture_begin(PoolId pool, CaptureMode mode) {
  TORCH_CHECK(
      runtime().capture_begin != nullptr, "this DIPU vendor cannot capture graphs: its table has no capture_begin");
  TORCH_CHECK(capture_ == nullptr, "DIPU: the graph captures already");
  TORCH_CHECK(handle_ == nullptr, "DIPU: the graph holds a capture. Hint: reset() it first");
  device_ = resolve_device(-1);
  void* stream = current_stream(device_);
  TORCH_CHECK(
      stream != nullptr, "DIPU: graphs must be captured on a non-default stream. ",
      "Hint: with torch.dipu.stream(torch.dipu.Stream()): …, or torch.dipu.graph(g)");
  auto capture = std::make_shared<Capture>();
  capture->device = device_;
  capture->stream = stream;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->streams.insert(stream);
  pool_ = pool == PoolId{0, 0} ? PoolId{++g_pools, 0} : pool;
  capture->pool = pool_;
  check(runtime().capture_begin(device_, stream), "capture_begin");
  capture->memory = use_pool(device_, pool_);
  capture_ = capture;
  set_capture(device_, std::move(capture));
}

void Graph::capture_end() {
  TORCH_CHECK(capture_ != nullptr, "DIPU: the graph captures nothing. Hint: capture_begin() first");
  const auto capture = std::move(capture_);
  set_capture(device_, nullptr);
  for (auto& [storage, kept] : capture->saved) {
    auto& [owner, bytes] = kept;
    if (owner.nbytes() == bytes.size()) std::memcpy(to_host(owner.data()), bytes.data(), bytes.size());
  }
  for (auto& [generator, state] : capture->generators) set_generator_state(generator, state);
  for (Block* block : capture->freed) free_pending(block);
  const int code = runtime().capture_end(device_, capture->stream, &handle_);
  if (code != DIPU_OK) release_pool(device_, pool_);
  check(code, "capture_end");
  names_ = std::move(capture->names);
  for (auto& [storage, memory] : capture->outside) outside_.push_back(std::move(memory));
}

void Graph::replay() {
  TORCH_CHECK(handle_ != nullptr, "DIPU: the graph holds nothing to replay. Hint: capture first");
  for (const auto& memory : outside_) {
    const auto storage = memory.storage.lock();
    TORCH_CHECK(
        storage != nullptr && storage->_mutable_data_ptr_no_checks().get() == memory.address,
        "DIPU: memory that the captured ", memory.op, " uses was ", storage == nullptr ? "freed" : "replaced",
        " since the capture. Hint: keep the graph's inputs, and copy new values into them");
  }
  void* stream = current_stream(device_);
  TORCH_CHECK(capture_of_current(device_) == nullptr, "DIPU: a replay cannot be captured by another graph");
  const BelowAutograd below;
  tls_failure = nullptr;
  const int code = runtime().graph_replay(device_, handle_, stream);
  if (code != DIPU_OK && tls_failure != nullptr) std::rethrow_exception(std::exchange(tls_failure, nullptr));
  check(code, "graph_replay");
}

void Graph::reset() {
  TORCH_CHECK(capture_ == nullptr, "DIPU: a graph cannot be reset while it captures");
  outside_.clear();
  names_.clear();
  if (handle_ == nullptr) return;
  check(runtime().graph_destroy(device_, std::exchange(handle_, nullptr)), "graph_destroy");
  release_pool(device_, pool_);
}

PoolId Graph::pool() const {
  TORCH_CHECK(capture_ != nullptr || handle_ != nullptr, "DIPU: the graph has no pool before its capture");
  return pool_;
}

void Graph::debug_dump(const std::string& path) const {
  TORCH_CHECK(handle_ != nullptr, "DIPU: the graph holds nothing to dump. Hint: capture first");
  std::ofstream file(path);
  file << "digraph dipu {\n";
  for (size_t i = 0; i < names_.size(); i++) {
    file << "  n" << i << " [label=\"" << names_[i] << "\"];\n";
    if (i > 0) file << "  n" << i - 1 << " -> n" << i << ";\n";
  }
  file << "}\n";
  file.close();
  TORCH_CHECK(file.good(), "DIPU: cannot write the graph to ", path);
}

// ---- torch.accelerator.Graph

#ifdef DIPU_HAS_GRAPH_INTERFACE
namespace {
struct GraphOfTorch final : at::GraphImplInterface {
  explicit GraphOfTorch(const at::GraphImplArgs&) {}
  void capture_begin(c10::MempoolId_t pool, at::GraphCaptureMode mode) override {
    graph_.capture_begin({pool.first, pool.second}, static_cast<CaptureMode>(mode));
  }
  void capture_end() override {
    graph_.capture_end();
  }
  void instantiate() override {
    TORCH_CHECK(graph_.is_captured(), "DIPU: the graph holds nothing to instantiate. Hint: capture first");
  }
  void replay() override {
    graph_.replay();
  }
  void reset() override {
    graph_.reset();
  }
  c10::MempoolId_t pool() const override {
    const auto pool = graph_.pool();
    return {pool.first, pool.second};
  }
  void enable_debug_mode() override {}
  void debug_dump(const std::string& path) override {
    graph_.debug_dump(path);
  }

 private:
  Graph graph_;
};
}  // namespace

void register_graphs() {
  const auto make = [](const at::GraphImplArgs& args) -> std::unique_ptr<at::GraphImplInterface> {
    return std::make_unique<GraphOfTorch>(args);
  };
  at::GraphImplRegistry()->Register("DIPU", make);
}
#else
void register_graphs() {}  // torch 2.11
#endif

}  // namespace dipu
