/* SPDX-License-Identifier: Apache-2.0 */
// One intercepted call, as a frontend hands it to a sink, and what a sink implements.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "call_headers.h"
#include "python_tensors.h"

namespace op_tools {

struct CallRegion;  // autograd/call_region.h

// Made once for a call by its frontend.
struct CallView {
  struct Input {
    at::Tensor tensor;  // torch keeps the values that it shows to an observer only until the call
    bool declared;      // the operator declares that it writes this input
    uint32_t version;   // autograd's version counter before the call
  };

  CallHeader header;
  c10::SmallVector<Input, 8> inputs;
  bool may_write = false;  // some input may be written: its values are read before the call
  c10::SmallVector<uint32_t, 4>
      written;  // places of the inputs that were written; known after the call
  PyObject *function = nullptr, *args = nullptr, *kwargs = nullptr,
           *result = nullptr;   // borrowed; null: not called by Python
  std::shared_ptr<void> state;  // of the sink

  void add(const at::Tensor& tensor, bool declared) {
    inputs.push_back({tensor, declared, version_of(tensor)});
  }
  void find_written() {
    written.clear();
    for (uint32_t at = 0; at < inputs.size(); at++)
      if (inputs[at].declared || version_of(inputs[at].tensor) != inputs[at].version)
        written.push_back(at);
  }
  bool wrote(uint32_t place) const {
    return std::find(written.begin(), written.end(), place) != written.end();
  }

  static uint32_t version_of(const at::Tensor& tensor) {
    return tensor.is_inference()
               ? 0
               : tensor.unsafeGetTensorImpl()->version_counter().current_version();
  }
};

// A tool, as far as it is native. Methods may raise; frontends catch and report.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual bool marks_infinite_arguments() const { return false; }
  virtual bool accepts(const at::Tensor& tensor) = 0;  // false: the call is left to Python
  virtual bool reads_on_host(const at::Tensor& tensor) {
    return false;
  }  // reading takes long: the GIL is released for it
  virtual void enter(CallView& call) = 0;   // right before the call
  virtual void returned(CallView& call) {}  // right after it
  // The nodes that the call made. The owner is to be held while gradients may come.
  virtual void follow(const CallView& call, CallRegion& region, size_t outputs,
                      std::shared_ptr<void> owner) = 0;
  virtual void exit(CallView& call, const TensorList& outputs) = 0;
  virtual void report(PyObject* op, const char* error) = 0;
};

}  // namespace op_tools
