// The numbers of calls and of steps, where any thread reads them without the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <cstdint>

namespace op_tools {

extern std::atomic<int64_t> next_id;  // of a call: one count for the whole process, Python's too
extern std::atomic<int64_t> current_step;

void bind_counting(pybind11::module_& m);

}  // namespace op_tools
