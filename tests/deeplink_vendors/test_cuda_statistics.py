"""The kernel that reduces tensors on a GPU, run by the host's threads: its values are the host's.

docs/howto/capture.md describes the statistics.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import subprocess
from pathlib import Path

import pytest
import torch

from deeplink import native
from op_tools.tensors import device_reduction, snapshot, statistics
from op_tools.tensors.statistics_reference import (
    BLOCK,
    FIELDS,
    MASK,
    Statistics,
    hash_of_sums,
    merged,
    statistics_of,
)
from tests.op_tools.capture.test_statistics import DTYPES, SHAPES, values

SOURCE = Path(device_reduction.__file__).parents[2] / "deeplink_vendors" / "cuda" / "statistics.cu"
PIECE = 8 * BLOCK  # bytes
SHIM = """
#include <algorithm>
#include <atomic>
#include <barrier>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>
using std::max, std::min;
#define __device__
#define __global__
#define __shared__ static
#define __launch_bounds__(...)
struct Place { unsigned int x; };
static thread_local Place threadIdx, blockIdx;
static constexpr Place blockDim{64};
static std::barrier<> all(64), warps[] = {std::barrier<>(32), std::barrier<>(32)};
static void __syncthreads() { all.arrive_and_wait(); }
struct alignas(16) ulonglong2 { unsigned long long x, y; };
template <typename T> static T __shfl_down_sync(unsigned int, T value, unsigned int by) {
  static T lanes[64];
  auto& warp = warps[threadIdx.x / 32];
  lanes[threadIdx.x] = value;
  warp.arrive_and_wait();
  const unsigned int from = threadIdx.x % 32 + by;
  const T found = from < 32 ? lanes[threadIdx.x + by] : value;
  warp.arrive_and_wait();
  return found;
}
static unsigned int __vmaxu2(unsigned int a, unsigned int b) {
  return std::max(a & 0xffffu, b & 0xffffu) | std::max(a & 0xffff0000u, b & 0xffff0000u);
}
static void __threadfence_system() { std::atomic_thread_fence(std::memory_order_seq_cst); }
template <typename To, typename From> static To as(From from) {
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}
static float __int_as_float(int bits) { return as<float>(bits); }
static int __float_as_int(float value) { return as<int>(value); }
static double __longlong_as_double(long long bits) { return as<double>(bits); }
static long long __double_as_longlong(double value) { return as<long long>(value); }
"""
GRID = """
static void grid(const Row* table, Result* results, int rows, const Given& given) {
  std::vector<std::thread> threads;
  for (unsigned int i = 0; i < 64; i++) threads.emplace_back([=] {
    threadIdx.x = i;
    for (int row = 0; row < rows; row++) {
      blockIdx.x = row, KERNEL(table, results, given), __syncthreads();
    }
  });
  for (auto& thread : threads) thread.join();
}
extern "C" void run(const Row* table, Result* results, int rows) { grid(table, results, rows, {}); }
extern "C" void run_given(const Given* given, Result* results, int rows) {
  grid(nullptr, results, rows, *given);
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if not native.has_compiler():
        pytest.skip("no compiler here")
    return compiled(tmp_path_factory.mktemp("kernel"), SOURCE, "reduce_pieces")


def compiled(folder: Path, source: Path, kernel: str) -> ctypes.CDLL:
    """A kernel as a function `run(table, results, rows)` of the host's."""
    grid = GRID.replace("KERNEL", kernel)
    (folder / "a.cpp").write_text(SHIM + source.read_text() + grid)
    command = ["c++", "-std=c++20", "-O0", "-w", "-fPIC", "-shared", "-pthread", "a.cpp", "-o"]
    subprocess.run([*command, "a.so"], cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "a.so"))


def found_in(
    results: torch.Tensor, lengths: list[int], flats: list[torch.Tensor], hash_only: bool
) -> list[Statistics]:
    """Sum up the rows of each tensor."""
    parts = zip(results.split(lengths), flats, strict=True)
    return [_amount_to(rows, flat, hash_only) for rows, flat in parts]


