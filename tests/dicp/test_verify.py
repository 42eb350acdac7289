"""Verify mode finds incorrect results, and the minifier the op that causes them."""

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

import dicp
from deeplink.errors import VerifyError
from dicp.dynamo_bridge.passes import rewrite
from tests.dicp import blocks, toy


def verified(backend: Any, model: Any, *args: Any) -> Any:
    with torch.no_grad():
        return torch.compile(model, backend=backend, options={"verify": True})(*args)


def test_a_planted_wrong_rewrite_is_cut_to_the_faulty_op(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rules = tuple(
        rewrite.Rule(r.fused, r.pattern, lambda n, m: (m["up"], m["gate"]))
        if r.fused == "swiglu"
        else r
        for r in rewrite.LIBRARY
    )
    monkeypatch.setattr(rewrite, "LIBRARY", rules)
    model, args = blocks.llama()
    with pytest.raises(VerifyError) as caught:
        verified(toy.make(), model, *args)
    text = str(caught.value)
    assert "computes wrong after its rewrites: aten.silu.default, aten.mul.Tensor at" in text
    assert "blocks.py" in text
    (script,) = (tmp_path / "cache" / "failures").rglob("repro.py")
    assert f"python {script}" in text
    compile(script.read_text(), str(script), "exec")
    assert len(torch.load(script.with_name("inputs.pt"))) == 2


def test_a_wrong_kernel_of_the_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(toy.FUNCTIONS, "rms_norm", lambda x, w, eps: x * w)
    model, args = blocks.llama()
    with pytest.raises(VerifyError, match=r"wrong in part_0: dicp.rms_norm.default at .*blocks.py"):
        verified(toy.make(), model, *args)


def test_the_script_shows_the_fault(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(toy.FUNCTIONS, "gelu", lambda x: x)
    with pytest.raises(VerifyError):
        verified(toy.make(), lambda x: torch.nn.functional.gelu(x) + x, -torch.ones(3))
    (script,) = (tmp_path / "cache" / "failures").rglob("repro.py")
    monkeypatch.setattr(dicp, "find", lambda name: toy.make())  # the toy is not installed
    runpy.run_path(str(script))
    assert capsys.readouterr().out.startswith("largest difference: 0.84")
