"""ditorch is active inside these tests and gone after each: other folders test torch as it is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import ModuleType

import pytest

os.environ.setdefault("DITORCH_QUIET", "1")


@pytest.fixture
def active() -> Iterator[ModuleType]:
    """ditorch on the reference device."""
    import ditorch

    ditorch.undo()
    ditorch.activate("reference")
    yield ditorch
    ditorch.undo()
