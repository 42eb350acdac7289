/* SPDX-License-Identifier: Apache-2.0 */
// The capture of a graph: which streams are captured, where their memory comes from, and what is undone at
// its end. graph.cpp records the calls.
#pragma once

#include <ATen/core/stack.h>

#include <exception>
#include <functional>
#include <set>
#include <thread>
#include <unordered_map>

#include "runtime/memory.h"

namespace dipu {

struct Operator;

enum class CaptureMode : int8_t { Default, Global, ThreadLocal, Relaxed };

// Memory of the program that a graph reads or writes: not kept alive, and checked before a replay.
struct OutsideMemory {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  const void* address;
  std::string op;  // that used it first
};

struct Capture {
  int device = 0;
  void* stream = nullptr;  // of the beginning
  CaptureMode mode = CaptureMode::Default;
  std::thread::id thread;
  PoolId pool{0, 0};
  PrivatePool* memory = nullptr;
  std::mutex mutex;  // of everything below
  std::set<void*> streams, events;  // the captured ones; a stream joins by waiting for an event
  std::unordered_map<c10::StorageImpl*, std::pair<c10::Storage, std::vector<char>>> saved;  // before the first write
  std::vector<std::pair<at::Generator, std::pair<uint64_t, uint64_t>>> generators;  // seed and offset at the beginning
  std::unordered_map<c10::StorageImpl*, OutsideMemory> outside;
  std::vector<std::string> names;  // of the calls
  std::vector<Block*> freed;  // in use on other streams: freed at the end
};
using CapturePtr = std::shared_ptr<Capture>;

// ---- capture.cpp
extern std::atomic<uint8_t> g_capturing;  // kCaptured while a device captures, else 0
CapturePtr capture_of(int device, void* stream);  // null: the stream is not captured
CapturePtr capture_of_current(int device);        // of this thread's stream
void set_capture(int device, CapturePtr capture);  // null: ended
bool is_capturing(int device);                     // this thread's stream
// The capture that records what this thread calls: not inside a recorded call, nor where the chip records.
CapturePtr recording(int device);
class CapturePause {  // in this thread: what it calls is a part of a recorded call
 public:
  CapturePause();
  ~CapturePause();
  CapturePause(const CapturePause&) = delete;

 private:
  const uint8_t before_;
};
// Throws if the call would wait for work of a capture.
void refuse_in_capture(int device, void* stream, const char* call);
void refuse_device_wide_in_capture(int device, const char* call);
void note_captured_event(int device, void* stream, void* event);
bool join_by_event(int device, void* stream, void* event);  // whether the event belongs to a capture
void refuse_captured_event(void* event, const char* call);
void save_generator(int device, const at::Generator& generator);

// ---- graph.cpp
// Runs and records the call if its stream is captured; false: it is not.
bool record_call(Operator& op, torch::jit::Stack* stack, c10::DispatchKey host_key);
// Adds a call that is not an operator, and that `run` has done already. Null where the chip records it.
void record_run(const CapturePtr& capture, std::string name, std::function<void()> run);
// Before a write in a capture: keeps the bytes, which its end restores, and checks the storage in each replay.
void note_written(const CapturePtr& capture, const at::Tensor& tensor, const std::string& op);
void note_read(const CapturePtr& capture, const at::Tensor& tensor, const std::string& op);
// A tensor on the memory of another, which it does not keep alive.
at::Tensor unowned(const at::Tensor& tensor);
bool records_host_calls();  // the chip's table has capture_host

class Graph {
 public:
  Graph() = default;
  ~Graph();
  Graph(const Graph&) = delete;
  void capture_begin(PoolId pool, CaptureMode mode);
  void capture_end();
  void replay();
  void reset();
  PoolId pool() const;
  bool is_captured() const {
    return handle_ != nullptr;
  }
  std::vector<std::string> calls() const {
    return names_;
  }
  void debug_dump(const std::string& path) const;

 private:
  CapturePtr capture_;  // while it captures
  int device_ = 0;
  void* handle_ = nullptr;  // the chip's
  PoolId pool_{0, 0};
  std::vector<OutsideMemory> outside_;
  std::vector<std::string> names_;
};

}  // namespace dipu
