// SPDX-License-Identifier: Apache-2.0
// Python bindings of graphs, of private pools, and of inductor's kernels, which a graph records too.
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "graphs/capture.h"

namespace py = pybind11;

namespace dipu {

// A pool that a program chose for its allocations: it has a user while this object exists.
struct MemoryPool {
  PoolId id{0, 0};
  std::array<PrivatePool*, kMaxDevices> pools{};
  explicit MemoryPool(PoolId wanted) : id(wanted) {}
  ~MemoryPool() {
    if (in_bad_fork()) return;
    for (int i = 0; i < device_count(); i++) if (pools[i] != nullptr) release_pool(i, id);
  }
  PrivatePool* on(int device) {
    if (pools[device] == nullptr) pools[device] = use_pool(device, id);
    return pools[device];
  }
};

static PoolId new_pool() {
  static std::atomic<uint64_t> count{0};
  return {0, ++count};
}

// The device tensors among the arguments as host tensors on the same bytes.
static py::tuple on_host(const py::tuple& arguments) {
  py::tuple host(arguments.size());
  for (size_t i = 0; i < arguments.size(); i++) {
    const py::object value = arguments[i];
    const bool there = THPVariable_Check(value.ptr()) && on_device(THPVariable_Unpack(value.ptr()));
    host[i] = there ? py::cast(alias_host(THPVariable_Unpack(value.ptr()))) : value;
  }
  return host;
}

// What a graph keeps of a call of Python: released with the GIL.
struct PythonCall {
  py::object function;
  py::tuple arguments;
  ~PythonCall() {
    const py::gil_scoped_acquire gil;
    function = py::object();
    arguments = py::tuple(0);
  }
};

static void launch_kernel(const py::object& kernel, const py::tuple& arguments) {
  int device = current_device();
  for (const auto& value : arguments) {
    if (THPVariable_Check(value.ptr()) && on_device(THPVariable_Unpack(value.ptr()))) device = THPVariable_Unpack(value.ptr()).device().index();
  }
  const auto capture = recording(device);
  if (C10_LIKELY(capture == nullptr)) {
    kernel(*on_host(arguments));
    return;
  }
  auto call = std::make_shared<PythonCall>(PythonCall{kernel, py::tuple(arguments.size())});
  for (size_t i = 0; i < arguments.size(); i++) {
    const py::object value = arguments[i];
    call->arguments[i] = value;
    if (!THPVariable_Check(value.ptr()) || !on_device(THPVariable_Unpack(value.ptr()))) continue;
    note_written(capture, THPVariable_Unpack(value.ptr()), "inductor kernel");
    call->arguments[i] = py::cast(unowned(THPVariable_Unpack(value.ptr())));
  }
  {
    const CapturePause pause;
    kernel(*on_host(arguments));
  }
  record_run(capture, "inductor kernel", [call] {
    const py::gil_scoped_acquire gil;
    call->function(*on_host(call->arguments));
  });
}

void bind_graphs(py::module_& m) {
  using Released = py::call_guard<py::gil_scoped_release>;
  py::class_<Graph>(m, "Graph")
      .def(py::init<>())
      .def("capture_begin", [](Graph& graph, PoolId pool, int mode) { graph.capture_begin(pool, static_cast<CaptureMode>(mode)); }, Released())
      .def("capture_end", &Graph::capture_end, Released())
      .def("replay", &Graph::replay, Released())
      .def("reset", &Graph::reset, Released())
      .def("pool", &Graph::pool)
      .def("is_captured", &Graph::is_captured)
      .def("calls", &Graph::calls)
      .def("debug_dump", &Graph::debug_dump);
  py::class_<MemoryPool>(m, "MemoryPool")
      .def(py::init<PoolId>())
      .def_readonly("id", &MemoryPool::id)
      .def("select", [](MemoryPool& pool, int device) { return reinterpret_cast<uintptr_t>(exchange_thread_pool(device, pool.on(device))); });
  m.def("restore_pool", [](int device, uintptr_t pool) { exchange_thread_pool(device, reinterpret_cast<PrivatePool*>(pool)); });
  m.def("new_pool", &new_pool);
  m.def("is_capturing", [](int device) { return is_capturing(resolve_device(device)); });
  m.def("launch_kernel", &launch_kernel);
}

}  // namespace dipu
