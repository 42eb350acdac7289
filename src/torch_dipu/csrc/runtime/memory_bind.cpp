// SPDX-License-Identifier: Apache-2.0
// Python bindings of memory: limits, snapshots and history in torch.cuda.memory's form, the checker.
#include <torch/csrc/utils/pybind.h>

#include "runtime/memory_events.h"

namespace py = pybind11;

namespace dipu {

std::vector<py::object> python_stacks(const std::vector<Context>& contexts);  // allocation_stacks.cpp

// Collects contexts while the records are built, then formats all stacks at once into the records.
class Frames {
 public:
  void want(py::dict owner, Context context) {
    owners_.push_back(std::move(owner));
    contexts_.push_back(std::move(context));
  }
  void fill() {
    const auto stacks = python_stacks(contexts_);
    for (size_t i = 0; i < owners_.size(); i++) owners_[i]["frames"] = stacks[i];
  }

 private:
  std::vector<py::dict> owners_;
  std::vector<Context> contexts_;
};

static py::list segments(const std::vector<SegmentRecord>& records, Frames& frames) {
  py::list segments;
  for (const auto& s : records) {
    py::list blocks;
    size_t total = 0, allocated = 0, active = 0, requested = 0;
    for (const auto& b : s.blocks) {
      total += b.size;
      allocated += b.in_use ? b.size : 0;
      active += b.in_use || b.pending ? b.size : 0;
      requested += b.in_use ? b.requested : 0;
      const char* state = b.in_use ? "active_allocated" : b.pending ? "active_pending_free" : "inactive";
      py::dict block(
          py::arg("address") = b.address, py::arg("size") = b.size,
          py::arg("requested_size") = b.in_use ? b.requested : 0, py::arg("state") = state);
      frames.want(block, b.context);
      blocks.append(block);
    }
    py::dict segment(
        py::arg("device") = s.device, py::arg("address") = s.address, py::arg("total_size") = total,
        py::arg("allocated_size") = allocated, py::arg("active_size") = active, py::arg("requested_size") = requested,
        py::arg("stream") = reinterpret_cast<uintptr_t>(s.stream), py::arg("segment_type") = s.small ? "small" : "large",
        py::arg("segment_pool_id") = py::make_tuple(s.pool.first, s.pool.second), py::arg("is_expandable") = false, py::arg("blocks") = blocks);
    frames.want(segment, nullptr);
    segments.append(segment);
  }
  return segments;
}

static const char* name_of(Act act) {
  static constexpr const char* names[] = {"alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "oom", "snapshot"};
  return names[static_cast<size_t>(act)];
}

static py::list events(int device, Frames& frames) {
  py::list rows;
  for (const auto& e : memory_events(device)) {
    py::dict row(
        py::arg("action") = name_of(e.act), py::arg("size") = e.size, py::arg("stream") = reinterpret_cast<uintptr_t>(e.stream),
        py::arg("time_us") = e.time_us);
    row[e.act == Act::OutOfMemory ? "device_free" : "addr"] = e.address;
    frames.want(row, e.context);
    rows.append(row);
  }
  return rows;
}

static py::dict snapshot_with_history() {
  if (g_notes.load() & kHistory) {
    for (int i = 0; i < device_count(); i++) note_event(Act::Snapshot, i, 0, 0, nullptr, nullptr);
  }
  Frames frames;
  py::list traces;
  py::dict result(py::arg("segments") = segments(memory_snapshot(), frames));
  for (int i = 0; i < device_count(); i++) traces.append(events(i, frames));
  result["device_traces"] = traces;
  result["host_segments"] = segments(pinned_snapshot(), frames);
  result["host_traces"] = events(DIPU_HOST, frames);
  frames.fill();
  return result;
}

static void record_memory_history(
    bool on, bool with_events, int stacks, bool cpp, size_t max_events, bool clear, const std::vector<std::string>& skipped,
    bool device, bool host) {
  HistoryOptions options{with_events, device, host, static_cast<Stacks>(stacks), cpp, max_events, 0};
  for (int i = 0; i <= static_cast<int>(Act::Snapshot); i++) {
    for (const auto& name : skipped) if (name == name_of(static_cast<Act>(i))) options.skipped |= 1u << i;
  }
  record_history(on ? std::optional(options) : std::nullopt, clear);
}

static py::dict cached_memory(int device) {
  Device& d = device_state(resolve_device(device));
  DeviceLock lock(d.mutex);
  const auto cached = cached_blocks(d);
  return py::dict(py::arg("blocks") = cached.blocks, py::arg("bytes") = cached.bytes, py::arg("largest") = cached.largest);
}

// Memory without a tensor, as from torch.cuda.caching_allocator_alloc: identified by its address.
struct RawBlock {
  Block* block = nullptr;
  bool freed = false;
};
static std::mutex g_raw_mutex;
static std::map<uintptr_t, RawBlock> g_raw;

static uintptr_t allocate_raw(size_t bytes, int device) {
  Block* b = allocate_block(bytes, resolve_device(device));
  const auto address = reinterpret_cast<uintptr_t>(b->address);
  std::lock_guard<std::mutex> lock(g_raw_mutex);
  g_raw[address] = {b, false};
  return address;
}

static void free_raw(uintptr_t address) {
  RawBlock raw;
  {
    std::lock_guard<std::mutex> lock(g_raw_mutex);
    auto& known = g_raw[address];
    raw = known;
    known.freed = true;
  }
  // the checker reports a second free and skips it
  const bool checked = (g_notes.load() & kChecks) != 0;
  TORCH_CHECK(raw.block != nullptr && (!raw.freed || checked), "DIPU: ", reinterpret_cast<void*>(address),
              raw.freed ? " was freed twice" : " is not an allocation of caching_allocator_alloc");
  free_block(raw.block);
}

void bind_memory(py::module_& m) {
  m.def("allocate_raw", &allocate_raw, py::call_guard<py::gil_scoped_release>());
  m.def("free_raw", &free_raw, py::call_guard<py::gil_scoped_release>());
  m.def("memory_info", &memory_info);
  m.def("set_memory_limit", &set_memory_limit);
  m.def("cached_memory", &cached_memory);
  m.def("memory_snapshot", [] {
    Frames frames;
    auto result = segments(memory_snapshot(), frames);
    frames.fill();
    return result;
  });
  m.def("snapshot_with_history", &snapshot_with_history);
  m.def("record_memory_history", &record_memory_history);
  m.def("start_memory_check", &start_memory_check);
  m.def("memory_check_report", &memory_check_report, py::call_guard<py::gil_scoped_release>());
  m.def("finish_memory_check", &finish_memory_check, py::call_guard<py::gil_scoped_release>());
}

}  // namespace dipu
