"""`python -m deeplink`: the same as the command `deeplink`."""

from deeplink.cli import main

main()
