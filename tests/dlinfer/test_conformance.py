"""Every op is right on the CPU, by its native kernels where there are any and by its meaning."""

from dlinfer.conformance import conformance

test_the_cpu_kernels = conformance("cpu")
