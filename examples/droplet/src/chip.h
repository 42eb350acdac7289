/* The chip itself, as its driver presents it: host memory that only its kernels can access. */
#ifndef DROPLET_CHIP_H
#define DROPLET_CHIP_H

#include "dipu_runtime.h"

#define DROPLET_DEVICES 2

/* The host address of a device address's byte, for kernels; a host address is unchanged. */
void* chip_memory(const void* address);
/* Stores the text for `last_error`, and returns DIPU_ERROR. */
int chip_error(const char* format, ...) __attribute__((format(printf, 1, 2)));

/* group.c: the communicator */
int group_id(DipuGroupId* id);
int group_create(int device, int rank, int size, const DipuGroupId* id, void** out);
int group_destroy(void* communicator);
int group_abort(void* communicator);
int group_query(void* communicator);
int group_begin(void* communicator);
int group_end(void* communicator);
int group_all_reduce(const DipuCollective* call);
int group_broadcast(const DipuCollective* call);
int group_reduce(const DipuCollective* call);
int group_all_gather(const DipuCollective* call);
int group_reduce_scatter(const DipuCollective* call);
int group_send(const DipuCollective* call);
int group_receive(const DipuCollective* call);

#endif
