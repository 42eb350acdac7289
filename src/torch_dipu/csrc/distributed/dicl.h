/* SPDX-License-Identifier: Apache-2.0 */
// The device's process group: over a host backend (gloo, for example) that moves the data, or over
// the communicator of the chip's own table (dipu_runtime.h).
#pragma once

#include <chrono>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace dipu {
c10::intrusive_ptr<c10d::Backend> make_process_group(c10::intrusive_ptr<c10d::Backend> host_backend);
bool has_communicator();
c10::intrusive_ptr<c10d::Backend> make_chip_group(
    c10::intrusive_ptr<c10d::Store> store, int rank, int size, std::chrono::milliseconds timeout);
// Ends all threads of the groups at exit: a thread that requests the GIL after Python has shut down
// would abort the process.
void rest_groups();
}  // namespace dipu
