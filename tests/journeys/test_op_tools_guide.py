"""The op_tools guide that users know, section by section, as it is written there.

Each section's snippet runs in a process of its own, with the reference device in the place of npu.
"""

from __future__ import annotations

import csv
import os
import re
from pathlib import Path

import pytest
import torch

from tests import warm
from tests.journeys.program import ENVIRONMENT

HEAD = """
import os
import torch
import ditorch
import op_tools

def f():
    torch.manual_seed(0)
    a = torch.rand(10, 20, device="cuda", requires_grad=True)
    b = a.mul(2)
    c = b.add(a)
    d = c.sub(a)
    e = d.div(3)
    sorted, indices = e.sort()  # return torch.return_type.sort
    return sorted[0:3, 0:7].sum().backward()
"""
STAMP = r"\d{4}-\d\d-\d\d-\d\d-\d\d-\d\d"


@pytest.fixture
def run(tmp_path: Path):  # type: ignore[no-untyped-def]
    def run(*line: str, status: int = 0, **environment: str) -> str:
        done = warm.run(
            line,
            {
                **os.environ,
                **ENVIRONMENT,
                "DEEPLINK_VENDOR": "reference",
                "OP_TOOLS_VERBOSE": "1",
                "COLUMNS": "200",
                **environment,
            },
            cwd=tmp_path,
            warn="ignore",
        )
        assert done.returncode == status, done.stderr[-4000:] + done.stdout[-2000:]
        return done.stdout

    def program(snippet: str, **environment: str) -> str:
        (tmp_path / "snippet.py").write_text(HEAD + snippet)
        return run("snippet.py", **environment)

    program.line = run  # type: ignore[attr-defined]
    return program


def rows(out: str) -> list[list[str]]:
    """The cells of every line of every table."""
    return [[c.strip() for c in line.split("|")[1:-1]] for line in out.splitlines() if "|" in line]


def values(out: str, name: str) -> list[list[str]]:
    return [row[1:] for row in rows(out) if row and row[0] == name]


# 1. Capturing arguments.


