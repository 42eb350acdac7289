/* SPDX-License-Identifier: Apache-2.0 */
// Python bindings of the engine: hooks, watchers, routes.
#pragma once

#include <pybind11/pybind11.h>

namespace dipu {

void bind_routes(pybind11::module_& m);

}  // namespace dipu
