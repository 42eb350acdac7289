"""Kernels of someone else, with and without bugs: what `--kernels` finds, and what it lets pass."""
