// Around each kernel and each copy of the device stands one span, for who wants to hear of it: the
// profiler, and the memory checker at its strict level. Off, it is one branch.
#pragma once

#include "core.h"

namespace dipu {

extern std::atomic<bool> g_spans_on;
struct SpanRecord;

class Span {
 public:
  // `kernel` is the vendor's name of what runs ("diopiAdd"); none: named after the operator. A span
  // on DIPU_HOST is none: nothing ran on a device. Both names must outlive the span.
  Span(const Operator& op, int device, const char* kernel = nullptr) {  // hot path
    if (C10_UNLIKELY(g_spans_on.load(std::memory_order_relaxed))) begin(op, device, kernel);
  }
  Span(const Operator& op, const torch::jit::Stack& stack, const char* kernel = nullptr) {  // hot path
    if (C10_UNLIKELY(g_spans_on.load(std::memory_order_relaxed))) begin(op, device_of_arguments(op, stack), kernel);
  }
  explicit Span(const DipuCopy& copy) {
    if (C10_UNLIKELY(g_spans_on.load(std::memory_order_relaxed))) begin(copy);
  }
  ~Span() {
    if (C10_UNLIKELY(record_ != nullptr)) end();
  }
  Span(const Span&) = delete;
  void cancel();  // it did not run after all

 private:
  SpanRecord* record_ = nullptr;  // none inside another span: the outermost counts

  static int device_of_arguments(const Operator& op, const torch::jit::Stack& stack);
  void begin(const Operator& op, int device, const char* kernel);
  void begin(const DipuCopy& copy);
  void end();
};

}  // namespace dipu
