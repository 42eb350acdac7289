# SPDX-License-Identifier: Apache-2.0
"""`python -m diopi.conformance`."""

import sys

from diopi.conformance.command import main

if __name__ == "__main__":
    sys.exit(main())
