"""`python -m deeplink.build ditorch op_tools`: native parts ahead of time; else on first use."""

import sys

from deeplink import native
from deeplink.table import console

if __name__ == "__main__":
    out = console()
    for package in sys.argv[1:]:
        path = native.extension(package).build(lambda line: out.print(line, soft_wrap=True))
        out.print(f"{package}: native part at {path}", soft_wrap=True)
