/* SPDX-License-Identifier: Apache-2.0 */
// Kernels for the commonest signatures that need no boxing.
#pragma once

#include <torch/library.h>

#include "engine/engine.h"

namespace dipu {
std::optional<torch::CppFunction> typed_kernel(Operator& op);  // nothing: the signature is not among them
}  // namespace dipu
