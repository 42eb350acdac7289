// SPDX-License-Identifier: Apache-2.0
// The Python module torch_dipu._C.
#include <ATen/ops/ones.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>

#include "distributed/collective_log.h"
#include "distributed/dicl.h"
#include "graphs/capture.h"
#include "routes/c_route.h"
#include "routes/python_hook.h"
#include "runtime/core.h"

namespace py = pybind11;

namespace dipu {

void register_hooks();
void register_profiler();
void bind_memory(py::module_& m);
void bind_graphs(py::module_& m);

static void initialize(uintptr_t table, bool calls_python) {
  static bool done = false;
  TORCH_CHECK(!done, "torch_dipu is initialised already");
  bind_runtime(reinterpret_cast<const DipuRuntime*>(table), calls_python);
  register_hooks();
  install_redirect();
  register_engine();
  register_profiler();
  register_graphs();
  done = true;
}

static py::dict device_info(int device) {
  DipuDeviceInfo info{};
  check(runtime().device_info(resolve_device(device), &info), "device_info");
  py::dict result;
  result["name"] = std::string(info.name);
  result["total_memory"] = info.total_memory;
  result["major"] = info.major;
  result["minor"] = info.minor;
  result["multi_processor_count"] = info.multiprocessors;
  return result;
}

static py::tuple export_memory(const at::Tensor& t) {
  TORCH_CHECK(runtime().memory_export != nullptr, "this DIPU vendor cannot share memory between processes");
  int fd = -1;
  uint64_t offset = 0;
  auto& storage = t.storage();
  check(runtime().memory_export(t.device().index(), storage.mutable_data(), &fd, &offset), "memory_export");
  return py::make_tuple(fd, offset, storage.nbytes());
}

static at::Tensor import_bytes(int device, int fd, uint64_t offset, size_t bytes, int token) {
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, import_memory(device, fd, offset, bytes, token), device_allocator(), false);
  auto result = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(std::move(storage)), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), caffe2::TypeMeta::fromScalarType(at::kByte));
  result.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<int64_t>(bytes)});
  return result;
}

// Access to autograd's threads, one per device, which the first backward pass of a process creates.
struct AutogradThreads : torch::autograd::Engine {
  static size_t count() { return (get_default_engine().*&AutogradThreads::device_ready_queues_).size(); }

  // A backward pass before this device was registered created no thread for it; later passes would not.
  static void make_missing() {
    auto& engine = get_default_engine();
    if (engine.*&AutogradThreads::thread_pool_shared_ && count() == 0) (engine.*&AutogradThreads::start_device_threads)();
  }
};

// Runs an empty backward pass on each device. When it is done, autograd's threads have released the
// tensors of earlier passes. At exit they could not: they would be killed while waiting for the GIL.
static void drain_autograd() {
  if (!is_initialized()) return;
  // none before the first pass
  const int used = std::min(device_count(), static_cast<int>(AutogradThreads::count()));
  for (int i = 0; i < used; i++) {
    auto leaf = at::ones({1}, at::TensorOptions().device(dipu_device(i))).set_requires_grad(true);
    leaf.sum().backward();
  }
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "The native core of torch_dipu.";
  m.def("initialize", &initialize);
  m.def("device_count", &device_count);
  m.def("current_device", &current_device);
  m.def("exchange_device", &exchange_device);
  m.def("device_info", &device_info);
  m.def("is_initialized", &is_initialized);
  m.def("in_bad_fork", &in_bad_fork);
  m.def("synchronize", &synchronize_device, py::call_guard<py::gil_scoped_release>());
  m.def("current_stream_handle", [](int device) { return reinterpret_cast<uintptr_t>(current_stream(resolve_device(device))); });
  m.def("host_reachable", [](int device) { return host_reachable(resolve_device(device)); });
  m.def("host_window", [](int device) { return host_window(resolve_device(device)); });
  bind_memory(m);
  m.def("default_generator", [](int device) { return default_generator(device); });
  m.def("host_state", &host_state);
  m.def("alias_host", [](const at::Tensor& t) {
    TORCH_CHECK(on_device(t) && t.has_storage(), "alias_host: expected a strided dipu tensor, found one on ", t.device());
    TORCH_CHECK(
        recording(t.device().index()) == nullptr, "DIPU: the host's access to device memory is not permitted while a graph ",
        "captures the stream. Hint: copy before or after the capture");
    return alias_host(t);
  });
  bind_graphs(m);
  m.def("make_missing_autograd_threads", &AutogradThreads::make_missing, py::call_guard<py::gil_scoped_release>());
  m.def("drain_autograd", &drain_autograd, py::call_guard<py::gil_scoped_release>());
  m.def("refuse_dtype", [](std::optional<at::ScalarType> dtype) { refuse_dtype(dtype); });
  bind_routes(m);
  bind_c_routes(m);
  m.def("export_memory", &export_memory);
  m.def("import_bytes", &import_bytes);
  m.def("make_process_group", &make_process_group);
  m.def("has_communicator", &has_communicator);
  m.def("make_chip_group", [](c10::intrusive_ptr<c10d::Store> store, int rank, int size, int64_t milliseconds) {
    return make_chip_group(std::move(store), rank, size, std::chrono::milliseconds(milliseconds));
  });
  m.def("rest_groups", &rest_groups, py::call_guard<py::gil_scoped_release>());
  bind_flight(m);
}

}  // namespace dipu
