// SPDX-License-Identifier: Apache-2.0
// The kernels with AVX512.
#if defined(__x86_64__)
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")
#define LEVEL avx512
#define LEVEL_NAME "avx512"
#define WIDTH 16
#include "level.h"

namespace dlinfer {
const Kernels& avx512_kernels() { return avx512::table; }
}  // namespace dlinfer
#endif
