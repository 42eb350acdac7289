# SPDX-License-Identifier: Apache-2.0
"""`python -m deeplink.native --includes`: paths and flags for building a vendor's library."""

import argparse

from deeplink import native


def main() -> None:
    """Print the requested paths, like the command `pybind11-config`."""
    parser = argparse.ArgumentParser(prog="python -m deeplink.native", description=main.__doc__)
    either = parser.add_mutually_exclusive_group(required=True)
    either.add_argument("--includes", action="store_true", help="flags of a C compiler: -I…")
    either.add_argument("--cmakedir", action="store_true", help="folder of deeplinkConfig.cmake")
    either.add_argument("--examples", action="store_true", help="folder of the examples")
    chosen = parser.parse_args()
    if chosen.cmakedir:
        print(native.cmake_folder())
    elif chosen.examples:
        print(native.examples())
    else:
        print(*(f"-I{folder}" for folder in native.includes()))


if __name__ == "__main__":
    main()