def _amount_to(rows: torch.Tensor, flat: torch.Tensor, hash_only: bool) -> Statistics:
    sums = [value & MASK for value in rows[:, :2].flatten().tolist()]
    hashed = hash_of_sums(flat.numel() * flat.element_size(), sums)
    if hash_only:
        return Statistics(hashed)
    doubles = {2, 3, 4, 5} if flat.is_floating_point() else {4, 5}
    values = rows.view(torch.float64).tolist()
    fields = [math.inf, -math.inf, 0.0, 0.0, 0, 0]
    for row, value in zip(rows.tolist(), values, strict=True):
        fields = merged(fields, [(value if at in doubles else row)[at] for at in range(2, FIELDS)])
    return statistics_of(fields, flat.numel(), hashed)


def flat_of(tensor: torch.Tensor) -> torch.Tensor:
    """The values one after the other in the order of memory."""
    flat = snapshot.ordered(tensor)[0].contiguous()
    flat = torch.view_as_real(flat) if flat.is_complex() else flat
    return flat.as_strided((flat.numel(),), (1,))


def pieces(flat: torch.Tensor, hash_only: bool) -> list[tuple[int, int, int]]:
    """The rows of the table for one tensor."""
    kind, whole = statistics.NATIVE[flat.dtype] + 16 * hash_only, flat.nbytes // 8 * 8
    spans = [(start, min(PIECE, whole - start)) for start in range(0, whole, PIECE)]
    spans += [(whole, flat.nbytes % 8)] if flat.nbytes % 8 else []
    return [(flat.data_ptr() + start, size, kind) for start, size in spans]


def test_the_kernel_finds_what_the_host_finds(library: ctypes.CDLL) -> None:
    given = [values(shape, dtype) for dtype in DTYPES for shape in SHAPES]
    given += [values((40,), dtype)[3:] for dtype in DTYPES]  # not on the boundary of a word
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        given.append(torch.tensor([math.nan, 2.0, -math.inf, -5.0, 1e-7], dtype=dtype))
        given.append(torch.full((3,), math.nan, dtype=dtype))
    for hash_only in (False, True):
        flats = [flat_of(tensor) for tensor in given]
        tables = [pieces(flat, hash_only) for flat in flats]
        table = torch.tensor([row for rows in tables for row in rows], dtype=torch.int64)
        results = torch.zeros(len(table), FIELDS, dtype=torch.int64)
        addresses = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (table, results))
        library.run(*addresses, len(table))
        all_found = found_in(results, [len(rows) for rows in tables], flats, hash_only)
        for tensor, found in zip(given, all_found, strict=True):
            plain = statistics.of(tensor, hash_only)
            assert found[:3] == plain[:3], (tensor.dtype, tensor.shape)
            assert found.nonfinite == plain.nonfinite
            if plain.norm is not None and found.mean is not None:
                assert found.norm == pytest.approx(plain.norm, rel=1e-6)
                near = 1e-9 * plain.norm
                assert found.mean == pytest.approx(plain.mean, rel=1e-6, abs=near)
    nans = torch.tensor([math.nan, 1.0, math.inf])
    table = torch.tensor(pieces(nans, False), dtype=torch.int64)
    results = torch.zeros(len(table), FIELDS, dtype=torch.int64)
    library.run(*(ctypes.c_void_p(each.data_ptr()) for each in (table, results)), len(table))
    assert (int(results[:, 6].sum()), int(results[:, 7].sum())) == (1, 1)


def test_the_kernel_reads_chunks_and_what_is_odd_in_them(library: ctypes.CDLL) -> None:
    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        plain = torch.randn(5003, generator=generator).to(dtype)
        odd = plain.clone()
        odd[1000], odd[2001], odd[3002] = math.nan, math.inf, -math.inf
        scales = (1e-30, 1e30) if dtype is torch.bfloat16 else (1e-6, 1e4)
        given = [plain, odd, *(plain * scale for scale in scales), torch.zeros_like(plain)]
        tables = [pieces(flat, False) for flat in given]
        table = torch.tensor([row for rows in tables for row in rows], dtype=torch.int64)
        results = torch.zeros(len(table), FIELDS, dtype=torch.int64)
        library.run(*(ctypes.c_void_p(t.data_ptr()) for t in (table, results)), len(table))
        for tensor, found in zip(
            given, found_in(results, list(map(len, tables)), given, False), strict=True
        ):
            host = statistics.of(tensor)
            assert (found.hash, found.min, found.max) == (host.hash, host.min, host.max), dtype
            assert found.nonfinite == host.nonfinite
            assert found.norm == pytest.approx(host.norm, rel=1e-6)
            total = tensor[tensor.isfinite()].double().abs().mean().item()
            assert found.mean == pytest.approx(host.mean, abs=1e-6 * total)


