"""apply_feature: a tool on chosen functions, under a condition, and undone without a trace."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import op_tools
from op_tools.core import tool_errors
from op_tools.tools.apply import FEATURES


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values or (1.0, 2.0), device="dipu")


@pytest.fixture
def library() -> Iterator[Any]:
    """A third-party library, and a program that took a function of it by its name."""
    module, program = types.ModuleType("acme_ops"), types.ModuleType("acme_program")
    exec(
        "def twice(x, name=None, func=None):\n    return x * 2\n"
        "class Layer:\n    factor = 3\n    def scale(self, x):\n        return x * self.factor\n"
        "    @classmethod\n    def tripled(cls, x, by=1):\n        return x * cls.factor * by\n"
        "    @staticmethod\n    def halved(x, by=1):\n        return x / 2 * by\n"
        "class Wide(Layer):\n    factor = 5\n"
        "class Narrow(Layer):\n    factor = 7\n",
        module.__dict__,
    )
    program.twice = module.twice  # type: ignore[attr-defined]
    sys.modules.update(acme_ops=module, acme_program=program)
    yield module
    del sys.modules["acme_ops"], sys.modules["acme_program"]


def test_the_condition_sees_the_operators_own_arguments() -> None:
    def condition(a: torch.Tensor, b: torch.Tensor) -> bool:
        return a.dtype == torch.float16 or a.dim() == 2

    half, matrix, plain = vector().half(), vector().reshape(1, 2), vector()
    with op_tools.apply_feature("torch.add", "fallback", condition) as applied:
        tool = applied.tools[0]
        for x in (half, matrix, plain):
            assert torch.equal(torch.add(x, x).cpu(), 2 * x.cpu())
    assert tool.hits == {"torch.add": 2}  # type: ignore[attr-defined]


@pytest.mark.parametrize("feature", FEATURES)
def test_every_feature_works_on_a_function_a_method_and_a_strange_function(
    feature: str, library: Any
) -> None:
    x, layer = vector(), library.Layer()
    ops = ["torch.sub", "torch.Tensor.exp", "acme_ops.twice", "acme_ops.Layer.scale"]
    with op_tools.apply_feature(ops, feature) as applied:
        seen = [tool.started for tool in applied.tools]
        assert torch.sub(x, x).tolist() == [0.0, 0.0]
        assert (x - x).exp().tolist() == [1.0, 1.0]
        assert library.twice(x, name="a", func="b").tolist() == [2.0, 4.0]
        assert layer.scale(x).tolist() == [3.0, 6.0]
    assert [started.applied for started in seen] == [1, 1, 1, 1]
    assert not tool_errors.problems()


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2


class Tenfold(Double):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 10


@pytest.mark.parametrize("by_name", [True, False])
def test_an_inherited_apply_is_patched_on_the_named_function_alone(by_name: bool) -> None:
    op = f"{__name__}.Tenfold.apply" if by_name else Tenfold.apply
    plain = vars(torch.autograd.Function)["apply"]
    x = vector(1.0).requires_grad_()
    with op_tools.apply_feature(op, "overflow_check") as applied:
        assert vars(torch.autograd.Function)["apply"] is plain
        started = applied.tools[0].started
        assert (Double.apply(x).item(), Tenfold.apply(x).item()) == (2.0, 10.0)  # type: ignore[no-untyped-call]
        assert started.applied == 1
    assert "apply" not in vars(Tenfold) and "apply" not in vars(Double)


@pytest.mark.parametrize(
    ("method", "wide", "narrow"), [("tripled", 10.0, 14.0), ("halved", 1.0, 1.0)]
)
def test_class_and_static_methods_bind_as_before(
    method: str, wide: float, narrow: float, library: Any
) -> None:
    heard: list[tuple[Any, ...]] = []

    def condition(*args: Any, **kwargs: Any) -> bool:
        heard.append((*args, *kwargs))
        return True

    x, name = vector(1.0), f"acme_ops.Wide.{method}"
    with op_tools.apply_feature(name, "overflow_check", condition) as applied:
        started = applied.tools[0].started
        for one in (library.Wide, library.Wide()):
            assert getattr(one, method)(x, by=2).item() == wide
        for other in (library.Narrow, library.Layer()):
            getattr(other, method)(x, by=2)
        assert getattr(library.Narrow, method)(x, by=2).item() == narrow
        assert started.applied == 2 and heard == [(x, "by"), (x, "by")]
    assert method not in vars(library.Wide)


@pytest.mark.parametrize("method", ["scale", "tripled", "halved"])
def test_undo_restores_a_class_exactly(method: str, library: Any) -> None:
    before = {kind: dict(vars(kind)) for kind in (library.Layer, library.Wide)}
    for kind in before:
        op_tools.apply_feature(f"acme_ops.{kind.__name__}.{method}", "overflow_check").undo()
    assert {kind: dict(vars(kind)) for kind in before} == before


def test_a_method_of_one_object_is_patched_on_it_alone(library: Any) -> None:
    one, other, x = library.Layer(), library.Layer(), vector(1.0)
    with op_tools.apply_feature(one.scale, "overflow_check") as applied:
        assert (one.scale(x).item(), other.scale(x).item()) == (3.0, 3.0)
        assert applied.tools[0].started.applied == 1
    assert vars(one) == {}


@pytest.mark.parametrize(("kind", "result"), [("Layer", 3.0), ("Wide", 5.0)])
def test_a_bound_class_method_that_a_program_has_imported_is_served(
    kind: str, result: float, library: Any
) -> None:
    program: Any = sys.modules["acme_program"]
    program.tripled = plain = getattr(library, kind).tripled
    with op_tools.apply_feature(f"acme_ops.{kind}.tripled", "overflow_check") as applied:
        assert program.tripled(vector(1.0)).item() == result
        assert applied.tools[0].started.applied == 1
    assert program.tripled is plain


def test_features_on_one_strange_function_are_undone_in_any_order(library: Any) -> None:
    plain = library.twice
    first = op_tools.apply_feature("acme_ops.twice", "measure_op_time")
    second = op_tools.apply_feature("acme_ops.twice", "overflow_check")
    seen = [applied.tools[0].started for applied in (first, second)]
    library.twice(vector())
    first.undo()
    library.twice(vector())
    second.undo()
    assert library.twice is plain and not tool_errors.problems()
    assert [started.applied for started in seen] == [1, 2]


def test_a_strange_function_that_was_called_is_not_said_to_be_unmatched(
    library: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with op_tools.apply_feature("acme_ops.twice", "fallback"):
        library.twice(vector())
    output = capsys.readouterr().out
    assert "1 x acme_ops.twice" in output and "never matched" not in output


@pytest.mark.parametrize("op", ["acme_ops.twice", "torch.sin"])
def test_a_condition_that_raises_is_the_reason_given(
    op: str, library: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def condition(x: torch.Tensor) -> bool:
        raise ValueError("no such column")

    with op_tools.apply_feature(op, "fallback", condition):
        torch.sin(vector()), library.twice(vector())
    output = capsys.readouterr().out
    assert (
        "nothing was seen. Calls were left out: 1 because the condition raised an error" in output
    )
    assert (
        f"error inside the tool, once on {op} (the program went on): ValueError: no such" in output
    )


def test_identity_is_kept_and_names_taken_before_are_served(library: Any) -> None:
    before = {"gelu": F.gelu, "add": torch.Tensor.add, "twice": library.twice}
    taken = sys.modules["acme_program"]
    with op_tools.apply_feature(
        ["torch.nn.functional.gelu", "torch.Tensor.add", library.twice], "fallback"
    ) as applied:
        assert F.gelu is before["gelu"] and torch.Tensor.add is before["add"]
        assert taken.twice is library.twice  # type: ignore[attr-defined]
        before["gelu"](vector())
        taken.twice(vector())  # type: ignore[attr-defined]
        assert applied.tools[0].hits == {"torch.nn.functional.gelu": 1}  # type: ignore[attr-defined]
        assert applied.tools[2].hits == {"acme_ops.twice": 1}  # type: ignore[attr-defined]
    assert library.twice is before["twice"] and taken.twice is before["twice"]  # type: ignore[attr-defined]


def test_features_stand_around_each_other_and_go_in_any_order() -> None:
    fallback = op_tools.apply_feature("torch.sin", "fallback")
    check = op_tools.apply_feature("torch.sin", "overflow_check")
    outer, inner = check.tools[0].started, fallback.tools[0].started
    torch.sin(vector())
    fallback.undo()
    torch.sin(vector())
    check.undo()
    torch.sin(vector())
    assert (outer.applied, inner.applied) == (2, 1)


def test_only_its_own_functions_are_said_to_be_skipped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OP_TOOLS_VERBOSE", "1")
    x = torch.ones(2, device="dipu")
    with op_tools.apply_feature("torch.sub", "dump_op_args", lambda *args: False):
        torch.mul(x, x)
        torch.sub(x, x)
    skipped = [line for line in capsys.readouterr().out.splitlines() if line.startswith("skip")]
    assert skipped == ["skip OpObserveHook on torch.sub"]


def test_a_call_that_raises_leaves_the_next_one_alone(library: Any) -> None:
    with op_tools.apply_feature("acme_ops.twice", "overflow_check"):
        with pytest.raises(TypeError):
            library.twice(vector(), nonsense=1)
        assert library.twice(vector()).tolist() == [2.0, 4.0]


def test_two_calls_before_the_backward_are_two_comparisons() -> None:
    x = vector().requires_grad_()
    with op_tools.apply_feature("torch.sin", "autocompare") as applied:
        tool: Any = applied.tools[0]
        (torch.sin(x) + torch.sin(x)).sum().backward()
        assert tool.compared == 2
    assert tool.failures == [] and not tool_errors.problems()


@pytest.mark.parametrize("op", ["torch.sin", "acme_ops.twice"])
def test_the_environments_lists_still_hold(
    op: str, library: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OP_FALLBACK_DISABLE_LIST", op)
    with op_tools.apply_feature(op, "fallback") as applied:
        torch.sin(vector()), library.twice(vector())
        assert applied.tools[0].started.applied == 0
    assert f"Left out by OP_FALLBACK_DISABLE_LIST: {op}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("ops", "feature", "error", "message"),
    [
        ("torch.sin", "falback", ValueError, "no feature 'falback'; did you mean 'fallback'"),
        ("", "fallback", ValueError, "needs the name of a function"),
        ([], "fallback", ValueError, "needs the name of a function"),
        ("torch.sinn", "fallback", AttributeError, "has no 'sinn'; did you mean 'torch.sin'"),
        ("nowhere.at_all", "fallback", AttributeError, "no module 'nowhere'"),
        ("builtins.str.upper", "fallback", AttributeError, "'builtins.str.upper' cannot be replac"),
        (lambda x: x, "fallback", AttributeError, "is an attribute of no module, class or inst"),
    ],
)
def test_wrong_use_is_reported(
    ops: Any, feature: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        op_tools.apply_feature(ops, feature)


def test_the_capture_of_a_strange_function_is_written(library: Any, tmp_path: Path) -> None:
    with op_tools.apply_feature("acme_ops.twice", "op_capture"):
        library.twice(vector())
    assert [p.name for p in tmp_path.rglob("input.pth")] == ["input.pth"]
    assert (tmp_path / "op_tools_results/op_capture_results/acme_ops.twice").is_dir()
