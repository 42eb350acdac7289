// SPDX-License-Identifier: Apache-2.0
// The kernels with the instructions of every processor.
#define LEVEL plain
#define LEVEL_NAME "plain"
#define WIDTH 4
#include "level.h"

namespace dlinfer {
const Kernels& plain_kernels() { return plain::table; }
}  // namespace dlinfer
