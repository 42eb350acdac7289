/* SPDX-License-Identifier: Apache-2.0 */
// The operations of a chip's process group: they run one after the other, in a thread of the group.
// Requests are asynchronous. The group's thread waits for the chip (or the operations are ordered
// on its stream), and a watchdog thread aborts operations that exceed the group's timeout.
#pragma once

#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "distributed/collective_log.h"
#include "distributed/group_tensors.h"
#include "profiler/span.h"

namespace dipu {

struct ChipWork final : Work {
  Tensors outputs;
  c10::intrusive_ptr<c10::ivalue::Future> future;
  std::vector<uint64_t> flights;  // its entries in the flight record
  int source = -1;  // sender of a receive from any rank
  std::string title;              // "rank 0 of 2, all_reduce #2 of group 0 (Float[2])"
  std::function<void()> give_up;  // makes blocked calls of the chip return

  ChipWork(int rank, OpType type, const char* title, const Tensors& inputs, Tensors results);
  void done(const std::exception_ptr& error);
  bool wait(std::chrono::milliseconds timeout) override;
  void abort() override;
  int sourceRank() const override;
  uint64_t getCompletionKey() const {  // not in torch 2.13: no override
    return flights.empty() ? 0 : flights.back();
  }
  Tensors result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
};
using ChipWorkPtr = c10::intrusive_ptr<ChipWork>;

// A request: the operation, its tensors, and how to run it.
struct ChipCall {
  OpType type;
  Tensors inputs, outputs;
  std::function<void()> body;
  int peer = -1;
  const char* reduction = "";  // name of the reduction
  std::chrono::milliseconds limit = c10d::kUnsetTimeout;
};

class ChipQueue : public LoggedBackend {
 public:
  ChipQueue(c10::intrusive_ptr<c10d::Store> store, int rank, int size, std::chrono::milliseconds timeout);
  ~ChipQueue() override;
  // the last user reference is gone, but the group is registered
  void release_resources() override;
  const std::string getBackendName() const override;
  void setTimeout(std::chrono::milliseconds limit) override;
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override;
  void abort() override;
  void rest();  // ends its threads; the GIL must be free
  // registers a group for rest_groups
  static void remember(const c10::intrusive_ptr<ChipQueue>& queue);

 protected:
  std::atomic<void*> communicator{nullptr};  // joined by all ranks at the first operation
  void* stream = nullptr;
  int device = -1;

  ChipWorkPtr make_work(const ChipCall& call);
  // to the flight record, in the order of the program
  void announce(const ChipCall& call, ChipWork& work);
  WorkPtr enqueue(ChipCall call);
  void enqueue(ChipCall call, ChipWorkPtr work);
  bool is_closing();

 private:
  struct Job {
    ChipCall call;
    ChipWorkPtr work;
    CollectiveInfo info;
    uint64_t sequence;
    void* program_stream;  // the stream on which the tensors were produced
    std::chrono::milliseconds limit;
  };
  c10::intrusive_ptr<c10d::Store> store_;
  std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  bool closing_ = false, running_ = false, expired_ = false;
  std::chrono::steady_clock::time_point deadline_;
  std::atomic<uint64_t> sequence_{0};
  std::thread worker_, watchdog_;
  const pid_t process_ = getpid();

  void leave();
  void work();
  void watch();
  void run(Job& job);
  void join(int index);
  void wait_for_all();
  void give_up();
  std::string title_of(const Job& job) const;
  std::exception_ptr explained(const Job& job, const std::exception_ptr& error);
};

const char* collective_title(OpType type);  // "dicl:all_reduce"

}  // namespace dipu
