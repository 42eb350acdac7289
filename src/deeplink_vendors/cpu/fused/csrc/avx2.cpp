// SPDX-License-Identifier: Apache-2.0
// The kernels with AVX2.
#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c")
#define LEVEL avx2
#define LEVEL_NAME "avx2"
#define WIDTH 8
#include "level.h"

namespace dlinfer {
const Kernels& avx2_kernels() { return avx2::table; }
}  // namespace dlinfer
#endif
