// SPDX-License-Identifier: Apache-2.0
#include "distributed/collective_log.h"

#include <atomic>
#include <chrono>
#include <deque>
#include <mutex>
#include <unordered_map>

namespace dipu {

namespace {

struct Entry {
  uint64_t number, sequence;
  std::string group, operation, where, error;
  int rank, size, peer;
  std::vector<std::string> inputs, outputs;
  double begun, ended;
  const char* state;
};

std::mutex g_mutex;
std::deque<Entry> g_entries;
std::unordered_map<std::string, uint64_t> g_sequences;  // number of collectives of each group
uint64_t g_number = 0;
std::atomic<size_t> g_capacity{256};
std::atomic<bool> g_told{false};
std::atomic<PyObject*> g_on_failure{nullptr};

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::vector<std::string> described(const std::vector<at::Tensor>& tensors) {
  std::vector<std::string> result;
  for (auto& t : tensors) {
    // only the beginning of a long list
    if (result.size() == 8) return result.push_back("…"), result;
    result.push_back(c10::str(c10::toString(t.scalar_type()), t.sizes()));
  }
  return result;
}

std::string text(PyObject* owner, const char* name) {
  auto value = py::reinterpret_steal<py::object>(PyObject_GetAttrString(owner, name));
  return value ? std::string(py::str(value)) : "";
}

// Returns the innermost line outside of torch; empty in a thread of autograd.
std::string python_line() {
  if (!Py_IsInitialized()) return "";
  py::gil_scoped_acquire gil;
  auto* frame = PyEval_GetFrame();
  Py_XINCREF(reinterpret_cast<PyObject*>(frame));
  std::string found;
  while (frame != nullptr && found.empty()) {
    auto code = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
    const auto file = text(code.ptr(), "co_filename");
    if (file.find("/torch/") == std::string::npos && file.rfind('<', 0) != 0) {
      found = c10::str(file, ":", PyFrame_GetLineNumber(frame), " ", text(code.ptr(), "co_name"));
    }
    auto* outer = PyFrame_GetBack(frame);
    Py_DECREF(reinterpret_cast<PyObject*>(frame));
    frame = outer;
  }
  Py_XDECREF(reinterpret_cast<PyObject*>(frame));
  return found;
}

Entry* find(uint64_t number) {
  if (g_entries.empty() || number < g_entries.front().number) return nullptr;
  const size_t at = number - g_entries.front().number;
  return at < g_entries.size() ? &g_entries[at] : nullptr;
}

void tell() {
  if (g_on_failure.load() == nullptr || g_told.exchange(true)) return;
  py::gil_scoped_acquire gil;
  auto* callable = g_on_failure.load();  // under the GIL: no other thread can replace it
  if (callable == nullptr) return;
  try {
    py::reinterpret_borrow<py::object>(callable)();
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("the flight record of dicl");
  }
}

#ifdef C10D_BACKEND_HAS_HOOKS
// A backend of the device has one recorder for all groups, as this record is one.
std::mutex g_hooks_mutex;  // a hook is called without it: it may unregister itself
std::unordered_map<int64_t, c10d::AbortHook> g_abort_hooks;
std::unordered_map<int64_t, c10d::CompletionHook> g_completion_hooks;

template <class Hook>
std::unordered_map<int64_t, Hook> copy_of(const std::unordered_map<int64_t, Hook>& hooks) {
  std::lock_guard<std::mutex> lock(g_hooks_mutex);
  return hooks;
}
void call_hooks(uint64_t number, double seconds, bool failed) {
  if (failed) {
    for (auto& [id, hook] : copy_of(g_abort_hooks)) hook();
    return;
  }
  const c10d::CompletionHookArgs args{number, static_cast<float>(seconds * 1e3)};
  for (auto& [id, hook] : copy_of(g_completion_hooks)) hook(args);
}
#else
void call_hooks(uint64_t, double, bool) {}
#endif

}  // namespace

#ifdef C10D_BACKEND_HAS_HOOKS
bool LoggedBackend::supportsAbortHooks() const {
  return true;
}
void LoggedBackend::registerAbortHook(int64_t id, c10d::AbortHook hook) {
  std::lock_guard<std::mutex> lock(g_hooks_mutex);
  g_abort_hooks[id] = std::move(hook);
}
void LoggedBackend::unregisterAbortHook(int64_t id) {
  std::lock_guard<std::mutex> lock(g_hooks_mutex);
  g_abort_hooks.erase(id);
}
bool LoggedBackend::supportsCompletionHooks() const {
  return g_capacity.load() > 0;
}
void LoggedBackend::registerCompletionHook(int64_t id, c10d::CompletionHook hook) {
  std::lock_guard<std::mutex> lock(g_hooks_mutex);
  g_completion_hooks[id] = std::move(hook);
}
void LoggedBackend::unregisterCompletionHook(int64_t id) {
  std::lock_guard<std::mutex> lock(g_hooks_mutex);
  g_completion_hooks.erase(id);
}
#endif

uint64_t flight_begin(
    const c10d::Backend& group, c10d::OpType type, const std::vector<at::Tensor>& inputs,
    const std::vector<at::Tensor>& outputs, int peer) {
  const size_t capacity = g_capacity.load();
  if (capacity == 0) return 0;
  auto where = python_line();
  std::lock_guard<std::mutex> lock(g_mutex);
  const bool collective = type != c10d::OpType::SEND && type != c10d::OpType::RECV && type != c10d::OpType::RECVANYSOURCE;
  const auto& name = group.getGroupUid();
  const uint64_t sequence = collective ? ++g_sequences[name] : 0;
  g_entries.push_back(
      {++g_number, sequence, name, c10d::opTypeToString(type), std::move(where), "", group.getRank(), group.getSize(),
       peer, described(inputs), described(outputs), now(), 0, "pending"});
  while (g_entries.size() > capacity) g_entries.pop_front();
  return g_number;
}

void flight_end(uint64_t number, const std::exception_ptr& error) {
  if (number == 0) return;
  double seconds = 0;
  {
    std::lock_guard<std::mutex> lock(g_mutex);
    auto* entry = find(number);
    if (entry == nullptr || entry->ended != 0) return;
    entry->ended = now();
    seconds = entry->ended - entry->begun;
    entry->state = error ? "failed" : "done";
    if (error) {
      try {
        std::rethrow_exception(error);
      } catch (const std::exception& reason) {
        entry->error = std::string(reason.what()).substr(0, 400);
      }
    }
  }
  call_hooks(number, seconds, error != nullptr);
  if (error) tell();
}

void bind_flight(py::module& m) {
  m.def("flight_capacity", [](size_t count) { g_capacity = count; });
  m.def("flight_on_failure", [](const py::object& callable) {
    auto* kept = callable.is_none() ? nullptr : callable.inc_ref().ptr();
    auto* before = g_on_failure.exchange(kept);
    Py_XDECREF(before);
    g_told = false;
  });
  m.def("flight_record", [] {
    std::lock_guard<std::mutex> lock(g_mutex);
    py::list result;
    for (auto& e : g_entries) {
      py::dict row;
      row["number"] = e.number;
      row["group"] = e.group;
      row["sequence"] = e.sequence;
      row["operation"] = e.operation;
      row["rank"] = e.rank;
      row["size"] = e.size;
      row["peer"] = e.peer;
      row["inputs"] = e.inputs;
      row["outputs"] = e.outputs;
      row["begun"] = e.begun;
      row["ended"] = e.ended;
      row["state"] = e.state;
      row["where"] = e.where;
      row["error"] = e.error;
      result.append(row);
    }
    return result;
  });
}

}  // namespace dipu
