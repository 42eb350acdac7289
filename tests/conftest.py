"""Shared by all tests: hypothesis is seeded and without deadlines, `x.cuda()` stays torch's own."""

import os

from hypothesis import settings

os.environ["DEEPLINK_LANG"] = "en"  # whatever the locale of the machine
os.environ.setdefault("DIPU_MOCK_CUDA", "false")  # a test of the device must not bring ditorch

settings.register_profile("deeplink", deadline=None, derandomize=True)
settings.load_profile("deeplink")
