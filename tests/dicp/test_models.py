"""Whole models on the real compilers: judged against float64, one compile for several sizes."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from deeplink.judge import envelope, judge
from deeplink_vendors.cpu import onnxrt, openvino
from dicp.backend import Backend
from dicp.dynamo_bridge import report
from tests.dicp.models import MODELS, PLAIN, Model

BACKENDS = {"onnxrt": onnxrt.backend, "openvino": openvino.backend}
OPTIONS = {"measure": False, "cache": False}
OF_TRANSFORMERS = ("llama", "qwen", "bert", "mixtral")


def made(name: str) -> Model:
    if name in OF_TRANSFORMERS:
        pytest.importorskip("transformers", reason="the extra `models` is not installed")
    torch.manual_seed(0)
    return {**MODELS, **PLAIN}[name]()


def wrong(model: Model, result: Tensor, arguments: tuple[Any, ...]) -> str:
    """What the judge has against a model's result; the reference is the model in float64."""
    wide = copy.deepcopy(model.module).double()
    config = getattr(getattr(wide, "inner", None), "config", None)
    if config is not None:  # the faster form of mixtral's experts has no float64
        config._experts_implementation = "eager"
    given = [a.double() if a.is_floating_point() else a for a in arguments]

    def once() -> list[Tensor]:
        return [wide(*given)]

    reference = once()[0]
    verdict = judge(
        result,
        reference,
        run_plain=lambda: model.module(*arguments),
        run_envelope=lambda: envelope(once, [reference], samples=4)[0],
    )
    return "" if verdict.passed else str(verdict)


@torch.no_grad()
def compile_and_judge(name: str, backend: Backend, dynamic: bool) -> None:
    model = made(name)
    torch.compiler.reset()
    compiled = torch.compile(model.module, backend=backend, dynamic=dynamic, options=OPTIONS)
    for size in model.sizes if dynamic else model.sizes[:1]:
        before = len(report.RECORDS)
        arguments = model.arguments(*size)

        assert wrong(model, compiled(*arguments), arguments) == ""
        if size != model.sizes[0]:
            assert len(report.RECORDS) == before, f"compiled again for {size}"


@pytest.mark.parametrize("name", PLAIN)
def test_one_compile_serves_several_batches_and_lengths(name: str) -> None:
    compile_and_judge(name, onnxrt.backend, dynamic=True)


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
def test_a_model_is_right(backend: Backend, name: str, dynamic: bool) -> None:
    compile_and_judge(name, backend, dynamic)
