/* SPDX-License-Identifier: Apache-2.0 */
/* The runtime interface under its published name: handles, dtypes, getters, diopiRequireTensor. */
#ifndef DIOPI_DIOPIRT_H
#define DIOPI_DIOPIRT_H

#include "../diopi_runtime.h"

#endif
