"""backend="dicp": which backend it means, and why."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from deeplink.errors import MissingCompilerError, NoBackendError
from dicp import Backend, choice
from dicp.dynamo_bridge import compile_fx
from tests.dicp import toy


def missing() -> str:
    raise MissingCompilerError("the compiler is not installed.", "install it.")


INSTALLED = {
    "first": toy.make(version=missing),
    "second": toy.make(),
    "third": toy.make(training=True, devices=("cpu", "cuda")),
}


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def find(name: str) -> Backend:
        if name not in INSTALLED:
            raise NoBackendError(f"no backend {name!r}.")
        return INSTALLED[name]

    monkeypatch.setattr(choice, "find", find)
    monkeypatch.setenv("DICP_PREFERENCE", "absent,first,second,third")
    yield


@pytest.mark.parametrize(
    ("devices", "training", "name", "why"),
    [
        ({"cpu"}, False, "second", "first is not installed (the compiler is not installed)"),
        ({"cuda"}, False, "third", "second runs on cpu"),
        ({"cpu"}, True, "third", "second compiles inference only"),
        ({"npu"}, False, None, "none does inference on npu; absent is not installed"),
    ],
)
def test_the_first_that_is_installed_and_serves(
    devices: set[str], training: bool, name: str | None, why: str
) -> None:
    found, reason = choice.serving(devices, training)
    assert found[:1] == ([INSTALLED[name]] if name else [])
    assert why in reason


def test_it_says_once_what_it_chose(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_fx, "_said", set[str]())
    model: Any = torch.compile(nn.Linear(2, 2), backend=choice.dicp)
    with torch.no_grad(), caplog.at_level(logging.WARNING, "dicp"):
        model(torch.ones(1, 2))
        model(torch.ones(3, 2))
    (line,) = [r.message for r in caplog.records if r.name == "dicp"]
    assert line.startswith("dicp: toygraph; the first that does inference on cpu; absent is not")


def test_max_autotune_compiles_by_all_that_serve_and_leaves_out_what_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(blob: bytes) -> bytes:
        raise RuntimeError("no")

    named = {
        "one": toy.make(name="one"),
        "two": toy.make(name="two", compile=refuse),
        "three": toy.make(name="three"),
    }
    monkeypatch.setattr(choice, "find", named.__getitem__)
    monkeypatch.setenv("DICP_PREFERENCE", "one,two,three")
    found: list[list[str]] = []
    monkeypatch.setattr(
        choice, "measured", lambda runs, gm, record: found.append(list(runs)) or runs["three"]
    )
    model, x = nn.Linear(2, 2), torch.ones(1, 2)
    torch.compiler.reset()
    with torch.no_grad():
        compiled: Any = torch.compile(model, backend=choice.dicp, mode="max-autotune")
        torch.testing.assert_close(compiled(x), model(x))
    assert found == [["one", "three"]]
