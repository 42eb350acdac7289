# SPDX-License-Identifier: Apache-2.0
"""`python -m dlinfer serve …`: run `deeplink serve …`."""

from __future__ import annotations

import sys

from deeplink import cli

if __name__ == "__main__":
    sys.exit(cli.status(sys.argv[1:], "python -m dlinfer", only=("serve",)))
