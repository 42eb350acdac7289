# SPDX-License-Identifier: Apache-2.0
"""`python -m torch_dipu.build`: build the native core ahead of its first import."""

from rich.console import Console

from deeplink import native

if __name__ == "__main__":
    path = native.path_of("torch_dipu")
    Console(highlight=False, soft_wrap=True).print(f"torch_dipu: native core at {path}")
