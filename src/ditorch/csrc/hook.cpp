// SPDX-License-Identifier: Apache-2.0
// The native hook: a device named "cuda" becomes the target device wherever torch's Python binding
// parses one, and a target device reports the name "cuda" to user code.
//
// Two places are changed, and restored by `remove`: import slots of libtorch_python (for
// c10::Device(std::string), and on plain CPU for the device of a bare index), and the getters
// of torch.device and of Tensor.is_cuda. If the self-test in native.py fails, the changes are undone.
#include <ATen/DeviceAccelerator.h>
#include <c10/core/Device.h>
#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
#include <unistd.h>

#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "library_keys.h"

namespace py = pybind11;

namespace ditorch {

using Constructor = void (*)(void*, const std::string&);
using Accelerator = std::optional<c10::DeviceType> (*)(bool);
constexpr const char* kConstructor = "_ZN3c106DeviceC1ERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";
constexpr const char* kAccelerator = "_ZN2at11accelerator14getAcceleratorEb";

static std::string g_target;          // "dipu"
static bool g_keep_index = true;      // "cuda:1" -> "dipu:1", but -> "cpu"
static c10::DeviceType g_target_type;
static Constructor g_constructor = nullptr;
static Accelerator g_accelerator = nullptr;
static void** g_slot = nullptr;
static void** g_accelerator_slot = nullptr;
static newfunc g_new = nullptr;

static bool is_cuda_name(const std::string& name) {
  return name.compare(0, 4, "cuda") == 0 && (name.size() == 4 || name[4] == ':');
}
static void construct(void* self, const std::string& name) {
  if (!is_cuda_name(name)) return g_constructor(self, name);
  g_constructor(self, g_keep_index ? g_target + name.substr(4) : g_target);
}

// Plain CPU is no accelerator to torch. `device=0` requires an accelerator, and gets the CPU; a
// query for an accelerator (torch.accelerator) returns none, on a torch built for CUDA as well,
// because its devices are not those of the session.
static std::optional<c10::DeviceType> accelerator(bool checked) {
  const auto found = g_accelerator(false);
  if (found.has_value() && found != c10::kCUDA) return found;
  return checked ? std::optional(g_target_type) : std::nullopt;
}
// torch.device(0) and torch.device("cuda", 0) are "cpu", as the device of every tensor there.
static PyObject* device_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  PyObject* first = PyTuple_GET_SIZE(args) > 0 ? PyTuple_GET_ITEM(args, 0) : nullptr;
  for (const char* key : {"type", "device"}) {
    if (first == nullptr && kwargs != nullptr) first = PyDict_GetItemString(kwargs, key);  // borrowed
  }
  bool ours = first != nullptr && PyLong_CheckExact(first) && PyLong_AsLong(first) >= 0;
  if (first != nullptr && PyUnicode_Check(first)) {
    const char* name = PyUnicode_AsUTF8(first);
    ours = name != nullptr && is_cuda_name(name);
  }
  PyErr_Clear();  // a number or an invalid text: torch raises the error
  if (!ours) return g_new(type, args, kwargs);
  const auto target = py::make_tuple(g_target);
  return g_new(type, target.ptr(), nullptr);
}

// ---- the import slot

