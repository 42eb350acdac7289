// Statistics of tensors, on the host and by a device, and the lines that they are written to.
#include "bindings.cpp"
#include "statistics/line_formatter.cpp"
#include "statistics/statistics_sink.cpp"
#include "tensors/device_reducer.cpp"
#include "tensors/host_view.cpp"
#include "tensors/kernel_launcher.cpp"
