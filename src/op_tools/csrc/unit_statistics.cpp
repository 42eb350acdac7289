// The native part of op_tools, as Python sees it.
#include <pybind11/pybind11.h>

#include "hash.h"
#include "measure.h"

namespace py = pybind11;

namespace op_tools {

void bind_calls(py::module_& m);     // unit_calls.cpp
void bind_compare(py::module_& m);   // unit_compare.cpp
void bind_counting(py::module_& m);  // unit_counting.cpp
void bind_fronts(py::module_& m);     // unit_fronts.cpp
void bind_functions(py::module_& m);  // unit_functions.cpp
void bind_heads(py::module_& m);     // unit_heads.cpp
void bind_kernels(py::module_& m);   // unit_kernels.cpp
void bind_modules(py::module_& m);   // unit_modules.cpp
void bind_recorder(py::module_& m);  // unit_recorder.cpp
void bind_signature(py::module_& m);  // unit_signature.cpp
void bind_timing(py::module_& m);    // unit_timing.cpp
void bind_values(py::module_& m);    // unit_values.cpp

static py::tuple measure_address(uintptr_t address, size_t count, int kind, bool hash_only) {
  Measured found;
  {
    py::gil_scoped_release release;
    found = measure(reinterpret_cast<const uint8_t*>(address), count, static_cast<Kind>(kind), hash_only);
  }
  if (hash_only) return py::make_tuple(found.hash);
  if (!found.numbers) return py::make_tuple(found.hash, py::none(), py::none(), py::none(), py::none(), found.nonfinite);
  if (found.whole) return py::make_tuple(found.hash, found.whole_low, found.whole_high, found.mean, found.norm, found.nonfinite);
  return py::make_tuple(found.hash, found.low, found.high, found.mean, found.norm, found.nonfinite);
}

static uint64_t hash_address(uintptr_t address, size_t size) {
  py::gil_scoped_release release;
  return hash_bytes(reinterpret_cast<const uint8_t*>(address), size);
}

}  // namespace op_tools

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  op_tools::bind_calls(m);
  op_tools::bind_compare(m);
  op_tools::bind_counting(m);
  op_tools::bind_fronts(m);
  op_tools::bind_functions(m);
  op_tools::bind_heads(m);
  op_tools::bind_kernels(m);
  op_tools::bind_modules(m);
  op_tools::bind_recorder(m);
  op_tools::bind_signature(m);
  op_tools::bind_timing(m);
  op_tools::bind_values(m);
  m.def("measure", &op_tools::measure_address, "hash, min, max, mean, norm, nonfinite of host memory");
  m.def("hash", &op_tools::hash_address, "the hash of so many bytes at an address");
}
