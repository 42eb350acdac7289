"""backend="dicp": which backend it means, and why."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from deeplink import settings
from deeplink.errors import MissingCompilerError, NoBackendError
from deeplink_vendors.cuda import graph
from dicp import Backend, choice, workload
from dicp.dynamo_bridge import report
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
    monkeypatch.setattr(report, "_said", set[str]())
    model: Any = torch.compile(nn.Linear(2, 2), backend=choice.dicp)
    with torch.no_grad(), caplog.at_level(logging.WARNING, "dicp"):
        model(torch.ones(1, 2))
        model(torch.ones(3, 2))
    (line,) = [r.message for r in caplog.records if r.name == "dicp"]
    assert line.startswith("dicp: using toygraph (the first that does inference on cpu; absent is")


class Net(nn.Module):
    """Mostly a convolution or mostly products, by its width."""

    def __init__(self, channels: int, wide: int) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv2d(1, channels, 3), nn.Linear(36 * channels, wide)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.linear(torch.relu(self.conv(x)).flatten(1))
        return made


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("channels", "wide", "dtype", "chosen"),
    [
        (2, 64, torch.float32, ["products"]),
        (2, 2, torch.float32, ["convolutions"]),
        (2, 64, torch.bfloat16, ["any"]),
    ],
)
def test_what_was_measured_as_the_fastest_at_most_of_the_work_goes_first(
    monkeypatch: pytest.MonkeyPatch,
    channels: int,
    wide: int,
    dtype: torch.dtype,
    chosen: list[str],
    dynamic: bool,
) -> None:
    named = {
        "any": toy.make(name="any"),
        "absent": toy.make(
            name="absent", fastest=frozenset({workload.PRODUCTS, workload.CONVOLUTIONS})
        ),
        "convolutions": toy.make(name="convolutions", fastest=frozenset({workload.CONVOLUTIONS})),
        "products": toy.make(name="products", fastest=frozenset({workload.PRODUCTS})),
    }
    asked: list[str] = []

    def compiled(gm: Any, inputs: Any, backend: Backend, **given: Any) -> Any:
        if backend.name == "absent":
            raise MissingCompilerError("it has none.")
        asked.append(backend.name)
        return gm.forward

    monkeypatch.setattr(choice, "find", named.__getitem__)
    monkeypatch.setattr(choice, "compile_fx", compiled)
    preference = replace(settings.DICP_PREFERENCE, default=lambda: tuple(named))
    monkeypatch.setattr(settings, "DICP_PREFERENCE", preference)
    monkeypatch.delenv("DICP_PREFERENCE")
    model = Net(channels, wide).to(dtype)
    with torch.no_grad():
        torch.compile(model, backend=choice.dicp, dynamic=dynamic)(torch.ones(3, 1, 8, 8).to(dtype))
    assert asked == chosen
    monkeypatch.setenv("DICP_PREFERENCE", "convolutions,products")  # the program's own order
    torch.compiler.reset()
    with torch.no_grad():
        torch.compile(model, backend=choice.dicp)(torch.ones(3, 1, 8, 8).to(dtype))
    assert asked == [*chosen, "convolutions"]


def test_without_a_cpp_compiler_inductor_says_so_before_it_begins() -> None:
    none = torch._inductor.config.patch({"cpp.cxx": ("no-such-compiler",)})
    with none, torch.no_grad(), pytest.raises(Exception, match="install g\\+\\+") as found:
        torch.compile(nn.Linear(2, 2), backend=graph.backend)(torch.ones(1, 2))
    assert "finds no C++ compiler" in str(found.value)


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
