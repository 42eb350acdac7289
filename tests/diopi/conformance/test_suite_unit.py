"""The parts of the suite: ids, profiles, layouts, sizes, guards, gaps, stores, statistics."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from deeplink.errors import DeeplinkError
from diopi.conformance import command, device_config
from diopi.conformance.cases import growth, layouts, profiles
from diopi.conformance.cases.case import Case, Finding, Group, Result, parse
from diopi.conformance.cases.sample import Callee, Sample
from diopi.conformance.checks import distributions, memory
from diopi.conformance.execution.guarded import guarded, guarded_result
from diopi.conformance.execution.origin import Watch
from diopi.conformance.execution.subject import Subject
from diopi.conformance.planning import plan, recipes
from diopi.conformance.results import gaps
from diopi.conformance.results.results import Writer, read, summarise
from diopi.conformance.workers import safetensors, store
from diopi.conformance.workers.attempt import NoSampleError, attempt, vary
from diopi.inference import Described
from diopi.op import all_ops, get

CPU = Subject("cpu", "cpu")
SOFTMAX = Group("softmax", "float32", "softmax+samples")


def test_an_id_is_the_whole_recipe() -> None:
    case = Case("softmax", "float32", "softmax+samples", 3, "wide", "strided")
    assert parse(case.id) == case
    assert case.id == "softmax/float32/softmax+samples.3/wide/strided"


def test_a_wrong_id_error_shows_the_form() -> None:
    with pytest.raises(DeeplinkError, match=r"should be op/dtype/source\.index"):
        parse("softmax")


def test_samples_are_the_same_every_time() -> None:
    first, second = recipes.samples(SOFTMAX, 4), recipes.samples(SOFTMAX, 4)
    assert [store.checksum(s) for s in first] == [store.checksum(s) for s in second]


@pytest.mark.parametrize("name", profiles.PROFILES)
def test_a_profile_changes_values_and_keeps_the_rest(name: str) -> None:
    tensor = torch.linspace(-3, 3, 60).reshape(6, 10).t()
    made = profiles.apply(name, tensor, torch.Generator().manual_seed(1))
    assert (made.shape, made.stride(), made.dtype) == (tensor.shape, tensor.stride(), tensor.dtype)
    assert not torch.equal(made, tensor)


@pytest.mark.parametrize("name", set(layouts.LAYOUTS) - {"expanded"})
def test_a_layout_keeps_the_values(name: str) -> None:
    tensor = torch.arange(120.0).reshape(2, 3, 4, 5)
    made = layouts.apply(name, tensor)
    assert torch.equal(made, tensor)
    assert (made.stride(), made.storage_offset()) != (tensor.stride(), 0)


def test_growth_keeps_sizes_together() -> None:
    pair = torch.randn(5, 10), torch.randn(10, 3)
    a, b = growth.apply("odd", pair, torch.Generator())
    assert (a.shape, b.shape) == ((19, 39), (39, 3))


def test_a_guard_sees_one_byte() -> None:
    room = guarded(torch.zeros(3, 5), "out_strided", "cpu")
    room.tensor.fill_(1)
    assert not room.outside()
    room.tensor.as_strided((1,), (1,), room.tensor.storage_offset() + 1).fill_(1)
    assert room.outside() == "4 bytes between the elements of its result"


def test_a_guarded_result_lies_as_it_was_described_and_reports_what_is_next_to_it() -> None:
    made = guarded_result(Described((2, 3), (1, 2), torch.float32), torch.device("cpu"))
    assert (made.tensor.shape, made.tensor.stride()) == ((2, 3), (1, 2))
    made.tensor.fill_(1)
    assert not made.outside()
    made.tensor.as_strided((1,), (1,), made.tensor.storage_offset() - 1).fill_(1)
    assert made.outside() == "4 bytes before its result"


@pytest.mark.parametrize(
    ("rank", "shapes"), [(0, [(), ()]), (1, [(5,), (5,)]), (4, [(2, 2, 3, 5), (5,)])]
)
def test_a_rank_is_given_to_the_tensors_that_have_the_highest(
    rank: int, shapes: list[tuple[int, ...]]
) -> None:
    pair = torch.randn(3, 5), torch.randn(5)
    made = growth.ranked(f"rank{rank}", pair, torch.Generator())
    assert [tuple(one.shape) for one in made] == shapes


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int64"])
@pytest.mark.parametrize("op", ["neg", "exp", "sub", "where"])
def test_quick_has_every_rank_and_a_transposed_result_in_every_dtype(op: str, dtype: str) -> None:
    tier = plan.tier_of("quick")
    group = next(g for g in plan.groups(tier, [get(op)], [dtype]) if "+samples" in g.source)
    samples = recipes.samples(group, tier.read)
    ranks, checks = set(), set()
    for case, made in plan.cases(group, samples, tier):
        try:
            found = vary(case, recipes.callee(group, case.index), samples[case.index])
        except NoSampleError:
            continue
        ranks.add(max(tensor.dim() for tensor in found.tensors))
        checks |= {(case.layout, check) for check in made}
    assert ranks >= set(range(6))
    assert {("transposed", "values"), ("transposed", "out_transposed")} <= checks
    assert {("transposed", "inplace"), ("plain", "out"), ("plain", "leak")} <= checks


def test_quick_runs_in_the_dtypes_that_the_chip_lists() -> None:
    tier = plan.of_chip(plan.tier_of("quick"), ("float32", "int32"))
    assert {g.dtype for g in plan.groups(tier, [get("neg")])} == {"float32", "int32"}
    assert plan.of_chip(plan.tier_of("smoke"), ("int32",)) == plan.tier_of("smoke")


def test_nhwc_adds_cases_to_those_of_the_tier() -> None:
    for op in ("relu", "convolution"):
        group = next(g for g in plan.groups(plan.TIERS["quick"], [get(op)], ["float32"]))
        samples = recipes.samples(group, 60)
        usual, more = (
            {case for case, _ in plan.cases(group, samples, plan.tier_of(name))}
            for name in ("quick", "quick:nhwc")
        )
        assert usual < more and {case.layout for case in more - usual} == {"channels_last"}


def test_a_misspelt_dtype_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(DeeplinkError, match=r"no dtype 'float65'; allowed: .*float64") as raised:
        command.check_dtypes(["float32", "float65"])
    assert "did you mean float64?" in str(raised.value)


def test_a_device_config_skips_single_calls_by_the_shape_of_a_tensor(tmp_path: Path) -> None:
    path = tmp_path / "device_config.py"
    path.write_text(
        "from diopi.conformance.device_config import Skip\n"
        "device_configs = {'diopiAdd': {'tensor_para': {'args': [\n"
        "    {'ins': ['input'], 'shape': [Skip((2, 3))]}, {'dtype': [Skip('int32')]}]}}}\n"
    )
    config = device_config.read(path)
    small, large = torch.zeros(2, 3), torch.zeros(4, 2, 3)
    add = get("add")
    said = [[call.reason(add, Sample(args)) for call in config.calls] for args in (
        (small, large), (large, small), (large, large.int()))]  # fmt: skip
    assert said[0] == ["device_config.py skips shape [2, 3] of input", ""]
    assert said[1] == ["", ""]
    assert said[2] == ["", "device_config.py skips dtype int32 of other"]
    path.write_text("device_configs = {'add': {'tensor_para': {'args': [{'shapes': []}]}}}")
    with pytest.raises(DeeplinkError, match="has shapes; known: ins, shape, dtype"):
        device_config.read(path)


def test_skipped_cases_are_not_among_the_passed_ones() -> None:
    rows = [Result("relu/float32/relu+samples.0/plain/plain", "passed", "A")]
    rows += [Result(f"relu/float32/relu+samples.{at}/plain/plain", "skipped") for at in (1, 2)]
    made = summarise(rows, [], "acme", "quick", [], Watch().origin("cpu", 1))
    assert (made.cases, made.cells[0].cases, made.grades) == (1, 1, {"A": 1})


def test_memory_that_is_kept_is_counted_and_a_cycle_is_not() -> None:
    kept = []

    def cycle() -> None:
        ring: list[object] = [torch.zeros(100)]
        ring.append(ring)

    found = memory.kept(lambda: kept.append(torch.zeros(100)), "cpu")
    if not found:
        pytest.skip("the C library does not report memory in use")
    assert 400 <= found["host"] < 2000
    assert memory.kept(cycle, "cpu") == {}
    assert memory.kept(lambda: torch.zeros(100), "cpu") == {}


def test_a_right_kernel_passes_every_check() -> None:
    base = recipes.samples(SOFTMAX, 2)[1]
    result = attempt(
        Case("softmax", "float32", SOFTMAX.source, 1), recipes.callee(SOFTMAX), base, CPU
    )
    assert (result.status, result.grade) == ("passed", "A")
    assert {"values", "backward", "inputs", "determinism"} <= set(result.checks)


def test_backward_ops_get_the_arguments_that_autograd_gives_them() -> None:
    group = Group("softmax_backward", "float32", "softmax+captured")
    samples = recipes.samples(group, 3)
    assert len(samples) == 3
    result = attempt(Case(*vars(group).values(), 0), recipes.callee(group), samples[0], CPU)
    assert result.status == "passed"


def test_what_a_call_should_give_does_not_depend_on_where_its_arguments_lie() -> None:
    # torch's CPU reads indices that are not contiguous as if they were; its float64 as well
    source = "nn.functional.adaptive_max_pool3d+captured"
    group = Group("adaptive_max_pool3d_backward", "float64", source)
    base, callee = recipes.samples(group, 9)[8], recipes.callee(group)
    plain = attempt(Case(*vars(group).values(), 8), callee, base, CPU, plan.CHEAP)
    laid = attempt(Case(*vars(group).values(), 8, layout="strided"), callee, base, CPU, plan.CHEAP)
    assert (plain.status, laid.status, laid.check) == ("passed", "failed", "values")


def test_a_gradient_that_the_cpu_refuses_too_is_not_checked() -> None:
    group = Group("nll_loss", "float32", "nn.functional.nll_loss+samples")
    case = Case(*vars(group).values(), 15, layout="transposed")
    base = recipes.samples(group, 16)[15]
    result = attempt(case, recipes.callee(group), base, CPU, plan.CHEAP)
    assert result.status == "passed" and "backward" not in result.checks


def test_a_crash_of_the_cpu_is_its_own_when_it_is_the_vendor() -> None:
    turns: list[str] = []

    def callee(*args: object, **kwargs: object) -> torch.Tensor:
        assert turns  # whatever happens from here on counts
        return torch.zeros(1)

    case = Case("softmax", "float32", SOFTMAX.source, 0)
    own = replace(recipes.callee(SOFTMAX), function=callee)
    base = recipes.samples(SOFTMAX, 1)[0]
    result = attempt(case, own, base, CPU, ("shape",), lambda: turns.append("vendor"))
    assert result.status == "passed"


def test_calls_that_make_no_sense_must_be_refused() -> None:
    group = Group("softmax", "float32", "gather+errors")
    found = [
        attempt(Case("gather", "float32", group.source, i), recipes.callee(group), s, CPU)
        for i, s in enumerate(recipes.samples(group, 3))
    ]
    assert {result.status for result in found} == {"passed"}


@pytest.mark.parametrize("op", distributions.DRAWN)
def test_random_ops_draw_what_they_should(op: str) -> None:
    torch.manual_seed(3)
    draw = distributions.DRAWN[op]
    drawn = draw.call(torch.device("cpu")).double()
    assert distributions.distance_of(drawn, draw.distribution, draw.discrete) < 0.02


def test_a_wrong_distribution_is_found() -> None:
    torch.manual_seed(3)
    found = distributions.check("randn", torch.rand(20000), lambda seed: torch.rand(20000))
    assert "from their distribution" in found[0].message


def test_tensors_survive_the_store(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(3, 4, dtype=torch.float64), "b": torch.tensor([True, False]),
               "c": torch.empty(0, 3), "d": torch.tensor(2.5, dtype=torch.bfloat16)}  # fmt: skip
    safetensors.write(tmp_path / "x.safetensors", tensors, {"format": "pt"})
    file = safetensors.File(tmp_path / "x.safetensors")
    assert all(torch.equal(file.get(name), tensor) for name, tensor in tensors.items())


def test_a_baseline_of_one_machine_serves_another(tmp_path: Path) -> None:
    case = Case("softmax", "float32", SOFTMAX.source, 1)
    callee, base = recipes.callee(SOFTMAX), recipes.samples(SOFTMAX, 2)[1]
    with store.Writer(tmp_path) as writer:
        writer.add(store.make(case, callee, base))
    bundle = store.Bundle(tmp_path)
    assert attempt(case, callee, base, CPU, bundle=bundle).grade == "A"
    base.args[0].data += 1  # another machine's random numbers
    result = attempt(case, callee, base, CPU, bundle=bundle)
    assert result.grade == "A"  # by what is computed here
    assert result.reason.startswith("no baseline of these arguments")


PORTABLE = """
    baddbmm/float32/baddbmm+samples.0/wide/plain
    select/bfloat16/select+samples.0/specials/plain
    nll_loss_backward/float32/nn.functional.nll_loss+captured.10/plain/plain
    mm/float32/model:bert.0/plain/plain
    sum/float64/own.0/normal/plain
