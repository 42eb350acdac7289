"""CUDA's compiler and libraries: one clear error where this machine does not have them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch.utils.cpp_extension as builders

pytestmark = pytest.mark.skipif(builders.CUDA_HOME is not None, reason="a CUDA toolkit is here")
SOURCE = "__global__ void f() {}"


@pytest.mark.parametrize(
    ("call", "asked"),
    [
        (lambda: builders.CUDAExtension("a", ["a.cpp", "b.cu"]), "CUDAExtension"),
        (lambda: builders.load_inline("a", "", SOURCE), "load_inline with CUDA sources"),
        (lambda: builders.load_inline("a", "", with_cuda=True), "load_inline with CUDA sources"),
        (lambda: builders.load("a", ["a.cpp", "b.cu"]), "load with CUDA sources"),
        (lambda: builders.load("a", sources="b.cu"), "load with CUDA sources"),
    ],
)
def test_a_build_of_cuda_cpp_says_why_and_what_to_do(
    active: ModuleType, call: Callable[[], Any], asked: str
) -> None:
    with pytest.raises(active.Unsupported) as caught:
        call()
    text = str(caught.value)
    assert f"torch.utils.cpp_extension.{asked} has no equivalent here; called at {__file__}" in text
    assert "CppExtension" in str(caught.value.hint)


def test_a_build_for_the_host_is_not_refused(
    active: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert builders.CppExtension("a", ["a.cpp"]).sources == ["a.cpp"]
    monkeypatch.setattr(builders, "_jit_compile", lambda *args, **kwargs: "built")
    assert builders.load("a", ["a.cpp"]) == "built"
    assert builders.load_inline("a", "int f();") == "built"


def test_where_a_cuda_toolkit_is_installed_it_builds(
    active: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builders, "CUDA_HOME", "/usr/local/cuda")
    monkeypatch.setattr(builders, "_jit_compile", lambda *args, **kwargs: "built")
    assert builders.load("a", ["a.cu"]) == "built"


@pytest.mark.parametrize(
    "name",
    ["libnvrtc.so.99", "/no/such/folder/libcudart.so", "libnccl.so.99", "libcudnn_ops.so.99"],
)
def test_a_library_of_cuda_is_named(active: ModuleType, name: str) -> None:
    for load in (ctypes.CDLL, ctypes.PyDLL, ctypes.cdll.LoadLibrary):
        with pytest.raises(OSError, match=f"cannot load {name}: it is a library of CUDA"):
            load(name)
    with pytest.raises(active.Unsupported, match=r"Hint: use the functions of torch\.cuda"):
        ctypes.CDLL(name)


def test_other_libraries_are_loaded_as_before(active: ModuleType) -> None:
    assert ctypes.CDLL(None).getpid() > 0
    with pytest.raises(OSError, match="no_such_library") as caught:
        ctypes.CDLL("no_such_library.so")
    assert type(caught.value) is OSError


def test_undo_takes_the_errors_back(active: ModuleType) -> None:
    active.undo()
    with pytest.raises(OSError, match="CUDA_HOME"):
        builders.CUDAExtension("a", ["b.cu"])
    with pytest.raises(OSError, match="libcuda") as caught:
        ctypes.CDLL("libcuda.so.99")
    assert type(caught.value) is OSError
