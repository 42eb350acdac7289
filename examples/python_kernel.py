"""Run the device on kernels written in Python, and see what runs on them.

`python examples/python_kernel.py`, on the reference device. On a chip the bodies launch something;
`deeplink new-vendor acme` writes a package for one.
"""

from __future__ import annotations

import torch
from torch import Tensor

import torch_dipu  # noqa: F401
from diopi import implementation, resolve
from torch_dipu import routes


def on_host(x: Tensor) -> Tensor:
    """The memory of a tensor, as the host sees it."""
    seen: Tensor = torch.dipu.host_view(x)  # type: ignore[attr-defined]
    return seen


@resolve.limited(lambda input: input.dtype == torch.float32)
def exp(input: Tensor) -> Tensor:
    return on_host(input).exp().to("dipu")


def relu(input: Tensor) -> Tensor:
    return on_host(input).clamp(min=0).to("dipu")


def main() -> None:
    chip = implementation.of({"exp": exp, "relu": relu}, "mine")
    routes.bind(chip)
    x = torch.tensor([-1.0, 2.0], device="dipu")
    print("relu:", torch.relu(x).tolist())
    print("exp:", [round(value, 3) for value in x.exp().tolist()])
    x.double().exp()  # the kernel takes float32 alone
    print("calls:", dict(torch.dipu.operator_calls()["aten::exp"]))  # type: ignore[attr-defined]
    print("next kernels by worth:", [name for name, _ in resolve.wanted(chip.resolve())[:3]])
    routes.unbind()


if __name__ == "__main__":
    main()
