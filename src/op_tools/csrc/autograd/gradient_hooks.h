// Hooks that hand the gradients of one call to a sink. Nothing is put into the graph.
#pragma once

#include <memory>

#include "../call/call_view.h"
#include "argument_edges.h"

namespace op_tools {

// After a call: its gradients go to `sink` as the backward pass goes through the nodes it made.
void watch_gradients(ArgumentEdges& arguments, size_t count, const TensorList& results, uint64_t sequence, std::shared_ptr<GradientSink> sink);

// At the end of a backward pass: the calls that it went through in part get no more gradients.
void finish_gradients();

}  // namespace op_tools
