"""The runtime of droplet: the library exports the table of dipu_runtime.h."""

import ctypes

from deeplink_droplet import LIBRARY


def runtime() -> ctypes.CDLL:
    return ctypes.CDLL(str(LIBRARY))
