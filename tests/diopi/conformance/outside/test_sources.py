"""What SPEC may be: a file, an object, a registration, folders of other projects."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest
import torch

from deeplink.errors import DeeplinkError
from diopi.conformance.cases.case import Case
from diopi.conformance.execution.subject import open_kernels
from diopi.conformance.outside import problems, sources
from diopi.conformance.outside.spec import Spec
from diopi.conformance.workers.worker import run_one
from tests.diopi.compiled import IMPLEMENTED, library
from tests.diopi.conformance.test_broken_library import NEG

RELU = "import torch\ndef relu(x): return x.clamp(min=0)\ndef _private(x): return x\n"
PROBLEM = """
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self, size):
            super().__init__()
            self.layer = nn.Linear(size, 65)

        def forward(self, x):
            return torch.relu(self.layer(x))

    rows, size = 1 << 20, 4096

    def get_inputs():
        return [torch.randn(rows, size)]

    def get_init_inputs():
        return [size]

    class ModelNew(Model):
        def forward(self, x):
            return {result}
"""


def written(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dedent(text))
    return str(path)


def test_the_public_functions_of_a_file_are_kernels(tmp_path: Path) -> None:
    found = sources.read(Spec(written(tmp_path / "mine.py", RELU)))
    assert list(found.functions) == ["relu"]


def test_an_object_of_a_file_or_module_is_chosen(tmp_path: Path) -> None:
    file = written(tmp_path / "mine.py", RELU + "class Mine:\n    def abs(self, x): return x\n")
    assert list(sources.read(Spec(f"{file}:relu")).functions) == ["relu"]
    assert list(sources.read(Spec(f"{file}:Mine")).functions) == ["abs"]
    assert list(sources.read(Spec("torch.nn.functional:softplus")).functions) == ["softplus"]


def test_a_registration_is_recorded_and_not_made(tmp_path: Path) -> None:
    text = """
    import torch

    def mine(self):
        return self.clamp(min=0)

    def enable():
        library = torch.library.Library("aten", "IMPL")
        library.impl("relu", mine, "CUDA")
        library.impl("add.Tensor", lambda self, other, *, alpha=1: self - -other, "CUDA")
    """
    spec = Spec(written(tmp_path / "package.py", text) + ":enable")
    assert list(sources.read(spec).functions) == ["relu", "add.Tensor"]
    assert sorted(open_kernels(spec).kernels) == ["add", "relu"]
    assert torch.relu(torch.tensor([-1.0, 2.0])).tolist() == [0.0, 2.0]


def test_a_folder_of_backend_bench_has_a_kernel_in_each_folder(tmp_path: Path) -> None:
    for name in ("relu", "add__Tensor"):
        text = f"def {name}_kernel_impl(*args, **kwargs): return args[0]"
        written(tmp_path / name / f"{name}_implementation_v1.py", text)
    written(tmp_path / "abs" / "abs_implementation_v1.py", "x = 1")
    subject = open_kernels(Spec(str(tmp_path)))
    assert subject.matching is not None
    assert sorted(subject.kernels) == ["add", "relu"]
    assert [str(one) for one in subject.matching.unmatched] == [
        "abs/abs_implementation_v1.py: it has no function abs_kernel_impl"
    ]


@pytest.mark.parametrize(
    ("result", "check"),
    [
        ("torch.addmm(self.layer.bias, x, self.layer.weight.t()).clamp(min=0)", ""),
        ("torch.zeros(len(x), 65)", "values"),
        ("torch.relu(self.layer(x))", "torch"),
        ("torch.empty(len(x), 65)", "uninitialised"),
    ],
)
def test_a_problem_of_kernel_bench_is_judged_by_its_model(
    result: str, check: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(problems.MOST, "cpu", 1 << 14)  # quick
    spec = Spec(written(tmp_path / "7_Linear.py", PROBLEM.format(result=result)))
    subject = open_kernels(spec)
    (problem,) = subject.problems.values()
    assert problem.scale > 1  # 16 GiB of inputs otherwise
    case = Case("problem.7_Linear", "float32", problems.SOURCE, 0)
    found = run_one(case, subject)
    assert (found.status, check in {f.check for f in found.findings} or not check) == (
        "failed" if check else "passed", True,
    ), found  # fmt: skip


def test_the_functions_of_a_library_are_kernels(tmp_path: Path) -> None:
    subject = open_kernels(Spec(str(library(tmp_path, IMPLEMENTED + NEG)), "cpu"))
    assert list(subject.kernels) == ["neg"]
    case = Case("neg", "float32", "neg+samples", 0)
    assert run_one(case, subject).status == "passed"
    assert subject.calls.functions == ["diopiNeg"]
    assert run_one(replace(case, dtype="float64"), subject).bad  # it reads float32


def test_kernels_run_on_the_reference_device(tmp_path: Path) -> None:
    subject = open_kernels(Spec(written(tmp_path / "mine.py", RELU), "dipu"))
    found = run_one(Case("relu", "float32", "nn.functional.relu+samples", 3), subject)
    assert (found.status, found.grade) == ("passed", "A"), found


def test_what_cannot_be_loaded_is_reported_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(DeeplinkError, match="has no function that could be a kernel"):
        sources.read(Spec(written(tmp_path / "none.py", "x = 1")))
    with pytest.raises(DeeplinkError, match="ZeroDivisionError"):
        sources.read(Spec(written(tmp_path / "broken.py", "1 / 0")))
    with pytest.raises(DeeplinkError, match=r"no file .*nothing\.py"):
        sources.read(Spec(str(tmp_path / "nothing.py")))
    with pytest.raises(DeeplinkError, match="registered no kernel"):
        sources.read(Spec(written(tmp_path / "idle.py", "def enable(): pass") + ":enable"))


def test_without_triton_the_error_names_what_to_install(tmp_path: Path) -> None:
    file = written(
        tmp_path / "softmax.py", "import sys\nsys.modules['triton'] = None\nimport triton"
    )
    with pytest.raises(DeeplinkError) as error:
        sources.read(Spec(file))
    assert "pip install --no-deps triton" in str(error.value)
