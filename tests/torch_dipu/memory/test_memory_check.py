"""DIPU_MEM_CHECK: planted faults of memory are found and named."""

from __future__ import annotations

from tests.torch_dipu.interpreter import run_python


def _checked(source: str, level: int = 1, backtrace: bool = False) -> str:
    """Return a program's stderr with the check on; it must exit with 0."""
    done = run_python(
        source,
        DIPU_MEM_CHECK=str(level),
        DIPU_MEM_CHECK_ENABLE_BACKTRACE=str(int(backtrace)),
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_what_is_never_freed_is_reported_with_its_place_apart_from_globals() -> None:
    text = _checked(
        """
import ctypes, torch, torch_dipu
kept = []
def lose():
    x = torch.ones(1000, device="dipu")
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(x))
def cache():
    kept.append(torch.ones(500, device="dipu"))
for _ in range(3):
    lose()
cache()
torch.ones(10, device="dipu").add(1)
""",
        backtrace=True,
    )
    lost, held = text.split("[torch_dipu] memory check: ")[1:]
    assert lost.startswith("3 blocks, 12000 bytes of device memory: never freed\n")
    assert "  3 blocks, 12000 bytes, allocated at:\n    <string>:5 in lose\n" in lost
    assert "in C++:\n" in lost and "at::native::ones\n" in lost
    assert held.startswith("1 block, 2000 bytes of device memory: held until the end")
    assert "<string>:8 in cache\n" in held


def test_a_program_that_frees_everything_gets_a_clean_report() -> None:
    text = _checked("import torch, torch_dipu; torch.ones(3, device='dipu').add(1)")
    assert text == "[torch_dipu] memory check: every block was freed.\n"


def test_an_overrun_is_found_when_the_block_is_freed() -> None:
    text = _checked(
        """
import torch, torch_dipu
a = torch.ones(10, device="dipu")
with torch.dipu.quirk("overrun", "add", nbytes=5):
    b = a + 1
del a, b
"""
    )
    assert "something wrote past the end of a block of 40 bytes on dipu:0: 5 bytes" in text
    assert "Found when it was freed (DIPU_MEM_CHECK=2 names the operator)" in text


def test_the_strict_check_names_the_operator_of_each_fault() -> None:
    text = _checked(
        """
import torch, torch_dipu
a = torch.ones(10, device="dipu:1")
with torch.dipu.quirk("overrun", "mul"):
    a * 2
with torch.dipu.quirk("leak", "exp", nbytes=8192):
    [a.exp() for _ in range(3)]
ended = torch.dipu.caching_allocator_alloc(100, "dipu:1")
torch.dipu.caching_allocator_delete(ended)
torch.dipu.caching_allocator_delete(ended)
with torch.dipu.quirk("double_free", "add"):
    a + 1
""",
        level=2,
    )
    findings = text.split("[torch_dipu] memory check: ")[1:]
    assert findings[0].startswith("mul.Tensor wrote past the end of a block of 40 bytes on dipu:1")
    assert findings[1].startswith("exp left 8192 bytes of dipu:1's memory allocated outside")
    assert findings[2].startswith("a block of 100 bytes on dipu:1 was freed twice")
    assert findings[3].startswith("add.Tensor gave back 2097152 bytes of dipu:1's memory")
    assert "  exp: 3 calls left 24576 bytes outside the allocator\n" in text
