"""The programs that `import torch` starts by the environment."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from types import ModuleType

import pytest

import deeplink
from deeplink import autoload_hooks


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
    point = EntryPoint("ditorch", "coming:activate", autoload_hooks.GROUP)
    monkeypatch.setattr(autoload_hooks, "entry_points", lambda group: [point])
    with caplog.at_level(logging.ERROR):
        autoload_hooks.start()
    assert (len(started), caplog.messages) == (int(ready), [])


# What a fresh process has imported of this project after the entry point that `import torch` runs.
IMPORTED = """
import sys
import torch
from importlib.metadata import EntryPoint
EntryPoint("deeplink", "deeplink.autoload:start", "torch.backends").load()()
ours = {"deeplink", "deeplink_vendors", "ditorch", "op_tools", "torch_dipu"}
print(*sorted(name for name in sys.modules if name.partition(".")[0] in ours))
"""


@pytest.mark.parametrize(
    ("asked", "imported"),
    [({}, False), ({"DITORCH": ""}, False), ({"OP_TOOLS_RUN": "observe"}, True)],
)
def test_import_torch_imports_a_leaf_of_ours_unless_the_environment_requests(
    asked: dict[str, str], imported: bool
) -> None:
    kept = {k: v for k, v in os.environ.items() if k not in ("DITORCH", "OP_TOOLS_RUN")}
    line = [sys.executable, "-c", IMPORTED]
    done = subprocess.run(line, env={**kept, **asked}, text=True, capture_output=True, check=True)
    names = done.stdout.splitlines()[0].split()
    assert (names == ["deeplink", "deeplink.autoload"]) is not imported
    assert ("op_tools" in names) is imported


def test_the_names_of_the_package_are_those_of_its_modules() -> None:
    for name in deeplink.__all__:
        assert getattr(deeplink, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'chose'"):
        deeplink.chose  # noqa: B018
