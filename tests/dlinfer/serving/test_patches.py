"""Changes to one package: seen inside it, not outside, and taken back."""

import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

from deeplink.errors import DeeplinkError
from dlinfer.framework.lmdeploy.device import Host, Torch
from dlinfer.framework.lmdeploy.patches import Patches

SOURCE = """
import torch

def where(device="cuda"):
    return device

def made():
    return [(lambda: "cuda")() for _ in range(1)]

def stream():
    return torch.cuda.current_stream().query()
"""


@pytest.fixture
def toy() -> Iterator[ModuleType]:
    modules = {
        name: ModuleType(name) for name in ("toy_serving", "toy_serving.engine", "elsewhere")
    }
    exec(SOURCE, vars(modules["toy_serving"]))
    for name in ("toy_serving.engine", "elsewhere"):
        vars(modules[name])["where"] = vars(modules["toy_serving"])["where"]
    sys.modules.update(modules)
    yield modules["toy_serving"]
    for name in modules:
        del sys.modules[name]


def test_words_functions_and_torch_change_inside_alone_and_come_back(toy: ModuleType) -> None:
    patches = Patches("toy_serving")
    patches.word("toy_serving:where", "cuda", "npu")
    patches.word("toy_serving:made", "cuda", "npu")
    assert (toy.where(), toy.made()) == ("npu", ["npu"])
    patches.replace("toy_serving:where", lambda stock: lambda device="x": stock(device) + "!")
    assert sys.modules["toy_serving.engine"].where() == "x!"
    assert sys.modules["elsewhere"].where("cpu") == "cpu"
    patches.set(toy, "torch", Torch(Host))
    assert toy.stream() is True
    assert toy.torch.nn is torch.nn and torch.cuda is not Host
    patches.undo()
    assert (toy.where(), toy.made(), toy.torch) == ("cuda", ["cuda"], torch)


def test_a_package_that_is_built_otherwise_is_reported(toy: ModuleType) -> None:
    patches = Patches("toy_serving")
    with pytest.raises(
        DeeplinkError, match=r"toy_serving has no toy_serving:Engine\.start: KeyError"
    ):
        patches.found("toy_serving:Engine.start")
    with pytest.raises(DeeplinkError, match="toy_serving:stream does not contain 'cuda'"):
        patches.word("toy_serving:stream", "cuda", "npu")
