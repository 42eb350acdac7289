"""Every operator of the simulated backends: emitted, checked, simulated and judged."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

from dicp import Backend
from dicp.conformance import calls
from tests.dicp import levels
from tests.dicp.levels import BACKENDS, DTYPES, FILE, REAL, SIMULATED

ROOT = Path(__file__).parents[3]
SLOW = pytest.mark.slow
aten, fused = torch.ops.aten, torch.ops.dicp
# one of each family; the long tier has all
FEW = (
    fused.linear.default, fused.rms_norm.default, fused.layer_norm.default, fused.rope.default,
    fused.swiglu.default, fused.sdpa.default, fused.batch_norm.default, fused.conv.default,
    aten.constant_pad_nd.default, aten.index.Tensor, aten.avg_pool2d.default, aten.rsub.Tensor,
    aten._native_batch_norm_legit_functional.default, aten._adaptive_avg_pool2d_backward.default,
    aten.convolution_backward.default,
)  # fmt: skip


@pytest.fixture(params=SIMULATED.values(), ids=SIMULATED.keys())
def backend(request: pytest.FixtureRequest) -> Backend:
    found: Backend = request.param
    return found


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    """The script that writes the page."""
    spec = importlib.util.spec_from_file_location("dicp_ops", ROOT / "scripts/dicp_ops.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", BACKENDS)
def test_fused_ops_and_one_of_each_family_are_right(name: str) -> None:
    backend = BACKENDS[name]
    few = [overload for overload in FEW if overload in backend.conversions]
    ours = {overload: calls.ours(overload, "bfloat16")[:2] for overload in few}
    found = levels.outcomes(backend, few, "bfloat16", calls=ours)
    bad = {str(o): part for o, part in found.items() if {r.status for r in part} != {"right"}}
    assert bad == {}


def test_results_have_memory_of_their_own(backend: Backend) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return x.clone(), y, y.clone(), torch.zeros_like(x)

    x = torch.randn(2, 3)
    with torch.no_grad():
        results = torch.compile(program, backend=backend)(x)
        for number, result in enumerate(results):
            result.fill_(number)
    assert [result.unique().item() for result in results] == [0, 1, 2, 3]
    assert not (x == 0).any()


@pytest.mark.parametrize("name", [*SIMULATED, *(pytest.param(n, marks=SLOW) for n in REAL)])
def test_the_table_has_every_operator_that_is_mapped(name: str) -> None:
    mapped = [str(target) for target in levels.targets(BACKENDS[name])]
    found = [row.overload for row in levels.kept() if row.backend == name]
    assert found == mapped, "run scripts/dicp_ops.py measure, with the names of the new ones"


def test_what_is_emitted_is_right_in_every_type_by_the_table() -> None:
    rows = [row for row in levels.kept() if row.backend in SIMULATED]
    assert [row for row in rows if row.right != row.emitted] == []
    short = [row.overload for row in rows if row.emitted != " ".join(DTYPES)]
    assert set(short) <= {"aten.max_pool2d_with_indices.default"}  # its calls use the indices


def test_the_page_is_current(generator: ModuleType) -> None:
    page = generator.page(levels.kept())
    assert (ROOT / "docs/reference/dicp_ops.md").read_text("utf-8") == page, (
        "run scripts/dicp_ops.py"
    )


@pytest.mark.slow
def test_the_table_is_what_is_measured(backend: Backend) -> None:
    rows = [row for row in levels.kept() if row.backend == backend.name]
    assert levels.measured(backend) == rows, f"{FILE.name}: run scripts/dicp_ops.py measure"
