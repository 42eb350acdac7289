"""Each program of examples/ runs as its README says, and prints what it is for."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.journeys.program import ENVIRONMENT

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
RUN = ("-m", "deeplink", "run")
TORCHRUN = (*RUN, "-m", "torch.distributed.run", "--nproc-per-node", "2")
FALLS = r"loss (\d+\.\d+) -> (\d+\.\d+)"


def printed(tmp_path: Path, *line: str, needs: tuple[str, ...] = ()) -> str:
    """What a command prints; it must end with status 0. Skips where a named package is missing."""
    for package in needs:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    source = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    fixed = {"DEEPLINK_VENDOR": "reference", "PYTHONPATH": source, "PATH": path}
    done = subprocess.run(
        line if line[0] == "bash" else [sys.executable, *line],
        cwd=tmp_path,
        env={**os.environ, **ENVIRONMENT, **fixed},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def assert_falls(output: str) -> None:
    first, last = map(float, next(iter(re.findall(FALLS, output))))
    assert last < 0.7 * first


def test_the_readme_names_every_example() -> None:
    named = set(re.findall(r"\]\((\w[\w.]*)[/)]", (EXAMPLES / "README.md").read_text("utf-8")))
    there = {path.name for path in EXAMPLES.iterdir()} - {"README.md", "__pycache__"}
    assert named == there


@pytest.mark.slow
def test_the_trainer_of_transformers(tmp_path: Path) -> None:
    program = str(EXAMPLES / "huggingface_trainer.py")
    output = printed(tmp_path, *RUN, program, needs=("transformers", "accelerate"))
    assert "slowest operator: torch." in output
    assert_falls(output)


@pytest.mark.slow
def test_lightning(tmp_path: Path) -> None:
    output = printed(tmp_path, *RUN, str(EXAMPLES / "lightning_trainer.py"), needs=("lightning",))
    compared, wrong = map(int, re.findall(r"(\d+) calls compared, (\d+) wrong", output)[0])
    assert compared > 5 and wrong == 0
    assert_falls(output)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_torchrun(strategy: str, tmp_path: Path) -> None:
    program = str(EXAMPLES / "distributed_training.py")
    output = printed(tmp_path, *TORCHRUN, program, "--strategy", strategy)
    assert f"{strategy} on 2 ranks" in output
    assert_falls(output)


@pytest.mark.slow
def test_torch_compile(tmp_path: Path) -> None:
    output = printed(tmp_path, str(EXAMPLES / "compile_model.py"))
    difference = re.findall(r"largest difference to eager: (\S+)", output)[0]
    assert float(difference) < 1e-5
    assert "operators stay eager" in output


@pytest.mark.slow
def test_serving(tmp_path: Path) -> None:
    output = printed(tmp_path, str(EXAMPLES / "serve_model.py"), needs=("transformers",))
    assert "4 prompts, 16 new tokens each" in output
    assert "the same tokens as stock transformers: True" in output


@pytest.mark.slow
def test_a_kernel_in_python(tmp_path: Path) -> None:
    lines = printed(tmp_path, str(EXAMPLES / "python_kernel.py")).splitlines()
    assert lines[:2] == ["relu: [0.0, 2.0]", "exp: [0.368, 7.389]"]
    assert "'kernel': 1" in lines[2]


@pytest.mark.slow
def test_the_checks_of_a_vendors_ci(tmp_path: Path) -> None:
    printed(tmp_path, "bash", str(EXAMPLES / "vendor_ci.sh"), "results")
    assert (tmp_path / "results/report.html").is_file()
    assert (tmp_path / "results/conformance/results.jsonl").is_file()


@pytest.mark.slow
def test_the_notebook(tmp_path: Path) -> None:
    run = (
        "import sys, nbformat, nbclient\n"
        "notebook = nbformat.read(sys.argv[1], as_version=4)\n"
        "nbclient.NotebookClient(notebook, kernel_name='python3').execute()\n"
        "print([output.get('text', '') for cell in notebook.cells for output in"
        " cell.get('outputs', [])])\n"
    )
    needs = ("nbformat", "nbclient", "ipykernel")
    output = printed(tmp_path, "-c", run, str(EXAMPLES / "wrong_operator.ipynb"), needs=needs)
    assert "wrong: {'torch.nn.functional.gelu'}" in output
    assert "repaired: True" in output
