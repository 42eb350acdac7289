// What the parts of the reference chip know of each other: runtime.cpp is the chip, group.cpp its
// communicator.
#pragma once

#include <dipu_runtime.h>

#include <string>

namespace reference {

int fail(int code, std::string text);  // keeps the text for `last_error`, and returns the code
void* host_address(int device, const void* address);
int stream_synchronize(int device, void* stream);

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
int group_probe(void* communicator, int* source);

}  // namespace reference