struct Wanted {
  const char* library;
  const char* symbol;
  void** slot;
};
static void** slot_in(const ElfW(Rela)* table, size_t count, const ElfW(Sym)* symbols, const char* names, ElfW(Addr) base, const char* symbol) {
  for (size_t i = 0; i < count; i++) {
    const auto index = ELF64_R_SYM(table[i].r_info);
    if (index != 0 && std::strcmp(names + symbols[index].st_name, symbol) == 0) {
      return reinterpret_cast<void**>(base + table[i].r_offset);
    }
  }
  return nullptr;
}
static int look_for_slot(dl_phdr_info* info, size_t, void* data) {
  auto* wanted = static_cast<Wanted*>(data);
  if (std::strstr(info->dlpi_name, wanted->library) == nullptr) return 0;
  const ElfW(Dyn)* dynamic = nullptr;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    if (info->dlpi_phdr[i].p_type == PT_DYNAMIC) dynamic = reinterpret_cast<const ElfW(Dyn)*>(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
  }
  const ElfW(Sym)* symbols = nullptr;
  const char* names = nullptr;
  const ElfW(Rela)* tables[2] = {nullptr, nullptr};
  size_t counts[2] = {0, 0};
  for (auto* d = dynamic; d != nullptr && d->d_tag != DT_NULL; d++) {
    switch (d->d_tag) {
      case DT_SYMTAB: symbols = reinterpret_cast<const ElfW(Sym)*>(d->d_un.d_ptr); break;
      case DT_STRTAB: names = reinterpret_cast<const char*>(d->d_un.d_ptr); break;
      case DT_JMPREL: tables[0] = reinterpret_cast<const ElfW(Rela)*>(d->d_un.d_ptr); break;
      case DT_PLTRELSZ: counts[0] = d->d_un.d_val / sizeof(ElfW(Rela)); break;
      case DT_RELA: tables[1] = reinterpret_cast<const ElfW(Rela)*>(d->d_un.d_ptr); break;
      case DT_RELASZ: counts[1] = d->d_un.d_val / sizeof(ElfW(Rela)); break;
      default: break;
    }
  }
  for (int i = 0; i < 2 && wanted->slot == nullptr && symbols != nullptr && names != nullptr; i++) {
    wanted->slot = slot_in(tables[i], counts[i], symbols, names, info->dlpi_addr, wanted->symbol);
  }
  return wanted->slot != nullptr;
}
static bool writable(void* address) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto start = reinterpret_cast<uintptr_t>(address) & ~(page - 1);
  return mprotect(reinterpret_cast<void*>(start), 2 * page, PROT_READ | PROT_WRITE) == 0;
}

// Writes `function` into libtorch_python's import slot of the symbol; null if there is no such slot.
static void** exchange(const char* symbol, void* function) {
  Wanted wanted{"libtorch_python.so", symbol, nullptr};
  dl_iterate_phdr(look_for_slot, &wanted);
  if (wanted.slot == nullptr || !writable(wanted.slot)) return nullptr;
  *wanted.slot = function;
  return wanted.slot;
}

// Returns false if the slot does not exist (another build of torch); nothing was changed.
static bool install_names(const std::string& target, bool keep_index) {
  TORCH_CHECK(g_slot == nullptr, "the device hook is installed already");
  g_target = target;
  g_keep_index = keep_index;
  g_target_type = c10::Device(target).type();
  g_constructor = reinterpret_cast<Constructor>(dlsym(RTLD_DEFAULT, kConstructor));
  g_accelerator = reinterpret_cast<Accelerator>(dlsym(RTLD_DEFAULT, kAccelerator));
  if (g_constructor == nullptr) return false;
  g_slot = exchange(kConstructor, reinterpret_cast<void*>(&construct));
  if (g_slot == nullptr) return false;
  if (!keep_index) {
    if (g_accelerator != nullptr) g_accelerator_slot = exchange(kAccelerator, reinterpret_cast<void*>(&accelerator));
    g_new = std::exchange(THPDeviceType.tp_new, device_new);
  }
  return true;
}
static void remove_names() {
  if (g_slot == nullptr) return;
  *g_slot = reinterpret_cast<void*>(g_constructor);
  g_slot = nullptr;
  if (g_accelerator_slot != nullptr) *g_accelerator_slot = reinterpret_cast<void*>(g_accelerator);
  g_accelerator_slot = nullptr;
  if (g_new != nullptr) THPDeviceType.tp_new = g_new;
  g_new = nullptr;
}

// ---- identity: user code sees "cuda", torch and the vendor's package see the device's true name.
// On plain CPU only tensors report "cuda", because CUDA programs use the CPU under its own name, too.

static std::vector<std::string> g_insiders;  // folders whose code sees the true name
static PyGetSetDef* g_type_field = nullptr;
static PyGetSetDef* g_is_cuda_field = nullptr;
static getter g_type = nullptr, g_is_cuda = nullptr;
static reprfunc g_repr = nullptr, g_str = nullptr;

