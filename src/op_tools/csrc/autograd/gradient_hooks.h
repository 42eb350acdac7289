/* SPDX-License-Identifier: Apache-2.0 */
// Hooks that hand the gradients of one call to a sink. Nothing is put into the graph.
#pragma once

#include <memory>

#include "call_region.h"

namespace op_tools {

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
  virtual void take(c10::ArrayRef<Gradient>
                        gradients) = 0;  // to be read at once: they may be changed in place later
  virtual void end() = 0;                // no more gradients come
  virtual void report(const char* error) = 0;
};

// The gradients of a call with that many inputs go to `sink` as the backward pass goes through the
// nodes it made.
void watch_gradients(CallRegion& region, size_t inputs, std::shared_ptr<GradientSink> sink);

// At the end of a backward pass: the calls that it went through in part get no more gradients.
void finish_gradients();

}  // namespace op_tools
