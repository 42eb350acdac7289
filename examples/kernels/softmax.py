"""A Triton kernel in a plain file, judged by one command on any machine.

    pip install --no-deps triton
    deeplink conformance --kernels examples/kernels/softmax.py --interpret --tier smoke

Without `--interpret` it runs on the GPU. Nothing of this project is imported here.
"""

# mypy: ignore-errors
import torch
import triton
import triton.language as tl


@triton.jit
def _softmax_rows(out, x, columns, row_step, column_step, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    places = tl.arange(0, BLOCK)
    inside = places < columns
    start = x + row * row_step
    values = tl.load(start + places * column_step, mask=inside, other=-float("inf")).to(tl.float32)
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * columns + places, powers / tl.sum(powers, axis=0), mask=inside)


def softmax(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """Softmax of a floating tensor along one dimension."""
    if not x.is_floating_point() or x.dtype == torch.float64:
        raise NotImplementedError("float32, float16 and bfloat16")
    if not x.numel():
        return torch.empty_like(x)
    rows = x.movedim(dim, -1) if x.dim() else x.reshape(1)
    if rows.dim() != 2:
        rows = rows.reshape(-1, rows.shape[-1])
    out = torch.empty(rows.shape, dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(rows.shape[1])
    _softmax_rows[(rows.shape[0],)](
        out, rows, rows.shape[1], rows.stride(0), rows.stride(1), BLOCK=block
    )
    if not x.dim():
        return out.reshape(())
    moved = x.movedim(dim, -1).shape
    return out.reshape(moved).movedim(-1, dim).contiguous()