""".split()
CHECKSUMS = """
import sys
from diopi.conformance.cases import case
from diopi.conformance.planning import recipes
from diopi.conformance.workers import store
for text in sys.argv[1:]:
    one = case.parse(text)
    base = recipes.samples(one.group, one.index + 1)[one.index]
    print(store.checksum(recipes.varied(base, one)))
"""


def test_arguments_are_the_same_bits_on_another_processor() -> None:
    plain = {"ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"}
    line = [sys.executable, "-c", CHECKSUMS, *PORTABLE]
    sums = [
        subprocess.run(line, env=dict(os.environ) | extra, capture_output=True, check=True).stdout
        for extra in ({}, plain)
    ]
    assert sums[0] == sums[1]
    assert len(set(sums[0].split())) == len(PORTABLE)


def test_a_bundle_keeps_equal_values_once_and_the_edges_of_large_ones(tmp_path: Path) -> None:
    group = Group("exp", "float32", "exp+samples")
    callee, base = recipes.callee(group), recipes.samples(group, 1)[0]
    large = replace(base, args=(torch.linspace(-1, 1, 5000),))
    plain, strided = (Case(*_fields(group), 0, "plain", layout) for layout in ("plain", "strided"))
    with store.Writer(tmp_path) as writer:
        for case, sample in ((plain, base), (strided, base), (Case(*_fields(group), 1), large)):
            writer.add(store.make(case, callee, sample))
    bundle = store.Bundle(tmp_path)
    first, second, third = bundle.entries.values()
    assert first.results == second.results
    kept = bundle.values(third, "results")[0]
    assert kept is not None and kept.numel() < 512
    assert kept[[0, -1]].tolist() == large.args[0].double().exp()[[0, -1]].tolist()


def test_a_bundle_goes_on_after_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "SHARD", 0)  # a shard for each
    callee, bases = recipes.callee(SOFTMAX), recipes.samples(SOFTMAX, 3)
    cases = [Case(*_fields(SOFTMAX), index) for index in range(3)]
    killed = store.Writer(tmp_path)  # never closed
    for case, base in zip(cases[:2], bases, strict=False):
        killed.add(store.make(case, callee, base))
    with store.Writer(tmp_path, resume=True) as writer:
        assert writer.done == [case.id for case in cases[:2]]
        writer.add(store.make(cases[2], callee, bases[2]))
    bundle = store.Bundle(tmp_path)
    assert list(bundle.entries) == [case.id for case in cases]
    for case, base in zip(cases, bases, strict=True):
        assert attempt(case, callee, base, CPU, bundle=bundle).reason == ""
    store.Writer(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_written_argument_is_not_right_because_the_cpu_is_as_wrong() -> None:
    """Write nothing to some elements, as torch's fused optimizers do."""

    def doubled(x: torch.Tensor) -> None:
        x[: 8 if x.dtype == torch.float64 else 4].mul_(2)

    sample = Sample((torch.linspace(1, 2, 8),))
    callee = Callee("doubled", doubled, direct=True)
    result = attempt(Case("sgd", "float32", "own", 0), callee, sample, CPU, ["inputs"])
    assert (result.status, result.check) == ("failed", "inputs")


