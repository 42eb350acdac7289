/* SPDX-License-Identifier: Apache-2.0 */
// The device's process group: over a host backend (gloo, say) that does the moving, or over the
// communicator of the chip's own table (dipu_runtime.h).
#pragma once

#include <chrono>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace dipu {
c10::intrusive_ptr<c10d::Backend> make_process_group(c10::intrusive_ptr<c10d::Backend> host_backend);
bool has_communicator();
c10::intrusive_ptr<c10d::Backend> make_chip_group(
    c10::intrusive_ptr<c10d::Store> store, int rank, int size, std::chrono::milliseconds timeout);
// At the end of the program: no thread of a group asks for the GIL any more when Python goes, which
// would end the whole process.
void rest_groups();
}  // namespace dipu
