// First of the two translation units: torch's headers are most of the time it takes to compile.
#include "runtime.cpp"
#include "memory.cpp"
#include "host_memory.cpp"
#include "generator.cpp"
#include "alias.cpp"
#include "engine.cpp"
#include "kernels.cpp"
#include "rnn.cpp"
