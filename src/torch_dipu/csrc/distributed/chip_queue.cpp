// SPDX-License-Identifier: Apache-2.0
#include "distributed/chip_queue.h"

#include <algorithm>
#include <optional>

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

#include "distributed/collective_log.h"
#include "graphs/capture.h"
#include "runtime/core.h"

namespace dipu {

const char* collective_title(OpType type) {
  switch (type) {
    case OpType::ALLREDUCE:
    case OpType::ALLREDUCE_COALESCED:
      return "dicl:all_reduce";
    case OpType::REDUCE:
      return "dicl:reduce";
    case OpType::REDUCE_SCATTER:
    case OpType::_REDUCE_SCATTER_BASE:
      return "dicl:reduce_scatter";
    case OpType::BROADCAST:
      return "dicl:broadcast";
    case OpType::ALLGATHER:
    case OpType::_ALLGATHER_BASE:
      return "dicl:all_gather";
    case OpType::ALLTOALL:
    case OpType::ALLTOALL_BASE:
      return "dicl:all_to_all";
    case OpType::GATHER:
      return "dicl:gather";
    case OpType::SCATTER:
      return "dicl:scatter";
    case OpType::SEND:
      return "dicl:send";
    case OpType::RECV:
    case OpType::RECVANYSOURCE:
      return "dicl:recv";
    case OpType::BARRIER:
      return "dicl:barrier";
    default:
      return "dicl:coalesced";
  }
}

// ---- one operation, from the caller's side

ChipWork::ChipWork(int rank, OpType type, const char* title, const Tensors& inputs, Tensors results)
    : Work(rank, type, title, inputs),
      outputs(std::move(results)),
      future(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {}
void ChipWork::done(const std::exception_ptr& error) {
  for (auto number : flights) flight_end(number, error);
  finish(error);
  if (error) {
    future->setError(error);
  } else {
    future->markCompleted(c10::IValue(outputs));
  }
}
// Without a timeout of the caller, the group's timeout holds, which the watchdog enforces.
bool ChipWork::wait(std::chrono::milliseconds timeout) {
  try {
    return Work::wait(timeout);
  } catch (...) {
    if (isCompleted()) throw;
    auto error = std::make_exception_ptr(c10::DistBackendError(
        {__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
        c10::str("dicl: ", title, ": timed out after ", timeout.count(), " ms, the limit of this wait")));
    for (auto number : flights) flight_end(number, error);
    give_up();
    std::rethrow_exception(error);
  }
}
void ChipWork::abort() {
  if (!isCompleted()) give_up();
}
int ChipWork::sourceRank() const {
  return source;
}
Tensors ChipWork::result() {
  return outputs;
}
c10::intrusive_ptr<c10::ivalue::Future> ChipWork::getFuture() {
  return future;
}

// ---- life cycle of the group

ChipQueue::ChipQueue(c10::intrusive_ptr<c10d::Store> store, int rank, int size, std::chrono::milliseconds timeout)
    : LoggedBackend(rank, size), store_(std::move(store)), timeout_(timeout) {}

ChipQueue::~ChipQueue() {
  leave();
}
void ChipQueue::release_resources() {
  leave();
}
void ChipQueue::leave() {
  std::optional<py::gil_scoped_release> released;  // a job may need the GIL to end
  if (Py_IsInitialized() && PyGILState_Check()) released.emplace();
  rest();
  auto* left = communicator.exchange(nullptr);
  if (left != nullptr && process_ == getpid()) warn_if_failed(runtime().comm_destroy(left), "comm_destroy");
}
void ChipQueue::rest() {
  // a forked child has neither the threads nor the chip, and a thread may have held the lock
  if (process_ != getpid()) {
    for (auto* thread : {&worker_, &watchdog_}) {
      if (thread->joinable()) thread->detach();
    }
    new (&changed_) std::condition_variable();  // the old object would wait for its waiters
    return;
  }
  bool abandoned = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
    abandoned = running_ || !jobs_.empty();  // no one will wait for it
  }
  if (abandoned) give_up();
  changed_.notify_all();
  for (auto* thread : {&worker_, &watchdog_}) {
    if (thread->joinable()) thread->join();
  }
  std::lock_guard<std::mutex> lock(mutex_);
  closing_ = false;  // later requests create new threads
}
const std::string ChipQueue::getBackendName() const {
  return "dicl";
}
void ChipQueue::setTimeout(std::chrono::milliseconds limit) {
  timeout_ = limit;
}
uint64_t ChipQueue::getSequenceNumberForGroup() {
  return sequence_.load();
}
void ChipQueue::abort() {
  give_up();
}
bool ChipQueue::is_closing() {
  std::lock_guard<std::mutex> lock(mutex_);
  return closing_;
}
void ChipQueue::give_up() {
  if (communicator != nullptr) warn_if_failed(runtime().comm_abort(communicator), "comm_abort");
}

// Runs in the group's thread: all processes of the group synchronize here the first time.
void ChipQueue::join(int index) {
  if (communicator != nullptr) {
    TORCH_CHECK(index == device, "dicl: this group is on dipu:", device, ", found a tensor on dipu:", index);
    return;
  }
  wait_for_all();
  DipuGroupId id{};
  if (rank_ == 0) {
    check(runtime().comm_id(&id), "comm_id");
    store_->set("dicl/id", std::vector<uint8_t>(id.bytes, id.bytes + sizeof id.bytes));
  } else {
    const auto bytes = store_->get("dicl/id");
    TORCH_CHECK(bytes.size() == sizeof id.bytes, "dicl: the store holds another kind of id");
    std::copy(bytes.begin(), bytes.end(), id.bytes);
  }
  check(runtime().stream_create(index, 0, &stream), "stream_create");
  void* made = nullptr;
  check(runtime().comm_create(index, rank_, size_, &id, &made), "comm_create");
  device = index;
  communicator = made;
}

// Reports missing ranks here, where the wait has a timeout. The store is polled: a blocking wait
// would block the program's other threads.
void ChipQueue::wait_for_all() {
  const auto key = [](int r) { return "dicl/here/" + std::to_string(r); };
  std::vector<std::string> keys;
  for (int r = 0; r < size_; r++) keys.push_back(key(r));
  store_->set(key(rank_), std::vector<uint8_t>{1});
  const auto until = std::chrono::steady_clock::now() + timeout_;
  for (int pause = 1; !store_->check(keys); pause = std::min(2 * pause, 50)) {
    TORCH_CHECK(!is_closing(), "the group was left before all had come to it");
    if (std::chrono::steady_clock::now() > until) {
      std::string absent;
      for (int r = 0; r < size_; r++) {
        if (!store_->check({key(r)})) absent += (absent.empty() ? "" : ", ") + std::to_string(r);
      }
      C10_THROW_ERROR(
          DistBackendError, c10::str("timed out after ", timeout_.count(), " ms: rank ", absent, " did not come to the group"));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(pause));
  }
}

// All live groups, for the end of the program.
static std::mutex g_queues_mutex;
static std::vector<c10::weak_intrusive_ptr<ChipQueue>> g_queues;

void ChipQueue::remember(const c10::intrusive_ptr<ChipQueue>& queue) {
  std::lock_guard<std::mutex> lock(g_queues_mutex);
  g_queues.erase(
      std::remove_if(g_queues.begin(), g_queues.end(), [](auto& known) { return known.expired(); }), g_queues.end());
  g_queues.emplace_back(queue);
}
void rest_groups() {
  std::vector<c10::intrusive_ptr<ChipQueue>> alive;
  {
    std::lock_guard<std::mutex> lock(g_queues_mutex);
    for (auto& known : g_queues) {
      if (auto queue = known.lock()) alive.push_back(std::move(queue));
    }
  }
  for (auto& queue : alive) queue->rest();
}

// ---- processing of one operation

static int device_of(const ChipCall& call) {
  int index = current_device();
  for (auto* list : {&call.inputs, &call.outputs}) {
    for (auto& t : *list) {
      TORCH_CHECK(on_device(t), "dicl: expected tensors on dipu, found one on ", t.device());
      index = t.device().index();
    }
  }
  return resolve_device(index);
}

// Whether only some of the group's ranks take part, so that the operation is no common step.
static bool between_some(OpType type) {
  return type == OpType::SEND || type == OpType::RECV || type == OpType::RECVANYSOURCE || type == OpType::UNKNOWN;
}

ChipWorkPtr ChipQueue::make_work(const ChipCall& call) {
  auto work = c10::make_intrusive<ChipWork>(rank_, call.type, collective_title(call.type), call.inputs, call.outputs);
  work->give_up = [this] { give_up(); };
  return work;
}
void ChipQueue::announce(const ChipCall& call, ChipWork& work) {
  device_of(call);  // raises an error before anything is recorded
  work.flights.push_back(flight_begin(*this, call.type, call.inputs, call.outputs, call.peer));
}
WorkPtr ChipQueue::enqueue(ChipCall call) {
  auto work = make_work(call);
  announce(call, *work);
  enqueue(std::move(call), work);
  return work;
}

void ChipQueue::enqueue(ChipCall call, ChipWorkPtr work) {
  Job job{std::move(call), std::move(work)};
  job.sequence = between_some(job.call.type) ? 0 : sequence_.fetch_add(1) + 1;
  job.info.device = device_of(job.call);
  job.info.name = collective_title(job.call.type) + 5;  // without "dicl:"
  job.info.reduction = job.call.reduction;
  job.info.group = getGroupUid();
  job.info.rank = rank_;
  job.info.size = size_;
  job.info.launcher = profile_operator();
  const auto& given = job.call.inputs.empty() ? job.call.outputs : job.call.inputs;
  for (auto& t : given) job.info.bytes += t.nbytes();
  if (!given.empty()) job.info.dtype = c10::toString(given[0].scalar_type());
  job.program_stream = current_stream(job.info.device);
  refuse_in_capture(job.info.device, job.program_stream, "a collective");
  job.work->title = title_of(job);
  job.limit = job.call.limit == c10d::kUnsetTimeout ? timeout_ : job.call.limit;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    jobs_.push_back(std::move(job));
    if (!worker_.joinable()) {
      worker_ = std::thread([this] { this->work(); });
      watchdog_ = std::thread([this] { watch(); });
    }
  }
  changed_.notify_all();
}

void ChipQueue::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return closing_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    std::optional<Job> job = std::move(jobs_.front());
    jobs_.pop_front();
    running_ = true;
    expired_ = false;
    deadline_ = std::chrono::steady_clock::now() + job->limit;
    changed_.notify_all();
    lock.unlock();
    run(*job);
    job.reset();
    lock.lock();
  }
}

