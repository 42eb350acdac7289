// What Python sees of the core: torch_dipu._C.
#include <torch/csrc/utils/pybind.h>

#include "core.h"
#include "dicl.h"
#include "engine.h"

namespace py = pybind11;

namespace dipu {

void register_hooks();

static void initialize(uintptr_t table) {
  static bool done = false;
  TORCH_CHECK(!done, "torch_dipu is initialised already");
  bind_runtime(reinterpret_cast<const DipuRuntime*>(table));
  register_hooks();
  install_redirect();
  register_engine();
  done = true;
}

static void set_hook_py(const std::vector<std::string>& names, py::object callable) {
  // the reference is kept for good: an operator may be inside the callable on another thread
  set_hook(names, callable.is_none() ? nullptr : callable.release().ptr());
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
  m.def("memory_info", &memory_info);
  m.def("default_generator", [](int device) { return default_generator(device); });
  m.def("alias_host", [](const at::Tensor& t) {
    TORCH_CHECK(on_device(t) && t.has_storage(), "alias_host: expected a strided dipu tensor, found one on ", t.device());
    return alias_host(t);
  });
  m.def("operators", &known_operators);
  m.def("set_hook", &set_hook_py);
  m.def("exchange_hooks_off", [](bool off) { return std::exchange(tls_hooks_off, off); });
  m.def("export_memory", &export_memory);
  m.def("import_bytes", &import_bytes);
  m.def("make_process_group", &make_process_group);
}

}  // namespace dipu
