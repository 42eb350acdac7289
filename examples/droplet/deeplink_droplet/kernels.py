"""The kernels of droplet: a library in C, and what is quicker to write in Python."""

from pathlib import Path

from torch import Tensor

from deeplink_droplet import LIBRARY


def library() -> Path:
    """Where `make` put the functions of diopi.h; it is the library of the runtime as well."""
    return LIBRARY


def square(input: Tensor) -> Tensor:
    """input * input; a kernel in Python is a function with the op's name and arguments."""
    return input * input