void ChipQueue::watch() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!closing_) {
    if (!running_ || expired_) {
      changed_.wait(lock);
    } else if (std::chrono::steady_clock::now() < deadline_) {
      changed_.wait_until(lock, deadline_);
    } else {
      expired_ = true;
      lock.unlock();  // a chip in Python needs the GIL, whose owner may wait for the lock
      give_up();
      lock.lock();
    }
  }
}

void ChipQueue::run(Job& job) {
  const int index = job.info.device;
  std::exception_ptr error;
  try {
    // below autograd: a result does not change a tensor's version after the call has returned
    at::AutoDispatchBelowADInplaceOrView below;
    c10::DeviceGuard guard(dipu_device(index));
    join(index);
    job.info.stream = stream;
    check(runtime().stream_synchronize(index, job.program_stream), "stream_synchronize");
    Span span(job.info);
    job.call.body();
    check(runtime().stream_synchronize(index, current_stream(index)), "stream_synchronize");
  } catch (...) {
    error = explained(job, std::current_exception());
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    running_ = false;  // before any waiter is notified, and may leave the group
  }
  // releases its tensors: freeing one may need the GIL, which may be gone when a program ends
  job.call = {};
  job.work->done(error);
}

// "rank 0 of 2, all_reduce #2 of group 0 (Float[2])"
std::string ChipQueue::title_of(const Job& job) const {
  const auto& given = job.call.inputs.empty() ? job.call.outputs : job.call.inputs;
  auto text = c10::str("rank ", rank_, " of ", size_, ", ", job.info.name) + (job.sequence != 0 ? " #" + std::to_string(job.sequence) : "") + " of group " + job.info.group;
  if (!given.empty()) text += c10::str(" (", c10::toString(given[0].scalar_type()), given[0].sizes(), ")");
  return text;
}

std::exception_ptr ChipQueue::explained(const Job& job, const std::exception_ptr& error) {
  std::string reason;
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& known) {
    reason = known.what_without_backtrace();
  } catch (const std::exception& other) {
    reason = other.what();
  }
  bool late = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    late = expired_;
  }
  auto text = c10::str("dicl: ", job.work->title, ": ");
  if (late) text += c10::str("timed out after ", job.limit.count(), " ms: ");
  return std::make_exception_ptr(c10::DistBackendError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, text + reason));
}

}  // namespace dipu