def test_writes_to_elements_that_share_memory_are_not_judged() -> None:
    case = parse(
        "batch_norm_legit_no_stats/float32/nn.functional.batch_norm+samples.0/plain/expanded"
    )
    callee, base = recipes.callee(case.group), recipes.samples(case.group, 1)[0]
    assert attempt(case, callee, base, CPU, ["inputs"]).grade == "A"


def test_a_bundle_serves_results_of_several_types(tmp_path: Path) -> None:
    """Only the values of max are stored, because any CPU computes the indices."""
    group = Group("max", "float32", "max.reduction_with_dim+samples")
    callee, samples = recipes.callee(group), recipes.samples(group, 1)
    case = Case(*_fields(group), 0)
    with store.Writer(tmp_path) as writer:
        writer.add(store.make(case, callee, samples[0]))
    bundle = store.Bundle(tmp_path)
    assert [bool(name) for name in bundle.entries[case.id].results] == [True, False]
    assert attempt(case, callee, samples[0], CPU, bundle=bundle).grade == "A"


def _fields(group: Group) -> tuple[str, str, str]:
    return group.op, group.dtype, group.source


def _result(op: str, status: str = "failed", check: str = "values") -> Result:
    findings = (Finding(check, "wrong"),) if status == "failed" else ()
    return Result(f"{op}/float32/x.0/plain/plain", status, "F" if findings else "A", findings)


