/* SPDX-License-Identifier: Apache-2.0 */
// Unboxed kernels for the most frequent signatures.
#pragma once

#include <torch/library.h>

#include "engine/engine.h"

namespace dipu {
std::optional<torch::CppFunction> typed_kernel(Operator& op);  // nullopt: another signature
}  // namespace dipu
