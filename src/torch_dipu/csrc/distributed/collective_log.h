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

// A backend with a flight record. torch 2.15 registers callbacks with it, for a recorder of its own, which
// dumps at a failure; the key of a completion is the number of `flight_begin`.
struct LoggedBackend : c10d::Backend {
  using c10d::Backend::Backend;
#ifdef C10D_BACKEND_HAS_HOOKS
  bool supportsAbortHooks() const;
  void registerAbortHook(int64_t id, c10d::AbortHook hook);
  void unregisterAbortHook(int64_t id);
  bool supportsCompletionHooks() const;
  void registerCompletionHook(int64_t id, c10d::CompletionHook hook);
  void unregisterCompletionHook(int64_t id);
#endif
};

}  // namespace dipu
