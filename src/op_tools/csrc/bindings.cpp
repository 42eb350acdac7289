// SPDX-License-Identifier: Apache-2.0
// The native part of op_tools, as Python sees it: see _C.pyi.
#include <pybind11/pybind11.h>

#include "tensors/hash.h"
#include "tensors/statistics.h"

namespace py = pybind11;

namespace op_tools {

void bind_api_function(py::module_& m);
void bind_aten_observer(py::module_& m);
void bind_call_headers(py::module_& m);
void bind_ids(py::module_& m);
void bind_signature_filter(py::module_& m);
void bind_statistics_sink(py::module_& m);
void bind_time_sink(py::module_& m);
void bind_value_differences(py::module_& m);

static py::list measure_address(uintptr_t address, size_t count, int kind, bool hash_only,
                                int64_t times) {
  Measured found;
  {
    py::gil_scoped_release release;
    found = measure(reinterpret_cast<const uint8_t*>(address), count, static_cast<Kind>(kind),
                    hash_only ? Reads::hash : Reads::everything, times);
  }
  py::list numbers;
  numbers.append(found.hash);
  for (const Statistic& one : kStatistics) {
    if (hash_only || !one.always) continue;
    const Number number = one.of(found);
    numbers.append(number.kind == Number::whole  ? py::object(py::int_(number.exact))
                   : number.kind == Number::real ? py::object(py::float_(number.value))
                                                 : py::none());
  }
  return numbers;
}

static uint64_t hash_address(uintptr_t address, size_t size) {
  py::gil_scoped_release release;
  return hash_bytes(reinterpret_cast<const uint8_t*>(address), size);
}

}  // namespace op_tools

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  op_tools::bind_api_function(m);
  op_tools::bind_aten_observer(m);
  op_tools::bind_call_headers(m);
  op_tools::bind_time_sink(m);
  op_tools::bind_ids(m);
  op_tools::bind_signature_filter(m);
  op_tools::bind_statistics_sink(m);
  op_tools::bind_value_differences(m);
  m.def("measure", &op_tools::measure_address,
        "the hash and the statistics (tensors/statistics.h) of values in host memory");
  py::list names;
  for (const op_tools::Statistic& one : op_tools::kStatistics)
    if (one.always) names.append(one.name);
  m.attr("STATISTICS") = py::tuple(names);
  m.attr("FIELDS") = static_cast<int>(op_tools::kFieldCount);
  m.def("hash", &op_tools::hash_address, "the hash of bytes in host memory");
}
