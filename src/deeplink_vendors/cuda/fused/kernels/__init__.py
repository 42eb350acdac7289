"""The kernels themselves, in Triton's language."""
