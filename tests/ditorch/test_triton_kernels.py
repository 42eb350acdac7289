"""Triton kernels: a launch without a driver is an error; by choice the interpreter runs them.

The default tier uses a small package in the place of triton.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import textwrap
from pathlib import Path

import pytest

from tests import warm

NEEDS_TRITON = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)

# What ditorch uses of triton, by the same names.
STAND_IN = {
    "triton/__init__.py": """
        from triton.language import core
        from triton.runtime.jit import jit
        """,
    "triton/language/__init__.py": "",
    "triton/language/core.py": """
        class dtype:
            name = "fp32"
        """,
    "triton/runtime/__init__.py": "",
    "triton/runtime/driver.py": """
        class Config:
            @property
            def active(self):
                import sys
                if "vendor_driver" in sys.modules:
                    return "a driver"
                raise RuntimeError("0 active drivers ([]). There should only be one.")
        driver = Config()
        """,
    "triton/runtime/autotuner.py": """
        class Autotuner:
            def __init__(self, fn):
                self.fn = fn
            def run(self, *args, grid, warmup, **kwargs):
                return self.fn.run(*args, grid=grid, warmup=warmup, **kwargs)
        """,
    "triton/runtime/jit.py": """
        import os
        import types
        import triton.runtime.driver
        interpret = os.environ.get("TRITON_INTERPRET") == "1"
        knobs = types.SimpleNamespace(runtime=types.SimpleNamespace(interpret=interpret))
        class JITFunction:
            def __init__(self, fn):
                self.fn = fn
            def __getitem__(self, grid):
                return lambda *args, **kwargs: self.run(*args, grid=grid, warmup=False, **kwargs)
            def run(self, *args, grid, warmup, **kwargs):
                return f"compiled {self.fn.__name__}"
        def jit(fn):
            if not interpret:
                return JITFunction(fn)
            import triton.runtime.interpreter
            return triton.runtime.interpreter.InterpretedFunction(fn)
        """,
    "triton/runtime/interpreter.py": """
        import numpy as np
        class tl:
            float32 = "fp32"
            @staticmethod
            def tensor(handle, kind):
                return handle
        class TensorHandle:
            def __init__(self, data, dtype):
                self.data, self.dtype = data, dtype
        def _implicit_cvt(arg):
            return arg
        class InterpretedFunction:
            def __init__(self, fn):
                self.fn = fn
            def __getitem__(self, grid):
                return lambda *args: self.fn(*map(_implicit_cvt, args))
        """,
}
KERNEL = """
    import triton
    @triton.jit
    def scaled(x):
        return x
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the small package in the place of triton."""
    for name, text in STAND_IN.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
    return tmp_path


def run(folder: Path, program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    script = folder / "program.py"
    script.write_text("\n".join(textwrap.dedent(part) for part in program.split("---")))
    here = {**os.environ, "DITORCH_QUIET": "1", "DEEPLINK_VENDOR": "reference", **environment}
    here.pop("TRITON_INTERPRET", None)
    return warm.run([str(script)], here)


def test_a_launch_without_a_driver_says_what_to_do(folder: Path) -> None:
    done = run(folder, f"import ditorch---{KERNEL}---scaled[(1,)](2.0)")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-2:]
    assert "the Triton kernel scaled has no equivalent here; called at " in " ".join(last)
    assert "program.py:" in " ".join(last)
    assert "deeplink run --triton interpret" in done.stderr


def test_an_import_order_does_not_matter_for_the_message(folder: Path) -> None:
    done = run(folder, f"{KERNEL}---import ditorch---scaled[(1,)](2.0)")
    assert "the Triton kernel scaled has no equivalent here" in done.stderr


def test_tuned_kernels_have_the_message_too(folder: Path) -> None:
    program = f"""import ditorch---{KERNEL}---
    from triton.runtime.autotuner import Autotuner
    Autotuner(scaled).run(2.0, grid=(1,), warmup=False)
    """
    done = run(folder, program)
    assert "the Triton kernel scaled has no equivalent here" in done.stderr


def test_a_vendors_triton_launches(folder: Path) -> None:
    (folder / "vendor_driver.py").write_text("")
    done = run(folder, f"import ditorch, vendor_driver---{KERNEL}---print(scaled[(1,)](2.0))")
    assert (done.stdout, done.returncode) == ("compiled scaled\n", 0)


def test_the_interpreter_gives_numbers_as_float32_scalars(folder: Path) -> None:
    program = f"import ditorch---{KERNEL}---x = scaled[(1,)](2.5); print(x.data.dtype, x.data)"
    done = run(folder, program, DITORCH_TRITON="interpret")
    assert (done.stdout, done.returncode) == ("float32 [2.5]\n", 0), done.stderr


def test_the_interpreter_needs_ditorch_first(folder: Path) -> None:
    done = run(folder, f"{KERNEL}---import ditorch", DITORCH_TRITON="interpret")
    assert done.returncode == 1
    assert "triton is imported already" in done.stderr
    assert "import ditorch before triton" in done.stderr


def test_undo_restores_triton(folder: Path) -> None:
    program = f"""import ditorch---{KERNEL}---
    import os
    ditorch.undo()
    print(scaled[(1,)](2.0), os.environ.get("TRITON_INTERPRET"))
    """
    assert run(folder, program).stdout == "compiled scaled None\n"
    assert run(folder, program, DITORCH_TRITON="interpret").stdout == "2.0 None\n"


def test_the_option_of_run_chooses_the_interpreter(folder: Path) -> None:
    script = folder / "program.py"
    script.write_text(textwrap.dedent(KERNEL) + "print(scaled[(1,)](2.5).data)\n")
    here = {**os.environ, "DITORCH_QUIET": "1", "DEEPLINK_VENDOR": "reference"}
    line = ["-m", "deeplink", "run", "--triton", "interpret", str(script)]
    done = warm.run(line, here, warn="ignore")
    assert (done.stdout, done.returncode) == ("[2.5]\n", 0), done.stderr
    refused = warm.run(["-m", "deeplink", "run", "--triton", "gpu", str(script)], here)
    assert refused.returncode == 2
    assert "device, interpret" in refused.stderr


def test_coverage_knows_what_runs_kernels(folder: Path) -> None:
    script = folder / "program.py"
    script.write_text(textwrap.dedent(KERNEL))
    here = {**os.environ, "DITORCH_QUIET": "1", "DEEPLINK_VENDOR": "reference", "COLUMNS": "300"}
    line = ["-m", "ditorch", "coverage", "--all", str(script)]
    done = warm.run(line, here, warn="ignore")
    assert "does not run on reference device (CPU): @triton.jit" in done.stdout
    assert done.returncode == 1
    done = warm.run(line, {**here, "DITORCH_TRITON": "interpret"}, warn="ignore")
    assert "interpreter runs it on the CPU" in done.stdout
    assert done.returncode == 0


REAL = """
import ditorch
import torch, triton, triton.language as tl
from triton.language.extra import libdevice