def test_the_kernel_divides_the_tensors_that_it_is_given(library: ctypes.CDLL) -> None:
    given = [values((n,), torch.float32)[1:] for n in (2, 40, 70_000)]
    given += [values((5,), torch.bfloat16), values((0,), torch.int64), values((9,), torch.uint8)]
    lengths = [len(pieces(flat, False)) for flat in given]
    numbers = torch.zeros(66, dtype=torch.int64)
    numbers[0] = len(given)
    for at, flat in enumerate(given):
        kind = statistics.NATIVE[flat.dtype]
        numbers[1 + 3 * at : 4 + 3 * at] = torch.tensor([flat.data_ptr(), flat.nbytes, kind])
        numbers[50 + at] = numbers[49 + at] + lengths[at]
    results = torch.zeros(sum(lengths), FIELDS, dtype=torch.int64)
    library.run_given(*(ctypes.c_void_p(t.data_ptr()) for t in (numbers, results)), sum(lengths))
    for flat, found in zip(given, found_in(results, lengths, given, False), strict=True):
        assert found[:3] == statistics.of(flat)[:3], flat.shape


def test_the_kernel_leaves_out_the_hash(library: ctypes.CDLL) -> None:
    tensor = values((3000,), torch.bfloat16)
    rows = [(address, size, kind + 64) for address, size, kind in pieces(tensor, False)]
    table, results = torch.tensor(rows), torch.zeros(len(rows), FIELDS, dtype=torch.int64)
    library.run(*(ctypes.c_void_p(each.data_ptr()) for each in (table, results)), len(table))
    (found,) = found_in(results, [len(rows)], [tensor], False)
    host = statistics.of(tensor)
    assert (found.min, found.max, found.nonfinite) == (host.min, host.max, host.nonfinite)
    assert results[:, :2].eq(0).all()


def test_the_kernel_reads_values_with_gaps_in_the_order_of_memory(library: ctypes.CDLL) -> None:
    runs = (
        lambda dtype: values((40, 30, 64), dtype)[1:, ::3, 16:48],
        [(32, 1), (10, 192), (39, 1920)],
    )
    strided = (
        lambda dtype: values((6, 5, 9000), dtype).permute(2, 0, 1)[::2, 1:5, 1:4],
        [(4500, 2), (3, 9000), (4, 45000)],  # size and stride, the innermost first
    )
    dtypes = (torch.float32, torch.float64, torch.bfloat16, torch.int8)
    for dtype, (make, dims) in itertools.product(dtypes, (runs, strided)):
        tensor = make(dtype)
        words = torch.zeros(18, dtype=torch.int64)
        words[:2] = torch.tensor([tensor.data_ptr(), len(dims)])
        words[2:8] = torch.tensor(dims).flatten()
        size, width = tensor.numel() * tensor.itemsize, tensor.itemsize
        kind, rows = statistics.NATIVE[dtype] + 32, []
        for start in range(0, size // 8 * 8, PIECE):
            bytes = min(PIECE, size // 8 * 8 - start)
            rows.append((words.data_ptr(), bytes, kind + (start // width << 8)))
        if size % 8:
            rows.append((words.data_ptr(), size % 8, kind + (size // 8 * 8 // width << 8)))
        table = torch.tensor(rows, dtype=torch.int64)
        results = torch.zeros(len(table), FIELDS, dtype=torch.int64)
        library.run(*(ctypes.c_void_p(each.data_ptr()) for each in (table, results)), len(table))
        (found,) = found_in(results, [len(rows)], [flat_of(tensor)], False)
        plain = statistics.of(tensor)
        assert found[:3] == plain[:3], dtype
        assert found.norm == pytest.approx(plain.norm, rel=1e-6)
