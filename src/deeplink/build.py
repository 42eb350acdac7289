# SPDX-License-Identifier: Apache-2.0
"""`python -m deeplink.build ditorch op_tools`: builds native parts ahead of their first use."""

import sys

from deeplink import native
from deeplink.console import console
from deeplink.errors import DeeplinkError


def main() -> int:
    """Build the parts or groups ("core", "all") of the command line;
    without arguments, all parts.
    """
    out = console()
    try:
        built = native.build(
            sys.argv[1:] or ["all"], lambda line: out.print(line, markup=False, soft_wrap=True)
        )
    except DeeplinkError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    for name, path in built.items():
        out.print(f"{name}: {path}", soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
