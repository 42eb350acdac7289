"""The kernels of droplet: a library in C, and kernels that are easier to write in Python."""

from pathlib import Path

from torch import Tensor

from deeplink_droplet import LIBRARY


def library() -> Path:
    """Return the library that `make` built for the functions of diopi.h;
    it contains the runtime, too.
    """
    return LIBRARY


def square(input: Tensor) -> Tensor:
    """Return input * input; a kernel in Python is a function with the op's name and arguments."""
    return input * input
