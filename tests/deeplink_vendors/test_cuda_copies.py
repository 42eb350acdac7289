"""The kernel that copies tensors of a GPU, run by the host; what ran on a GPU itself is in
docs/op_tools.md.
"""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest
import torch

from deeplink import native
from op_tools import copying

SOURCE = Path(copying.__file__).parents[1] / "deeplink_vendors" / "cuda" / "copies.cu"
SHIM = """
#define __device__
#define __global__
#define __grid_constant__
struct uint4 { unsigned int x, y, z, w; };
struct Place { unsigned int x, y; };
static Place threadIdx, blockIdx, gridDim;
static constexpr Place blockDim{8, 1};
"""
GRID = """
extern "C" void run(const Table* table, int columns, int rows) {
  gridDim = {(unsigned)columns, (unsigned)rows};
  for (blockIdx.y = 0; (int)blockIdx.y < rows; blockIdx.y++)
    for (blockIdx.x = 0; (int)blockIdx.x < columns; blockIdx.x++)
      for (threadIdx.x = 0; threadIdx.x < blockDim.x; threadIdx.x++) copy_rows(*table);
}
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if not native.has_compiler():
        pytest.skip("no compiler here")
    folder = tmp_path_factory.mktemp("copies")
    source, library = folder / "copies.cpp", folder / "copies.so"
    source.write_text(SHIM + SOURCE.read_text() + GRID)
    command = ["c++", "-std=c++20", "-O1", "-w", "-shared", "-fPIC", str(source), "-o"]
    subprocess.run([*command, str(library)], check=True)
    return ctypes.CDLL(str(library))


@pytest.mark.parametrize("columns", [1, 3])
def test_every_byte_goes_where_it_should_and_no_other(kernel: ctypes.CDLL, columns: int) -> None:
    torch.manual_seed(0)
    sizes = [0, 1, 3, 4, 15, 16, 17, 1000, 4096, 5003]
    shifts = [0, 4, 1, 16, 8, 0, 2, 0, 12, 5]  # of where they are read: not each place is even
    given = [torch.randint(0, 256, (6000,), dtype=torch.uint8) for _ in sizes]
    made = [torch.full((6000,), 7, dtype=torch.uint8) for _ in sizes]
    table = torch.zeros(64, 3, dtype=torch.int64)
    for row, (size, shift) in enumerate(zip(sizes, shifts, strict=True)):
        table[row] = torch.tensor([given[row].data_ptr() + shift, made[row].data_ptr(), size])
    kernel.run(ctypes.c_void_p(table.data_ptr()), columns, len(sizes))
    for row, (size, shift) in enumerate(zip(sizes, shifts, strict=True)):
        assert torch.equal(made[row][:size], given[row][shift : shift + size])
        assert made[row][size:].eq(7).all()
