/* SPDX-License-Identifier: Apache-2.0 */
// The counters of calls and of training steps.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <cstdint>

namespace op_tools {

extern std::atomic<int64_t>
    next_id;  // of a call: one count for the whole process, shared with Python
extern std::atomic<int64_t> current_step;

void bind_ids(pybind11::module_& m);

}  // namespace op_tools
