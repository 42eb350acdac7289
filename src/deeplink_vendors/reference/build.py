# SPDX-License-Identifier: Apache-2.0
"""The state of the reference vendor's build, for `deeplink doctor`."""

from deeplink import native


def state() -> dict[str, str]:
    """Return the state of the native core and the compiler."""
    path = native.path_of("torch_dipu")
    return {
        "native core": "built" if path else "not built yet: the first use builds it",
        "native core path": str(path or "-"),
        "C++ compiler": native.compiler_state(),
    }
