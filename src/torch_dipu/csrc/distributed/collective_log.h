/* SPDX-License-Identifier: Apache-2.0 */
// The flight record: the last collectives of this process and the state of each.
#pragma once

#include <exception>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/utils/pybind.h>

namespace dipu {

// Records the start of a collective and returns its number for `flight_end`; 0: nothing is recorded.
uint64_t flight_begin(
    const c10d::Backend& group, c10d::OpType type, const std::vector<at::Tensor>& inputs,
    const std::vector<at::Tensor>& outputs, int peer = -1);
// Records the end of a collective. The first error of a process is reported to `on_failure`.
void flight_end(uint64_t number, const std::exception_ptr& error);
void bind_flight(py::module& m);

}  // namespace dipu
