// The device's process group over a host backend (gloo, say) that does the moving.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace dipu {
c10::intrusive_ptr<c10d::Backend> make_process_group(c10::intrusive_ptr<c10d::Backend> host_backend);
}  // namespace dipu
