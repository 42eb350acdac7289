/* SPDX-License-Identifier: Apache-2.0 */
// Dispatch keys of C++ libraries that are loaded later.
#pragma once
#include <map>

namespace ditorch {

// Maps dispatch keys, as numbers; an empty map maps nothing.
void map_library_keys(const std::map<int, int>& keys);

}  // namespace ditorch
