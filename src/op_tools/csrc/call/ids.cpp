// SPDX-License-Identifier: Apache-2.0
#include "ids.h"

namespace py = pybind11;

namespace op_tools {

std::atomic<int64_t> next_id{1};
std::atomic<int64_t> current_step{0};

namespace {

// An iterator over call ids that Python uses in place of an itertools.count.
struct Ids {};

}  // namespace

void bind_ids(py::module_& m) {
  py::class_<Ids>(m, "Ids")
      .def(py::init([](int64_t first) {
        for (int64_t now = next_id; now < first && !next_id.compare_exchange_weak(now, first);) {
        }
        return Ids();
      }))
      .def(
          "__iter__", [](Ids& self) -> Ids& { return self; },
          py::return_value_policy::reference_internal)
      .def("__next__", [](Ids&) { return next_id.fetch_add(1, std::memory_order_relaxed); });
  m.def("set_step", [](int64_t step) { current_step = step; });
}

}  // namespace op_tools
