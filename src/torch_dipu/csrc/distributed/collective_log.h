/* SPDX-License-Identifier: Apache-2.0 */
// The flight record: the last collectives of this process, which rank waits in which of them.
#pragma once

#include <exception>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/utils/pybind.h>

namespace dipu {

// What is about to run; the number is for `flight_end`. 0: nothing is recorded.
uint64_t flight_begin(
    const c10d::Backend& group, c10d::OpType type, const std::vector<at::Tensor>& inputs,
    const std::vector<at::Tensor>& outputs, int peer = -1);
// It is over; with an error, whoever asked for it (`on_failure`) is told, once in a process.
void flight_end(uint64_t number, const std::exception_ptr& error);
void bind_flight(py::module& m);

}  // namespace dipu
