"""A file that lies in memory, written by several threads: all of it or nothing, and its errors."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from op_tools import OpCapture, diagnostics, kernels, packed, recording, spool
from op_tools.archive import Archive
from op_tools.late import Waiting

HELPER = kernels.helper()
SIZE = 5 << 20


@pytest.fixture
def path() -> Iterator[Path]:
    """In the memory file system."""
    if HELPER is None or not os.path.isdir("/dev/shm"):
        pytest.skip("no such file system, or no native part")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        made = Path(folder) / "file"
        made.write_bytes(b"")
        yield made


def put(file: int, data: torch.Tensor, start: int, threads: int = 3) -> None:
    assert HELPER is not None
    HELPER.put_in_memory(file, data.data_ptr(), start, start + len(data), threads)


@pytest.mark.parametrize("start", [0, 64, 4096 - 64, 1 << 20, (1 << 20) + 192])
@pytest.mark.parametrize("size", [64, 4096, 1 << 20, 3 << 20, SIZE + 64])
def test_bytes_are_where_they_should_be(path: Path, start: int, size: int) -> None:
    torch.manual_seed(0)
    before, data = (torch.randint(0, 256, (n,), dtype=torch.uint8) for n in (start, size))
    path.write_bytes(before.numpy().tobytes())
    file = os.open(path, os.O_RDWR)
    put(file, data, start)
    os.close(file)
    assert path.read_bytes() == torch.cat([before, data]).numpy().tobytes()


def test_it_is_known_whether_a_file_lies_in_memory(path: Path, tmp_path: Path) -> None:
    assert HELPER is not None
    with path.open("rb") as file:
        assert HELPER.is_in_memory(file.fileno())
    with open("/proc/self/stat", "rb") as other:
        assert not HELPER.is_in_memory(other.fileno())


def test_an_error_is_raised(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    with pytest.raises(OSError) as raised:
        put(file, torch.zeros(SIZE, dtype=torch.uint8), 0)
    os.close(file)
    assert raised.value.errno in (errno.EINVAL, errno.EACCES, errno.EBADF)


@pytest.mark.parametrize("near", [True, False], ids=["near", "locked"])
def test_an_archive_in_memory_is_written_by_several_while_the_program_waits(
    near: bool, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OP_TOOLS_RESULTS", str(path.parent))
    monkeypatch.setattr(recording, "window", lambda kind, index: None)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(spool, "FEW", 0 if near else 1 << 40)
    monkeypatch.setattr(spool, "DELAY", 60)  # nearly all is written at the end
    assert HELPER is not None
    plain, pieces = HELPER.put_in_memory, []

    def counting(*given: int) -> None:
        pieces.append(given[2:])
        plain(*given)

    monkeypatch.setattr(HELPER, "put_in_memory", counting)
    x = torch.arange(400_000.0, device="dipu")
    with OpCapture(format="packed"):
        for i in range(12):
            x = x + i
    (found,) = path.parent.rglob("*.opcap")
    held = Archive(found)
    made = [held.load(call).output for call in held]
    assert len(made) == 12 and torch.equal(made[-1], x.cpu()) and held.lost == 0
    assert sum(stop - start for start, stop, _ in pieces) > 4 << 20
    assert all(threads == 6 for _, _, threads in pieces)
    assert diagnostics.problems() == []


def test_an_older_system_gets_a_plain_write(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert HELPER is not None
    monkeypatch.setattr(os, "cpu_count", lambda: 8)

    def refused(*given: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(HELPER, "put_in_memory", refused)
    held = spool.Spool(path, lambda error: None, Waiting(), packed._filling)
    arena, at = held.room(2 << 20)
    arena.view[at : at + (2 << 20)] = b"x" * (2 << 20)
    held.advance(2 << 20)
    held.close()
    assert not held.failed and path.read_bytes() == b"x" * (2 << 20)


DYING = """
import mmap, os, sys
from op_tools import kernels
import ctypes
source = os.open(sys.argv[1] + ".source", os.O_RDWR | os.O_CREAT)
os.write(source, b"OPC1" + bytes(5 << 20))
data = mmap.mmap(source, 5 << 20)
address = ctypes.addressof(ctypes.c_char.from_buffer(data))
os.ftruncate(source, 3 << 20)  # to read behind that ends the process
file = os.open(sys.argv[1], os.O_RDWR)
kernels.helper().put_in_memory(file, address, 64, 64 + (5 << 20), 2)
"""


def test_the_head_of_a_piece_comes_last(path: Path) -> None:
    path.write_bytes(b"x" * 64)
    done = subprocess.run([sys.executable, "-c", DYING, str(path)])
    assert done.returncode == -signal.SIGBUS
    found = path.read_bytes()
    assert len(found) == 64 + (5 << 20) and found[:64] == b"x" * 64
    assert found[64:128] == bytes(64)  # so that a reader stops here
