/* SPDX-License-Identifier: Apache-2.0 */
// A route of the engine that runs a vendor's C functions without Python.
#pragma once

#include <pybind11/pybind11.h>

namespace dipu {

void bind_c_routes(pybind11::module_& m);

}  // namespace dipu
