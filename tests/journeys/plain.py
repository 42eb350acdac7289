"""Runs a program without ditorch, with a clean end after gloo: `python plain.py program.py …`."""

import runpy
import sys

from deeplink.process import gloo_shutdown

gloo_shutdown.end_cleanly()
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
