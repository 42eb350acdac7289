// Fourth of the translation units: what watches the device, and needs torch's profiler.
#include "history.cpp"
#include "stacks.cpp"
#include "memcheck.cpp"
#include "memory_bind.cpp"
#include "profiler.cpp"
