/* SPDX-License-Identifier: Apache-2.0 */
// The operations of a chip's process group: one after the other, in a thread of the group's own.
// Whoever asks for one goes on; what the chip does before it returns (or on its stream) is waited
// for there, and a second thread ends what takes longer than the group allows.
#pragma once

#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "distributed/group_tensors.h"
#include "profiler/span.h"

namespace dipu {

struct ChipWork final : Work {
  Tensors outputs;
  c10::intrusive_ptr<c10::ivalue::Future> future;
  std::vector<uint64_t> flights;  // its entries in the flight record
  int source = -1;                // of a receive from anyone
  std::string title;              // "rank 0 of 2, all_reduce #2 of group 0 (Float[2])"
  std::function<void()> give_up;  // makes those that wait in the chip return

  ChipWork(int rank, OpType type, const char* title, const Tensors& inputs, Tensors results);
  void done(const std::exception_ptr& error);
  bool wait(std::chrono::milliseconds timeout) override;
  void abort() override;
  int sourceRank() const override;
  Tensors result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
};
using ChipWorkPtr = c10::intrusive_ptr<ChipWork>;

// What is asked for: which operation, with which tensors, and how it is done.
struct ChipCall {
  OpType type;
  Tensors inputs, outputs;
  std::function<void()> body;
  int peer = -1;
  const char* reduction = "";  // its name
  std::chrono::milliseconds limit = c10d::kUnsetTimeout;
};

class ChipQueue : public c10d::Backend {
 public:
  ChipQueue(c10::intrusive_ptr<c10d::Store> store, int rank, int size, std::chrono::milliseconds timeout);
  ~ChipQueue() override;
  void release_resources() override;  // nobody has it any more, but it is remembered
  const std::string getBackendName() const override;
  void setTimeout(std::chrono::milliseconds limit) override;
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override;
  void abort() override;
  void rest();  // ends its threads; needs the GIL to be free
  static void remember(const c10::intrusive_ptr<ChipQueue>& queue);  // for rest_groups

 protected:
  std::atomic<void*> communicator{nullptr};  // all from the first operation on
  void* stream = nullptr;
  int device = -1;

  ChipWorkPtr make_work(const ChipCall& call);
  void announce(const ChipCall& call, ChipWork& work);  // to the flight record, in the order of the program
  WorkPtr enqueue(ChipCall call);
  void enqueue(ChipCall call, ChipWorkPtr work);
  bool is_closing();

 private:
  struct Job {
    ChipCall call;
    ChipWorkPtr work;
    CollectiveInfo info;
    uint64_t sequence;
    void* program_stream;  // on which the tensors were made
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
