// SPDX-License-Identifier: Apache-2.0
// The graphs of the reference chip: the host calls of a capture, run again in their order by a replay.
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "chip.h"

namespace reference {
namespace {

struct Graph {
  std::vector<DipuHostCall> calls;
  ~Graph() {
    for (const auto& call : calls) call.release(call.data);
  }
};

std::mutex g_mutex;
std::map<std::pair<int, void*>, std::unique_ptr<Graph>> g_captures;  // by device and stream

}  // namespace

int capture_begin(int device, void* stream) {
  std::lock_guard<std::mutex> lock(g_mutex);
  auto& graph = g_captures[{device, stream}];
  if (graph != nullptr) return fail(DIPU_ERROR, "the stream is captured already");
  graph = std::make_unique<Graph>();
  return DIPU_OK;
}
int capture_host(int device, void* stream, const DipuHostCall* call) {
  std::lock_guard<std::mutex> lock(g_mutex);
  const auto found = g_captures.find({device, stream});
  if (found == g_captures.end()) return fail(DIPU_ERROR, "the stream is not captured");
  found->second->calls.push_back(*call);
  return DIPU_OK;
}
int capture_end(int device, void* stream, void** graph) {
  std::lock_guard<std::mutex> lock(g_mutex);
  const auto found = g_captures.find({device, stream});
  if (found == g_captures.end()) return fail(DIPU_ERROR, "the stream is not captured");
  *graph = found->second.release();
  g_captures.erase(found);
  return DIPU_OK;
}
int graph_replay(int, void* graph, void*) {
  for (const auto& call : static_cast<Graph*>(graph)->calls) {
    if (call.run(call.data) != DIPU_OK) return fail(DIPU_ERROR, "a call of the graph failed");
  }
  return DIPU_OK;
}
int graph_destroy(int, void* graph) {
  delete static_cast<Graph*>(graph);
  return DIPU_OK;
}

}  // namespace reference
