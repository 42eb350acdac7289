/* SPDX-License-Identifier: Apache-2.0 */
/* The operators under their published name. */
#ifndef DIOPI_FUNCTIONS_H
#define DIOPI_FUNCTIONS_H

#include "../diopi.h"

#endif
