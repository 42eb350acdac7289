"""Compile a model for the fastest graph compiler of the CPU, and print what was compiled.

`python examples/compile_model.py`. For a chip: its backend in place of "dicp".
"""

from __future__ import annotations

import torch
from torch import nn

from dicp.dynamo_bridge import report


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).eval()
    x = torch.randn(64, 512)
    # `verify` compares each compiled graph with eager; leave it out in production
    compiled = torch.compile(model, backend="dicp", options={"verify": True})
    with torch.no_grad():
        wanted, found = model(x), compiled(x)
    print(f"largest difference to eager: {(wanted - found).abs().max().item():.1e}")
    for graph in report.RECORDS:
        print(f"{graph.backend}: {len(graph.eager)} operators stay eager")
    assert torch.allclose(wanted, found, atol=1e-5)


if __name__ == "__main__":
    main()
