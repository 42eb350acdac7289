"""torch.library: kernels that a program registers for CUDA serve tensors that represent cuda."""

from __future__ import annotations

import ctypes
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

pytestmark = pytest.mark.filterwarnings("ignore:Warning only once for all operators")
_numbers = itertools.count()


@pytest.fixture(params=["reference", "cpu"])
def mapped(request: pytest.FixtureRequest) -> Iterator[str]:
    """ditorch on a device; the name of that device."""
    import ditorch

    ditorch.undo()
    target = ditorch.activate(request.param).target
    assert target is not None
    yield target.device
    ditorch.undo()


@pytest.fixture
def namespace() -> str:
    """A name of operators that no other test uses."""
    return f"test_library_keys_{next(_numbers)}"


def defined(namespace: str) -> torch.library.Library:
    """The operator `f`, without a kernel."""
    library = torch.library.Library(namespace, "DEF")
    library.define("f(Tensor x) -> Tensor")
    return library


def cuda(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32, device="cuda")


def run(namespace: str, x: torch.Tensor) -> list[float]:
    result: torch.Tensor = getattr(torch.ops, namespace).f(x)
    assert result.device == x.device
    return result.tolist()


def test_a_kernel_for_the_key_cuda_is_reached(mapped: str, namespace: str) -> None:
    library = defined(namespace)
    library.impl("f", lambda x: x + 1, "CUDA")
    assert run(namespace, cuda(1)) == [2]


def test_the_key_of_a_library_is_cudas(mapped: str, namespace: str) -> None:
    library = defined(namespace)
    kernels = torch.library.Library(namespace, "IMPL", "CUDA")
    kernels.impl("f", lambda x: x + 1)
    assert run(namespace, cuda(1)) == [2]
    assert (kernels.dispatch_key, library.dispatch_key) == ("CUDA", "")


@pytest.mark.parametrize("kind", ["cuda", "CUDA", ("cuda", "meta")])
def test_a_kernel_for_the_device_type_is_reached(mapped: str, namespace: str, kind: str) -> None:
    library = defined(namespace)
    torch.library.impl(f"{namespace}::f", kind, lambda x: x + 1, lib=library)
    assert run(namespace, cuda(1)) == [2]