static bool asked_by_insider() {
  PyFrameObject* frame = PyEval_GetFrame();
  if (frame == nullptr) return true;  // called from C: the true name
  PyCodeObject* code = PyFrame_GetCode(frame);
  const char* file = PyUnicode_AsUTF8(code->co_filename);
  bool insider = false;
  for (const auto& folder : g_insiders) insider |= file != nullptr && std::strncmp(file, folder.c_str(), folder.size()) == 0;
  Py_DECREF(code);
  return insider;
}
static const c10::Device& device_of(PyObject* self) {
  return reinterpret_cast<THPDevice*>(self)->device;
}
static bool shown_as_cuda(PyObject* self) {
  return device_of(self).type() == g_target_type && !asked_by_insider();
}
static PyObject* type_getter(PyObject* self, void* closure) {
  if (!shown_as_cuda(self)) return g_type(self, closure);
  static PyObject* name = PyUnicode_InternFromString("cuda");
  return Py_NewRef(name);
}
static std::string index_text(PyObject* self, const char* before) {
  return device_of(self).has_index() ? before + std::to_string(static_cast<int>(device_of(self).index())) : "";
}
static PyObject* device_repr(PyObject* self) {
  if (!shown_as_cuda(self)) return g_repr(self);
  return PyUnicode_FromString(("device(type='cuda'" + index_text(self, ", index=") + ")").c_str());
}
static PyObject* device_str(PyObject* self) {
  if (!shown_as_cuda(self)) return g_str(self);
  return PyUnicode_FromString(("cuda" + index_text(self, ":")).c_str());
}
static PyObject* is_cuda_getter(PyObject* self, void* closure) {
  if (THPVariable_Check(self) && THPVariable_Unpack(self).device().type() == g_target_type && !asked_by_insider()) Py_RETURN_TRUE;
  return g_is_cuda(self, closure);
}

static PyGetSetDef* field_of(PyTypeObject* type, const char* name) {
  PyObject* descriptor = PyDict_GetItemString(type->tp_dict, name);  // borrowed
  if (descriptor == nullptr || Py_TYPE(descriptor) != &PyGetSetDescr_Type) return nullptr;
  return reinterpret_cast<PyGetSetDescrObject*>(descriptor)->d_getset;
}

static bool install_identity(const std::vector<std::string>& insiders, const py::object& tensor_base) {
  auto* type_field = field_of(&THPDeviceType, "type");
  auto* is_cuda_field = field_of(reinterpret_cast<PyTypeObject*>(tensor_base.ptr()), "is_cuda");
  if (type_field == nullptr || is_cuda_field == nullptr || !writable(type_field) || !writable(is_cuda_field)) return false;
  g_insiders = insiders;
  g_is_cuda_field = is_cuda_field;
  g_is_cuda = std::exchange(is_cuda_field->get, is_cuda_getter);
  if (!g_keep_index) return true;
  g_type_field = type_field;
  g_type = std::exchange(type_field->get, type_getter);
  g_repr = std::exchange(THPDeviceType.tp_repr, device_repr);
  g_str = std::exchange(THPDeviceType.tp_str, device_str);
  PyType_Modified(&THPDeviceType);
  return true;
}
static void remove_identity() {
  if (g_is_cuda_field != nullptr) g_is_cuda_field->get = g_is_cuda;
  g_is_cuda_field = nullptr;
  if (g_type_field == nullptr) return;
  g_type_field->get = g_type;
  THPDeviceType.tp_repr = g_repr;
  THPDeviceType.tp_str = g_str;
  PyType_Modified(&THPDeviceType);
  g_type_field = nullptr;
}

// Sets an attribute of a class written in C, which Python code cannot; None deletes it.
static void set_attribute(const py::type& kind, const std::string& name, const py::object& value) {
  auto* type = reinterpret_cast<PyTypeObject*>(kind.ptr());
  const int failed = value.is_none() ? PyDict_DelItemString(type->tp_dict, name.c_str())
                                     : PyDict_SetItemString(type->tp_dict, name.c_str(), value.ptr());
  if (failed != 0) throw py::error_already_set();
  PyType_Modified(type);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "The native hook of ditorch.";
  m.def("install_names", &install_names);
  m.def("remove_names", &remove_names);
  m.def("install_identity", &install_identity);
  m.def("remove_identity", &remove_identity);
  m.def("map_library_keys", &map_library_keys);
  m.def("set_attribute", &set_attribute);
}

}  // namespace ditorch
