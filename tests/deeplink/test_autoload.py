"""What `import torch` starts by the environment."""

from __future__ import annotations

import logging
import sys
from importlib.metadata import EntryPoint
from types import ModuleType

import pytest

from deeplink import autoload


@pytest.mark.parametrize("ready", [True, False])
def test_what_is_being_imported_starts_by_itself(
    ready: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`DITORCH=1 python -m ditorch run`: ditorch imports torch before it has its own names."""
    module, started = ModuleType("coming"), []
    if ready:
        module.activate = lambda: started.append(1)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "coming", module)
    monkeypatch.setenv("DITORCH", "1")
    point = EntryPoint("ditorch", "coming:activate", autoload.GROUP)
    monkeypatch.setattr(autoload, "entry_points", lambda group: [point])
    with caplog.at_level(logging.ERROR):
        autoload.start()
    assert (len(started), caplog.messages) == (int(ready), [])
