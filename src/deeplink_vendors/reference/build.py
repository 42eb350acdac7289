# SPDX-License-Identifier: Apache-2.0
"""How the build of the reference vendor stands, for `deeplink doctor`."""

from deeplink import native


def state() -> dict[str, str]:
    """The native core and the compiler."""
    path = native.path_of("torch_dipu")
    return {
        "native core": "built" if path else "not built yet: the first use builds it",
        "native core path": str(path or "-"),
        "C++ compiler": native.compiler_state(),
    }
