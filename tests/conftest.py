"""Shared by all tests: hypothesis is seeded and without deadlines."""

from hypothesis import settings

settings.register_profile("deeplink", deadline=None, derandomize=True)
settings.load_profile("deeplink")