@triton.jit
def lowest(dtype: tl.constexpr):
    return dtype.value.primitive_bitwidth

@triton.jit
def kernel(x, y, scale, N: tl.constexpr):
    o = tl.program_id(0) * N + tl.arange(0, N)
    value = tl.load(x + o) * scale.to(tl.float32)
    bits = lowest(x.type.element_ty)
    tl.store(y + o, libdevice.tanh(value) + libdevice.erf(value) + bits)

x = torch.linspace(-2, 2, 32, device="cuda")
y = torch.empty_like(x)
kernel[(4,)](x, y, 0.5, 8)
half = x.cpu() * 0.5
torch.testing.assert_close(y.cpu(), half.tanh() + half.erf() + 32)
index = torch.empty(2, device="cuda")

@triton.jit
def largest(x, y, N: tl.constexpr):
    value, index = tl.max(tl.load(x + tl.arange(0, N)), axis=0, return_indices=True)
    tl.store(y, value)
    tl.store(y + 1, index.to(tl.float32))

largest[(1,)](x, index, 32)
assert index.tolist() == [2, 31]
print("as on the CPU")
"""
LIGER = """
import ditorch
import torch
from torch.nn import functional as F
from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction
from liger_kernel.ops.rms_norm import LigerRMSNormFunction
from liger_kernel.ops.swiglu import LigerSiLUMulFunction

def check(name, kernel, plain, *arguments):
    host = [a.clone().requires_grad_(a.is_floating_point()) for a in arguments]
    there = [a.clone().cuda().requires_grad_(a.is_floating_point()) for a in arguments]
    wanted = plain(*host)
    wanted.square().sum().backward()
    found = kernel(*there)
    found = found[0] if isinstance(found, tuple) else found
    result = found.detach().cpu().clone()
    found.square().sum().backward()
    torch.testing.assert_close(result, wanted)
    for a, b in zip(there, host):
        if b.grad is not None:
            torch.testing.assert_close(a.grad.cpu(), b.grad)
    print(name)

torch.manual_seed(0)
check("rms_norm", lambda x, w: LigerRMSNormFunction.apply(x, w, 1e-6),
      lambda x, w: F.rms_norm(x, (32,), w, 1e-6), torch.randn(4, 32), torch.randn(32))
check("swiglu", LigerSiLUMulFunction.apply, lambda a, b: F.silu(a) * b,
      torch.randn(4, 32), torch.randn(4, 32))
check("fused_linear_cross_entropy", LigerFusedLinearCrossEntropyFunction.apply,
      lambda h, w, t: F.cross_entropy(h @ w.t(), t),
      torch.randn(8, 16), torch.randn(32, 16), torch.randint(0, 32, (8,)))
"""


@pytest.mark.slow
@NEEDS_TRITON
def test_triton_itself_interprets_with_the_numbers_of_the_cpu(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(REAL)
    here = {**os.environ, "DITORCH_TRITON": "interpret", "DEEPLINK_VENDOR": "reference"}
    done = warm.run([str(tmp_path / "program.py")], here, warn="ignore")
    assert done.stdout == "as on the CPU\n", done.stderr


@pytest.mark.slow
@NEEDS_TRITON
@pytest.mark.skipif(
    importlib.util.find_spec("liger_kernel") is None, reason="liger-kernel is not installed"
)
@pytest.mark.parametrize("vendor", ["reference", "cpu"])
def test_kernels_of_liger_run_with_the_numbers_of_the_cpu(tmp_path: Path, vendor: str) -> None:
    (tmp_path / "program.py").write_text(LIGER)
    here = {**os.environ, "DITORCH_TRITON": "interpret", "DEEPLINK_VENDOR": vendor}
    done = warm.run([str(tmp_path / "program.py")], here, warn="ignore")
    names = ["rms_norm", "swiglu", "fused_linear_cross_entropy"]
    assert done.stdout.split() == names, done.stderr


@pytest.mark.slow
@NEEDS_TRITON
def test_a_launch_of_triton_itself_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(REAL)
    here = {**os.environ, "DEEPLINK_VENDOR": "reference"}
    done = warm.run([str(tmp_path / "program.py")], here, warn="ignore")
    assert "the Triton kernel kernel has no equivalent here" in done.stderr