def test_the_older_decorator_takes_the_key(mapped: str, namespace: str) -> None:
    library = defined(namespace)

    @torch.library.impl(library, "f", "CUDA")
    def kernel(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    assert run(namespace, cuda(1)) == [2]


def test_custom_operators_have_kernels_for_cuda(mapped: str, namespace: str) -> None:
    @torch.library.custom_op(f"{namespace}::f", mutates_args=(), device_types="cuda")
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    @torch.library.custom_op(f"{namespace}::g", mutates_args=())
    def g(x: torch.Tensor) -> torch.Tensor:
        return x - 1

    g.register_kernel("cuda")(lambda x: x + 2)
    assert (f(cuda(1)).tolist(), g(cuda(1)).tolist()) == ([2], [3])


@pytest.mark.parametrize("first", ["cpu", "cuda"])
def test_on_plain_cpu_the_kernel_for_the_cpu_has_priority(
    active: ModuleType, namespace: str, first: str
) -> None:
    active.undo()
    active.activate("cpu")
    second = "cuda" if first == "cpu" else "cpu"

    @torch.library.custom_op(f"{namespace}::f", mutates_args=(), device_types=first)
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + (1 if first == "cpu" else 2)

    f.register_kernel(second)(lambda x: x + (1 if second == "cpu" else 2))
    assert f(cuda(1)).tolist() == [2]
    library = defined(f"{namespace}_")
    for kind in (first, second):
        number = 1 if kind == "cpu" else 2
        library.impl("f", lambda x, number=number: x + number, kind.upper())
    assert run(f"{namespace}_", cuda(1)) == [2]


def test_a_kernel_for_the_host_serves_the_host_alone(active: ModuleType, namespace: str) -> None:
    library = defined(namespace)
    library.impl("f", lambda x: x + 1, "CUDA")
    library.impl("f", lambda x: x - 1, "CPU")
    assert run(namespace, cuda(1)) == [2]
    assert run(namespace, torch.ones(1)) == [0]


def test_an_autograd_kernel_for_cuda_is_reached(mapped: str, namespace: str) -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            with torch._C._AutoDispatchBelowAutograd():
                return getattr(torch.ops, namespace).f(x)

        @staticmethod
        def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * 5

    library = defined(namespace)
    library.impl("f", lambda x: x * 2, "CUDA")
    library.impl("f", Double.apply, "AutogradCUDA")
    x = cuda(1).requires_grad_()
    result = getattr(torch.ops, namespace).f(x)
    result.sum().backward()
    assert (result.tolist(), x.grad.tolist()) == ([2], [5])


def test_autocast_rules_for_cuda_cast_its_tensors(mapped: str, namespace: str) -> None:
    @torch.library.custom_op(f"{namespace}::f", mutates_args=())
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    f.register_autocast("cuda", torch.bfloat16)

    @torch.library.custom_op(f"{namespace}::g", mutates_args=())
    def g(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    torch.library.register_autocast(f"{namespace}::g", "cuda", torch.bfloat16)
    for function in (f, g):
        assert function(cuda(1)).dtype is torch.float32
        with torch.autocast("cuda", torch.bfloat16):
            assert function(cuda(1)).dtype is torch.bfloat16


def test_a_key_of_autocast_is_cudas(mapped: str, namespace: str) -> None:
    library = defined(namespace)
    library.impl("f", lambda x: x + 1, "CUDA")

    def cast(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", enabled=False):
            return getattr(torch.ops, namespace).f(x.to(torch.bfloat16))

    library.impl("f", cast, "AutocastCUDA")
    with torch.autocast("cuda", torch.bfloat16):
        assert getattr(torch.ops, namespace).f(cuda(1)).dtype is torch.bfloat16


def test_an_operator_of_torch_is_overridden_until_the_library_is_gone(mapped: str) -> None:
    calls = []

    def mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        calls.append(a.device.type)
        return torch.full((a.shape[0], b.shape[1]), 7.0, device=a.device)

    matrix = torch.ones(2, 2, device="cuda")
    library = torch.library.Library("aten", "IMPL")
    library.impl("mm", mm, "CUDA")
    assert (matrix @ matrix).tolist() == [[7, 7], [7, 7]]
    assert len(calls) == 1
    library._destroy()
    assert (matrix @ matrix).tolist() == [[2, 2], [2, 2]]
    assert len(calls) == 1


def test_a_kernel_that_was_replaced_can_be_called(mapped: str) -> None:
    if not hasattr(torch.library, "get_kernel"):
        pytest.skip("torch.library.get_kernel came with torch 2.10")
    before = torch.library.get_kernel("aten::mm", "CUDA")
    library = torch.library.Library("aten", "IMPL", "CUDA")
    library.impl("mm", lambda keys, a, b: before.call_boxed(keys, a, b) * 10, with_keyset=True)
    matrix = torch.ones(2, 2, device="cuda")
    assert (matrix @ matrix).tolist() == [[20, 20], [20, 20]]
    library._destroy()


def test_what_torch_registers_for_cuda_stays_cudas(mapped: str, namespace: str) -> None:
    library = defined(namespace)
    library.impl("f", lambda x: x, "Meta")
    code = compile(
        "library.impl('f', lambda x: x + 1, 'CUDA')", f"{torch.__path__[0]}/a.py", "exec"
    )
    exec(code, {"library": library})
    with pytest.raises((NotImplementedError, RuntimeError), match="Could not run"):
        run(namespace, cuda(1))


def test_undo_leaves_torch_library_as_it_was(active: ModuleType, namespace: str) -> None:
    active.undo()
    before = (torch.library.Library.impl.__code__, torch._C._dispatch_library)
    active.activate("reference")
    active.undo()
    assert (torch.library.Library.impl.__code__, torch._C._dispatch_library) == before
    library = defined(namespace)
    library.impl("f", lambda x: x + 1, "CUDA")
    with pytest.raises(RuntimeError, match="Could not run"):
        getattr(torch.ops, namespace).f(torch.ones(1, device="dipu"))


@pytest.mark.parametrize("vendor", ["reference", "cpu"])
def test_a_program_sees_it_in_the_report(vendor: str, active: ModuleType, namespace: str) -> None:
    active.undo()
    active.activate(vendor)
    defined(namespace).impl("f", lambda x: x, "CUDA")
    assert 'torch.library for "CUDA"' in active.report().used


def test_a_library_of_the_stable_abi_registers_for_the_target(
    active: ModuleType, namespace: str
) -> None:
    library = defined(namespace)
    called = []

    @ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_uint64), ctypes.c_uint64, ctypes.c_uint64)
    def kernel(stack: object, inputs: int, outputs: int) -> None:
        called.append((inputs, outputs))  # the input becomes the output

    scope, handle = ctypes.CDLL(None), ctypes.c_void_p()  # where a loaded library is resolved first
    torch_cpu = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    assert scope.aoti_torch_library_init_impl(
        namespace.encode(), b"CUDA", b"here", 1, ctypes.byref(handle)) == 0  # fmt: skip
    assert torch_cpu.aoti_torch_library_impl(handle, b"f", kernel) == 0
    assert run(namespace, cuda(3)) == [3]
    assert called == [(1, 1)]
    torch_cpu.aoti_torch_delete_library_object(handle)
    library._destroy()


INLINE = """
import torch
import ditorch
from torch.utils.cpp_extension import load_inline

source = '''
#include <torch/library.h>
#include <ATen/Functions.h>
static at::Tensor f(const at::Tensor& x) { return x.add(1); }
TORCH_LIBRARY(test_inline, m) { m.def("f(Tensor x) -> Tensor"); }
TORCH_LIBRARY_IMPL(test_inline, CUDA, m) { m.impl("f", &f); }
'''
load_inline("test_inline", source, is_python_module=False, no_implicit_headers=True)
print(torch.ops.test_inline.f(torch.ones(2, device="cuda")))
"""


@pytest.mark.slow
def test_torch_library_impl_of_cpp_registers_for_the_target(tmp_path: Path) -> None:
    """A compiled extension, without a compiler for CUDA."""
    program = tmp_path / "inline.py"
    program.write_text(INLINE)
    done = subprocess.run(
        [sys.executable, str(program)],
        env={**os.environ, "DEEPLINK_VENDOR": "reference", "DITORCH_QUIET": "1",
             "TORCH_EXTENSIONS_DIR": str(tmp_path / "built")},
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("tensor([2., 2.], device=")