def test_a_gap_explains_its_check_only() -> None:
    gap = gaps.Gap("add", "*", "values", "todo", "why")
    assert gaps.find([gap], _result("add"))
    assert not gaps.find([gap], _result("add", check="dtype"))
    assert not gaps.find([gap], _result("mul"))
    several = gaps.Gap("add", "*", "out values", "todo", "why")
    assert gaps.find([several], _result("add"))
    assert not gaps.find([several], _result("add", check="dtype"))


def test_a_gap_that_passes_or_matches_nothing_is_an_error() -> None:
    entries = [gaps.Gap(op, "float32", "*", "todo", "why") for op in ("add", "mul", "typo")]
    found = gaps.complaints(entries, [_result("add", "passed")], {"add", "mul"}, whole=True)
    assert found == [
        "gaps.toml: no op 'typo'",
        "gaps.toml: add float32 *: an entry whose cases pass",
        "gaps.toml: mul float32 *: an entry that matches no case",
    ]


def test_a_gap_needs_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "gaps.toml"
    path.write_text('[[conformance]]\nop="add"\ndtype="*"\ncheck="*"\nkind="todo"\nreason=""\n')
    with pytest.raises(DeeplinkError, match="a reason"):
        gaps.read(path)


def test_an_interrupted_run_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with Writer(path, append=False) as writer:
        writer.add(_result("add"))
    path.write_text(path.read_text() + '{"case": "cut o')
    assert read(path) == [_result("add")]


