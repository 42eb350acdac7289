// Reductions over values in host memory.
#include "tensors/statistics.cpp"
#include "tensors/value_differences.cpp"
