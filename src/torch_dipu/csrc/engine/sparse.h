/* SPDX-License-Identifier: Apache-2.0 */
// Conversion of sparse tensors between device and host; `Convert` moves one dense member.
#pragma once

#include <functional>

#include "runtime/core.h"

namespace dipu {
using Convert = std::function<at::Tensor(const at::Tensor&)>;
bool is_sparse_layout(const at::Tensor& t);
at::Tensor convert_sparse(const at::Tensor& from, c10::Device device, const Convert& convert);
void assign_sparse(const at::Tensor& from, const at::Tensor& to, const Convert& convert);
}  // namespace dipu
