// SPDX-License-Identifier: Apache-2.0
// Kernels that C++ registers for CUDA: TORCH_LIBRARY_IMPL(ns, CUDA, m) registers for the target.
//
// The macro calls a constructor of libtorch_cpu, and a library of the stable ABI calls a C function.
// This library exports functions of the same names and joins the global scope, which the loader
// searches before the dependencies of a library. So every library that is loaded later calls these
// functions, which map the dispatch key and call libtorch's. Libraries that are loaded already, as
// torch's own, are not affected.
#include "library_keys.h"

#include <c10/core/DispatchKey.h>
#include <dlfcn.h>

#include <map>
#include <optional>
#include <string>

#define DITORCH_EXPORT __attribute__((visibility("default")))
#define DITORCH_LIBRARY "_ZN5torch7LibraryC1ENS0_4KindENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEESt8optionalIN3c1011DispatchKeyEEPKcj"
#define DITORCH_STABLE_LIBRARY "aoti_torch_library_init_impl"

namespace ditorch {

static std::map<int, int> g_keys;  // empty: nothing is mapped

static c10::DispatchKey mapped(c10::DispatchKey key) {
  const auto found = g_keys.find(static_cast<int>(key));
  return found == g_keys.end() ? key : static_cast<c10::DispatchKey>(found->second);
}

template <class Function>
static Function of_libtorch(const char* symbol) {
  static void* library = dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD);
  return reinterpret_cast<Function>(dlsym(library, symbol));
}

// The constructor torch::Library::Library; its first argument is the object.
DITORCH_EXPORT void construct_library(void* self, int kind, std::string ns, std::optional<c10::DispatchKey> key, const char* file,
                                      uint32_t line) asm(DITORCH_LIBRARY);
void construct_library(void* self, int kind, std::string ns, std::optional<c10::DispatchKey> key, const char* file, uint32_t line) {
  static const auto original = of_libtorch<decltype(&construct_library)>(DITORCH_LIBRARY);
  original(self, kind, std::move(ns), key.has_value() ? std::optional(mapped(*key)) : key, file, line);
}

extern "C" DITORCH_EXPORT int32_t aoti_torch_library_init_impl(const char* ns, const char* key, const char* file, uint32_t line, void** library) {
  static const auto original = of_libtorch<decltype(&aoti_torch_library_init_impl)>(DITORCH_STABLE_LIBRARY);
  std::string name = key;
  for (const auto& [from, to] : g_keys) {
    if (name == c10::toString(static_cast<c10::DispatchKey>(from))) {
      name = c10::toString(static_cast<c10::DispatchKey>(to));
      break;
    }
  }
  return original(ns, name.c_str(), file, line, library);
}

void map_library_keys(const std::map<int, int>& keys) {
  g_keys = keys;
  static void* joined = nullptr;
  Dl_info self;
  if (joined == nullptr && !keys.empty() && dladdr(reinterpret_cast<void*>(&map_library_keys), &self) != 0) {
    joined = dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL);
  }
}

}  // namespace ditorch
