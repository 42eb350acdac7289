# SPDX-License-Identifier: Apache-2.0
"""`python -m deeplink` runs the command `deeplink`."""

from deeplink.cli import main

main()