def test_a_summary_counts_by_op_and_dtype() -> None:
    found = [_result("add"), _result("mul", "passed")]
    summary = summarise(found, [], "acme", "quick", [], Watch().origin("cpu", 1))
    assert (summary.cases, summary.ops, summary.unexplained, summary.passed) == (2, 2, 1, False)
    assert [(cell.op, cell.grade) for cell in summary.cells] == [("add", "F"), ("mul", "A")]


def test_a_resumed_run_counts_the_time_of_its_parts() -> None:
    part = replace(Watch().origin("cpu", 1), seconds=100.0, cpu_seconds=50.0)
    whole = Watch(part).origin("cpu", 1)
    assert whole.seconds >= 100.0 and whole.cpu_seconds >= 50.0


def test_a_device_config_leaves_out_what_it_names(tmp_path: Path) -> None:
    (tmp_path / "device_config.py").write_text(
        "from diopi.conformance.device_config import Skip\n"
        "device_configs = {'softmax': {'dtype': [Skip('float64')]}, 'sort': {'skip_all': True}}\n"
    )
    config = device_config.read(tmp_path)
    assert config.wants("softmax", "float32") and not config.wants("softmax", "float64")
    assert not config.wants("sort", "int64")


def test_a_device_config_with_a_misspelt_op_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "device_config.py"
    path.write_text("device_configs = {'sofmax': {'skip_all': True}}")
    with pytest.raises(DeeplinkError, match="no op 'sofmax'"):
        device_config.read(path)


def test_the_quick_tier_has_every_kind_of_case() -> None:
    group = Group("softmax", "float32", "softmax+samples")
    samples = recipes.samples(group, 60)
    cases = [case for case, _ in plan.cases(group, samples, plan.TIERS["quick"])]
    assert len({case.id for case in cases}) == len(cases) >= 10
    assert {case.profile for case in cases} & set(profiles.PROFILES)
    assert {case.layout for case in cases} & set(layouts.LAYOUTS)
    assert {"odd", "large", "empty"} <= {case.profile for case in cases}


def test_the_suite_covers_the_interface() -> None:
    tier = plan.TIERS["quick"]
    ops = {group.op for group in plan.groups(tier, list(all_ops().values()))}
    assert len(ops) >= 285
