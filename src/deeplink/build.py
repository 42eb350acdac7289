"""`python -m deeplink.build ditorch op_tools`: native parts ahead of time; else on first use."""

import importlib
import sys

from deeplink import native
from deeplink.errors import BuildError
from deeplink.running import errors_as_text
from deeplink.table import console
from deeplink.vendor import find

EXTENSIONS = ("torch_dipu", "ditorch", "op_tools", "dlinfer")
REFERENCE = "dipu_reference"


def main() -> None:
    """Build the parts that are named, or all of them."""
    out = console()
    for part in sys.argv[1:] or (*EXTENSIONS, REFERENCE):
        path = _library(part).build(lambda line: out.print(line, soft_wrap=True))
        out.print(f"{part}: native part at {path}", soft_wrap=True)


def _library(part: str) -> native.Library:
    if part in EXTENSIONS:
        return native.extension(part)
    if part == REFERENCE:
        row = find("reference")
        if row is not None and row.vendor is not None:
            found: native.Library = importlib.import_module(row.vendor.build).runtime_library()
            return found
    raise BuildError(
        f"no native part {part!r}; parts: {', '.join((*EXTENSIONS, REFERENCE))}.",
        "`deeplink build` without a name builds all.",
    )


if __name__ == "__main__":
    with errors_as_text():
        main()
