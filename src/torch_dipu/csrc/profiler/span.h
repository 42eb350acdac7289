/* SPDX-License-Identifier: Apache-2.0 */
// One span surrounds each kernel and each copy of the device, for its listeners: the profiler, and
// the memory checker at its strict level. Without a listener it costs one branch.
#pragma once

#include "runtime/core.h"

namespace dipu {

enum Listener : uint8_t { kProfiler = 1, kStrictCheck = 2 };
extern std::atomic<uint8_t> g_listeners;
void listen(Listener who, bool on);

// A collective in the profiler's output.
struct CollectiveInfo {
  std::string name, reduction, dtype, group;  // "all_reduce", "sum" or nothing, "Float", the group's name
  size_t bytes = 0;  // sent by this rank
  int rank = 0, size = 0;
  int device = 0;
  void* stream = nullptr;
  int64_t launcher = 0;  // the operator that requested it, in another thread
};

// The record of one span; listeners store the values measured at its beginning in it.
struct SpanRecord {
  const Operator* op = nullptr;  // none: a copy, or a collective
  const char* kernel = nullptr;  // the vendor's name, or null
  DipuCopy copy{};
  const CollectiveInfo* collective = nullptr;
  int device = 0;
  void* stream = nullptr;
  uint8_t listeners = 0;
  void* start = nullptr;         // profiler: the event before it
  int64_t host_start = 0;
  // checker: memory that the chip allocated outside the allocator, and the allocator's number of calls
  int64_t foreign_memory = 0;
  int64_t segments_taken = 0, segments_freed = 0;
  bool gave_back = false;  // checker: the kernel freed memory of the allocator, which was reported

  std::string name() const;    // "diopiAdd", "dipu_add_out", "Memcpy HtoD (Pageable -> Device)"
  std::string launch() const;  // "LaunchKernel_dipu_add_out", "MemcpyAsync"
  std::string what() const;    // for a message: "add.out (diopiAdd)"
};
SpanRecord* current_span();  // the span of this thread, or null

class Span {
 public:
  // `kernel` is the vendor's name of the kernel ("diopiAdd"); null: named after the operator.
  // DIPU_HOST creates no span: nothing ran on a device. The name must outlive the span.
  Span(const Operator& op, int device, const char* kernel = nullptr) {  // hot path
    if (C10_UNLIKELY(g_listeners.load(std::memory_order_relaxed) != 0)) begin(op, device, kernel);
  }
  Span(const Operator& op, const torch::jit::Stack& stack, const char* kernel = nullptr) {  // hot path
    if (C10_UNLIKELY(g_listeners.load(std::memory_order_relaxed) != 0)) begin(op, device_of_arguments(op, stack), kernel);
  }
  explicit Span(const DipuCopy& copy) {
    if (C10_UNLIKELY(g_listeners.load(std::memory_order_relaxed) != 0)) begin(copy);
  }
  explicit Span(const CollectiveInfo& collective) {  // which must outlive it
    if (C10_UNLIKELY(g_listeners.load(std::memory_order_relaxed) != 0)) begin(collective);
  }
  ~Span() {
    if (C10_UNLIKELY(record_ != nullptr)) end();
  }
  Span(const Span&) = delete;
  void cancel();  // the work did not run

 private:
  SpanRecord* record_ = nullptr;  // null inside another span: the outermost one counts

  static int device_of_arguments(const Operator& op, const torch::jit::Stack& stack);
  void begin(const Operator& op, int device, const char* kernel);
  void begin(const DipuCopy& copy);
  void begin(const CollectiveInfo& collective);
  void open(SpanRecord record);
  void end();
};

// ---- profiler.cpp
void profile_begin(SpanRecord& span);
void profile_end(const SpanRecord& span);
void profile_cancel(const SpanRecord& span);
int64_t profile_operator();  // the operator of this thread, in Kineto's numbering; 0: none

// ---- memory_check.cpp
void check_begin(SpanRecord& span);
void check_end(const SpanRecord& span);

}  // namespace dipu