@pytest.mark.parametrize(
    "usage",
    [
        "capture = op_tools.OpCapture()\ncapture.start()\nf()\ncapture.stop()",
        "with op_tools.OpCapture():\n    f()",
    ],
    ids=["start and stop", "with"],
)
def test_capture_everything_forward_and_backward(run, usage: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    out = run(usage)
    assert "apply OpCaptureHook on torch.Tensor.add" in out
    root = r"op_tools_results/op_capture_results/torch\.Tensor\.add/\d+/\d+/" + STAMP
    for name in ("input", "output", "grad_inputs", "grad_outputs"):
        assert re.search(rf"^{root}/{name}\.pth saved$", out, re.M), name
    where = r"snippet\.py:\d+ f: c = b\.add\(a\)"
    assert re.search(rf"^torch\.Tensor\.add    forward_id:\d+/{STAMP}    \S*{where}$", out, re.M)
    assert values(out, "torch.Tensor.add inputs[0]")[0][:6] == [
        *("cuda:0", "float32", "200", "(10, 20)", "(20, 1)", "True")
    ]
    folder = next(tmp_path.glob("op_tools_results/op_capture_results/torch.Tensor.add/*/*/*"))
    given = torch.load(folder / "input.pth", weights_only=True, map_location="cpu")
    made = torch.load(folder / "output.pth", weights_only=True, map_location="cpu")
    assert given["name"] == "torch.Tensor.add"
    assert torch.equal(made["args"][0], given["args"][0] + given["args"][1])
    assert (folder / "input.pth.json").is_file()


def test_capture_only_sort(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    out = run("with op_tools.OpCapture():\n    f()", OP_CAPTURE_LIST="torch.Tensor.sort")
    assert "skip OpCaptureHook on torch.Tensor.mul" in out
    assert "apply OpCaptureHook on torch.Tensor.mul" not in out
    assert values(out, "torch.Tensor.sort outputs [0][1]")[0][1] == "int64"
    assert values(out, "torch.Tensor.sort grad_output")[0][1:4] == ["float32", "200", "(10, 20)"]
    assert values(out, "torch.Tensor.sort grad_inputs")[0][1:4] == ["float32", "200", "(10, 20)"]
    found = {path.parts[-5] for path in tmp_path.rglob("input.pth")}
    assert found == {"torch.Tensor.sort"}


def test_capture_all_but_some(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    out = run(
        "with op_tools.OpCapture():\n    f()",
        OP_CAPTURE_DISABLE_LIST="torch.Tensor.add,torch.Tensor.sub",
    )
    assert "skip OpCaptureHook on torch.Tensor.add" in out
    assert "apply OpCaptureHook on torch.Tensor.div" in out
    found = {path.parts[-5] for path in tmp_path.rglob("input.pth")}
    assert "torch.Tensor.div" in found and "torch.Tensor.add" not in found


# 2. Accuracy.


@pytest.mark.parametrize(
    "usage",
    [
        "with op_tools.OpAutoCompare():\n    f()",
        "autocompare = op_tools.OpAutoCompare()\nautocompare.start()\nf()\nautocompare.stop()",
    ],
    ids=["with", "start and stop"],
)
def test_autocompare_live(run, usage: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    out = run(usage)
    assert re.search(
        r"torch\.Tensor\.mul forward_id: \d+    cpu_dtype_cast_info\(from:to\): "
        r"\{torch\.float32: torch\.float64\}",
        out,
    )
    assert values(out, "torch.Tensor.add inputs[0]")[0][3:5] == ["float32", "cuda:0"]
    assert values(out, "torch.Tensor.add inputs(cpu)[1]")[0][3:5] == ["float64", "cpu"]
    assert values(out, "torch.Tensor.add outputs(cpu)")[0][3:5] == ["float64", "cpu"]
    header = next(row for row in rows(out) if "allclose" in row)
    for column in ("name", "max_abs_diff", "max_relative_diff", "atol", "rtol", "error_info"):
        assert column in header
    assert values(out, "torch.Tensor.mul output")[0][0] == "True"
    assert values(out, "torch.Tensor.mul inputs(cpu)[1]")[0][-1] == "2"
    assert values(out, "torch.Tensor.add grad_inputs[1]")[0][3:5] == ["float32", "cuda:0"]
    assert values(out, "torch.Tensor.add grad_inputs(cpu)[1]")[0][3:5] == ["float64", "cpu"]
    assert values(out, "torch.Tensor.__getitem__ output")[0][0] == "True"
    at_the_end = [row[1:] for row in rows(out) if row[0].isdigit()]
    assert ["torch.Tensor.add grad[1]", "True"] in [row[:2] for row in at_the_end]
    (file,) = tmp_path.glob("op_tools_results/op_autocompare_result/op_autocompare_info_pid*.csv")
    with file.open() as lines:
        found = list(csv.DictReader(lines))
    assert {"forward_id", "name", "allclose", "max_abs_diff", "error_info"} <= found[0].keys()
    assert all(row["allclose"] == "True" for row in found)


def test_a_wrong_operator_is_saved_on_both_sides(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    out = run(
        "x = torch.randn(64, 64).cuda()\n"
        "with op_tools.OpAutoCompare():\n    torch.nn.functional.linear(x.t(), x)\n    x + 1",
        DIPU_QUIRKS="ignore_strides:addmm|mm",
    )
    assert values(out, "torch.nn.functional.linear output")[0][0] == "False"
    folder = (
        r"op_tools_results/op_capture_results/torch\.nn\.functional\.linear/\d+/autocompare/\d+/"
    )
    for side in ("device", "cpu"):
        for name in ("input", "output"):
            assert re.search(rf"{folder}{STAMP}/{side}/{name}\.pth saved", out), (side, name)
    assert not list(tmp_path.glob("op_tools_results/op_capture_results/torch.Tensor.add"))


@pytest.mark.parametrize(
    "variables",
    [
        {"AUTOCOMPARE_ERROR_TOLERANCE": "1e3,1e3"},
        {"AUTOCOMPARE_ERROR_TOLERANCE_FLOAT32": "1e3,1e3", "AUTOCOMPARE_ERROR_TOLERANCE": "0,0"},
        {
            "LINEAR_AUTOCOMPARE_ERROR_TOLERANCE_FLOAT32": "1e3,1e3",
            "AUTOCOMPARE_ERROR_TOLERANCE_FLOAT32": "0,0",
        },
    ],
    ids=["all", "type", "operator"],
)
def test_a_tolerance_by_the_environment(run, variables: dict[str, str]) -> None:  # type: ignore[no-untyped-def]
    out = run(
        "x = torch.randn(64, 64).cuda()\n"
        "with op_tools.OpAutoCompare():\n    torch.nn.functional.linear(x.t(), x)",
        DIPU_QUIRKS="ignore_strides:addmm|mm",
        **variables,
    )
    row = values(out, "torch.nn.functional.linear output")[0]
    assert row[0] == "True" and "1000.000000000" in row


# 3. Offline.


@pytest.fixture
def captured(run, tmp_path: Path) -> Path:  # type: ignore[no-untyped-def]
    run("with op_tools.OpCapture():\n    f()", OP_CAPTURE_LIST="torch.Tensor.div")
    return tmp_path / "op_tools_results/op_capture_results/torch.Tensor.div"


def test_offline_accuracy(run, captured: Path) -> None:  # type: ignore[no-untyped-def]
    out = run.line(
        *("-m", "op_tools.run_op_from_data", str(captured), "--acc_check", "--run_times", "1"),
        OP_TOOLS_VERBOSE="0",
    )
    assert "torch.Tensor.div" in out


def test_offline_accuracy_of_a_wrong_device_fails(run, captured: Path) -> None:  # type: ignore[no-untyped-def]
    run.line(
        *("-m", "op_tools.run_op_from_data", str(captured), "--acc_check", "--run_times", "1"),
        status=1,
        DIPU_QUIRKS="nan:div",
    )


@pytest.mark.parametrize("more", [[], ["--only_run_forward"]], ids=["both", "forward only"])
def test_offline_times(run, captured: Path, more: list[str], tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    out = run.line(
        *("-m", "op_tools.run_op_from_data", str(captured), "--run_times", "3"),
        *("--sync_time_measure", *more),
    )
    assert str(captured) in out.replace("\n", "")
    assert "forward_elasped" in out
    assert ("backward_elasped" in out) is not bool(more)
    saved = re.search(r"Timings written to (op_tools_results/op_time_measure_result/\S+)", out)
    assert saved is not None
    with (tmp_path / saved[1]).open() as lines:
        found = list(csv.DictReader(lines))
    assert [row["forward_id"] for row in found] == ["1", "2", "3"]
    assert all((row["backward_elasped"] == "-") is bool(more) for row in found)


# 4. Times of a training.


@pytest.mark.parametrize(
    "usage",
    [
        "with op_tools.OpTimeMeasure():\n    f()",
        "timemeasure = op_tools.OpTimeMeasure()\ntimemeasure.start()\nf()\ntimemeasure.end()",
    ],
    ids=["with", "start and end"],
)
def test_times_forward_and_backward(run, usage: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    out = run(usage)
    assert any("forward_elasped" in row for row in rows(out))
    assert any("backward_elasped" in row for row in rows(out))
    saved = re.search(r"Timings written to (\S+)", out)
    assert saved is not None
    with (tmp_path / saved[1]).open() as lines:
        found = {row["name"]: row for row in csv.DictReader(lines)}
    mul = found["torch.Tensor.mul"]
    assert float(mul["forward_elasped"]) > 0 and float(mul["backward_elasped"]) > 0


# 5. Falling back.


@pytest.mark.parametrize(
    "usage",
    [
        "with op_tools.OpFallback():\n    f()",
        "fallback = op_tools.OpFallback()\nfallback.start()\nf()\nfallback.end()",
    ],
    ids=["with", "start and end"],
)
def test_fallback_of_everything(run, usage: str) -> None:  # type: ignore[no-untyped-def]
    out = run(usage)
    assert values(out, "torch.Tensor.div input(device)[0]")[0][4] == "cuda:0"
    assert values(out, "torch.Tensor.div input(device)[1]")[0][-1] == "3"
    assert values(out, "torch.Tensor.div input(cpu)[0]")[0][4] == "cpu"
    assert values(out, "torch.Tensor.div output(device)")[0][4] == "cuda:0"
    assert values(out, "torch.Tensor.div output(cpu)")[0][4] == "cpu"


def test_fallback_by_lists(run) -> None:  # type: ignore[no-untyped-def]
    only = run("with op_tools.OpFallback():\n    f()", OP_FALLBACK_LIST="torch.Tensor.sub")
    assert "skip OpFallbackHook on torch.Tensor.add" in only
    assert "OpFallback: 1 call of 1 operator ran on the CPU" in only
    rest = run("with op_tools.OpFallback():\n    f()", OP_FALLBACK_DISABLE_LIST="torch.Tensor.sub")
    assert "skip OpFallbackHook on torch.Tensor.sub" in rest
    assert "apply OpFallbackHook on torch.Tensor.add" in rest


# 6. Casting types.


def test_dtype_cast_usages(run) -> None:  # type: ignore[no-untyped-def]
    out = run(
        """
def g():
    a = torch.rand(10, 20, device="cuda").half()
    (a + a - a).sort()
dtype_caster = op_tools.OpDtypeCast()
dtype_caster.start()
for i in range(3):
    g()
dtype_caster.stop()
print("usage3")
os.environ["OP_DTYPE_CAST_DISABLE_LIST"] = "torch.Tensor.add,torch.Tensor.sub"
dtype_caster.start()
g()
dtype_caster.stop()
print("usage4")
os.environ["OP_DTYPE_CAST_DISABLE_LIST"] = ""
os.environ["OP_DTYPE_CAST_LIST"] = "torch.Tensor.sort,torch.Tensor.add"  # only cast these op
os.environ["OP_DTYPE_CAST_DICT"] = "torch.half->torch.bfloat16"
dtype_caster.start()
g()
dtype_caster.stop()
"""
    )
    two, rest = out.split("usage3")
    three, four = rest.split("usage4")
    cast = ["input[0]", "torch.float16 -> torch.float32"]
    back = ["output[0]", "torch.float32 -> torch.float16"]
    assert [row[:2] for row in values(two, "torch.Tensor.add")].count(cast) == 3
    assert [row[:2] for row in values(two, "torch.Tensor.add")].count(back) == 3
    assert not values(three, "torch.Tensor.add") and values(three, "torch.Tensor.sort")
    assert values(four, "torch.Tensor.add")[0][1] == "torch.float16 -> torch.bfloat16"
    assert not values(four, "torch.Tensor.sub")


# 7. Conditions of one's own.

CONDITION = """
def custom_condition(a, b):
    if a.dtype == torch.float16:
        print("hook enable because a.dtype is float16")
        return True
    elif a.dim() == 2:
        print("hook enable because a.dim() is 2")
        return True
    else:
        print("hook disable")
        return False

x = torch.randn(2, 3, 4, dtype=torch.float16).cuda()
y = torch.randn(4, 2, dtype=torch.float).cuda()
z = torch.randn(2, 3, 4, dtype=torch.float).cuda()
"""


def test_apply_feature_fallback(run) -> None:  # type: ignore[no-untyped-def]
    out = run(
        CONDITION + 'op_tools.apply_feature("torch.add", feature="fallback", '
        "condition_func=custom_condition)\n"
        "torch.add(x, x)"
    )
    assert "hook enable because a.dtype is float16" in out
    assert "apply OpFallbackHook on torch.add" in out
    for place in (0, 1):  # one tensor, given twice
        assert values(out, f"torch.add input(device)[{place}]")[0][4] == "cuda:0"
        assert values(out, f"torch.add input(cpu)[{place}]")[0][3] == "float16"


def test_apply_feature_autocompare(run) -> None:  # type: ignore[no-untyped-def]
    out = run(
        CONDITION + 'op_tools.apply_feature("torch.sub", feature="autocompare", '
        "condition_func=custom_condition)\n"
        "torch.sub(y, y)\ntorch.sub(z, z)"
    )
    assert "hook enable because a.dim() is 2" in out and "hook disable" in out
    assert "skip OpAutoCompareHook on torch.sub" in out
    assert values(out, "torch.sub output")[0][0] == "True"


def test_apply_feature_capture(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    out = run(
        CONDITION + 'op_tools.apply_feature("torch.mul", feature="op_capture", '
        "condition_func=custom_condition)\n"
        "torch.mul(x, x)\ntorch.mul(z, z)"
    )
    assert "apply OpCaptureHook on torch.mul" in out
    assert len(list(tmp_path.rglob("input.pth"))) == 1


def test_apply_feature_cast_reads_the_dict_that_is_set_later(run) -> None:  # type: ignore[no-untyped-def]
    out = run(
        CONDITION + 'op_tools.apply_feature("torch.div", feature="cast_dtype", '
        "condition_func=custom_condition)\n"
        'os.environ["OP_DTYPE_CAST_DICT"] = "torch.float32->torch.float16"\n'
        "torch.div(y, y)"
    )
    config = "torch.float32->torch.float16"
    assert values(out, "torch.div") == [
        ["input[0]", "torch.float32 -> torch.float16", config],
        ["input[1]", "torch.float32 -> torch.float16", config],
        ["output[0]", "torch.float16 -> torch.float32", config],
    ]
