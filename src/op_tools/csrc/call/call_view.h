// One intercepted call, as a frontend hands it to a sink, and what a sink implements.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "../statistics/call_log.h"
#include "call_headers.h"
#include "python_tensors.h"

namespace op_tools {

// Made once for a call by its frontend.
struct CallView {
  struct Input {
    at::Tensor tensor;  // torch keeps the values that it shows to an observer only until the call
    bool declared;      // the operator declares that it writes this input
    uint32_t version;   // autograd's version counter before the call
  };

  CallHeader header;
  c10::SmallVector<Input, 8> inputs;
  bool may_write = false;                 // some input may be written: its values are read before the call
  c10::SmallVector<uint32_t, 4> written;  // places of the inputs that were written; known after the call
  CallLog log;                            // scratch space of the sink

  void add(const at::Tensor& tensor, bool declared) { inputs.push_back({tensor, declared, version_of(tensor)}); }
  void find_written() {
    written.clear();
    for (uint32_t at = 0; at < inputs.size(); at++)
      if (inputs[at].declared || version_of(inputs[at].tensor) != inputs[at].version) written.push_back(at);
  }
  bool wrote(uint32_t place) const { return std::find(written.begin(), written.end(), place) != written.end(); }

  static uint32_t version_of(const at::Tensor& tensor) {
    return tensor.is_inference() ? 0 : tensor.unsafeGetTensorImpl()->version_counter().current_version();
  }
};

// One gradient that flows through a call.
struct Gradient {
  bool of_output;
  int place;  // among the inputs or the outputs
  const at::Tensor* tensor;
};

// Receives the gradients of one call. It must hold no tensor of the graph.
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  virtual void take(c10::ArrayRef<Gradient> gradients) = 0;  // to be read at once: they may be changed in place later
  virtual void end() = 0;                                    // no more gradients come
  virtual void report(const char* error) = 0;
};

// A tool, as far as it is native. Methods may raise; frontends catch and report.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual bool marks_infinite_arguments() const { return false; }
  virtual bool accepts(const at::Tensor& tensor) = 0;      // false: the call is left to Python
  virtual bool reads_on_host(const at::Tensor& tensor) = 0;  // reading takes long: the GIL is released for it
  virtual void enter(CallView& call) = 0;                  // before the call
  virtual void exit(CallView& call, const TensorList& outputs) = 0;
  virtual std::shared_ptr<GradientSink> gradients(const CallView& call, size_t outputs) = 0;  // null: not wanted
  virtual void report(PyObject* op, const char* error) = 0;
};

}  // namespace op_tools
