# SPDX-License-Identifier: Apache-2.0
"""The plan: the list of cases, by tier.
A group's list is computed where its samples are created.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from deeplink.judge.verdict import name_of
from diopi.conformance import own
from diopi.conformance.cases.bound import split
from diopi.conformance.cases.case import PLAIN, Case, Group
from diopi.conformance.cases.growth import RANKS
from diopi.conformance.cases.sample import Sample
from diopi.conformance.checks import distributions
from diopi.conformance.checks.checks import CHECKS
from diopi.conformance.models import stored
from diopi.conformance.planning import recipes
from diopi.op import Op, all_ops

# Which values are useful depends on how an op uses them.
PROFILES = {
    "exact": ("ties", "specials"),
    "index": ("ties", "normal"),
    "elementwise": ("specials", "wide", "normal", "positive"),
    "transcendental": ("specials", "normal", "wide", "small"),
    "reduction": ("positive", "offset", "wide", "normal"),
    "contraction": ("normal", "positive", "wide", "offset"),
    "composite": ("normal", "offset", "positive", "small"),
    "random": (),
    "linalg": ("positive",),
}
ALWAYS = "transposed"  # a layout that every tier with layouts uses in every dtype
LAYOUTS = (ALWAYS, "strided", "offset", "expanded", "channels_last")
# Ops without a defined result for repeated indices; larger tensors would repeat indices.
ONCE = frozenset(
    "index_copy index_put scatter scatter_value masked_scatter put index_fill unique".split()
)
POSITIVE = frozenset({"cholesky"})  # with random values the matrix is not positive definite
GROWTHS = ("odd", "large", "empty")
THOROUGH = tuple(check for check in CHECKS if check != "leak")  # the leak check needs many calls
HUGE = 1 << 15  # elements of all arguments; a larger sample runs once, in float32, unchanged
CHEAP = (
    *("structure", "torch", "dtype", "shape", "strides", "values", "inputs", "backward"),
    *("signed_zero", "alias"),
)
SIZED = (*CHEAP, "uninitialised", "outside", "batch")  # of other sizes, where tails are


@dataclass(frozen=True)
class Tier:
    """The extent of a run."""

    name: str
    read: int  # maximum number of created samples
    base: int  # samples that run unchanged
    thorough: int  # number of these with all checks
    profiled: int  # samples that run with each profile
    profiles: int
    laid: int
    layouts: int
    grown: int
    ranks: bool = False  # whether to add the ranks from 0 to 5 that the samples lack
    dtypes: tuple[torch.dtype, ...] = ()  # empty: all
    wider: bool = False  # whether to use op_db's longer lists as well
    models: bool = False  # whether to use the calls of the models as well
    added: str = ""  # layout of additional cases


_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
MODELS = "model"
TIERS = {
    "smoke": Tier("smoke", 8, 1, 1, 0, 0, 1, 2, 0, dtypes=(torch.float32,)),
    "quick": Tier("quick", 60, 6, 2, 1, 3, 1, 3, 1, True, (*_FLOATS, torch.int64, torch.bool)),
    "full": Tier("full", 400, 10, 4, 1, 4, 1, 5, 1, True, wider=True, models=True),
    MODELS: Tier(MODELS, 400, 400, 0, 0, 0, 0, 0, 0, models=True),
}


def tier_of(name: str) -> Tier:
    """Return a tier by its name; `quick:nhwc` adds cases with images as NHWC, `model:bert` has
    those
    of one model.
    """
    base, _, rest = name.partition(":")
    if base == "model":
        return replace(TIERS["full"], name=name, base=TIERS["full"].read)
    return replace(TIERS[base], name=name, added="channels_last") if rest else TIERS[base]


def of_chip(tier: Tier, dtypes: Collection[str]) -> Tier:
    """Return the tier in every dtype that a chip's rules list; smoke is unchanged."""
    if not dtypes or not tier.dtypes or not tier.ranks:
        return tier
    return replace(tier, dtypes=tuple(getattr(torch, name) for name in dtypes))


def groups(tier: Tier, ops: Sequence[Op], dtypes: Collection[str] = ()) -> Iterator[Group]:
    """Yield every group of some ops."""
    if tier.models:
        yield from _model_groups(tier, {op.name for op in ops}, dtypes)
    if tier.name.startswith(MODELS):
        return
    for op in ops:
        for source in _sources(op, tier):
            for dtype in _dtypes(op, source, tier):
                if not dtypes or dtype in dtypes:
                    yield Group(op.name, dtype, source)


def _model_groups(tier: Tier, ops: Collection[str], dtypes: Collection[str]) -> Iterator[Group]:
    """Yield the groups of one model, or of all."""
    one = tier.name.removeprefix(stored.PREFIX)
    for name in [one] if tier.name.startswith(stored.PREFIX) else stored.names():
        for op, dtype in stored.calls(name):
            if op in ops and (not dtypes or dtype in dtypes):
                yield Group(op, dtype, f"{stored.PREFIX}{name}")


def _sources(op: Op, tier: Tier) -> Iterator[str]:
    if op.name in own.MAKERS:
        yield own.OWN
    if op.name in distributions.DRAWN:
        yield distributions.SOURCE
    for entry in recipes.entries_of(op):
        if op.name.endswith("backward") or op.name.endswith("backward_overrideable"):
            if op.aten:
                yield f"{entry}+{recipes.CAPTURED}"
            continue
        yield f"{entry}+{recipes.SAMPLES}"
        if split(op):
            yield f"{entry}+{recipes.BOUND}"
        if recipes.op_db()[entry].error_inputs_func is not None:
            yield f"{entry}+{recipes.ERRORS}"
        if tier.wider:
            yield f"{entry}+{recipes.WIDER}"


def _dtypes(op: Op, source: str, tier: Tier) -> Iterator[str]:
    wanted = [d for d in op.dtypes if not tier.dtypes or d in tier.dtypes]
    wanted = wanted or list(op.dtypes[:1])  # ops of other types are included
    if source.endswith(f"+{recipes.ERRORS}") or source == distributions.SOURCE:
        yield "float32"
        return
    if source != own.OWN:
        entry, _ = recipes.entry_of(source)
        wanted = [d for d in wanted if d in entry.supported_dtypes("cpu")]
        if source.endswith(f"+{recipes.CAPTURED}"):
            wanted = [d for d in wanted if d in entry.supported_backward_dtypes("cpu")]
    for dtype in wanted:
        yield name_of(dtype)


def cases(
    group: Group, samples: Sequence[Sample], tier: Tier
) -> Iterator[tuple[Case, tuple[str, ...]]]:
    """Yield the cases of a group with their checks, for its samples."""
    every = range(len(samples))
    if group.source.startswith(stored.PREFIX):
        yield from ((_case(group, i), CHEAP) for i in every)
    elif group.source.endswith(f"+{recipes.ERRORS}") or group.source == distributions.SOURCE:
        yield from ((_case(group, i), tuple(CHECKS)) for i in every)
    elif tier.added:
        others = list(cases(group, samples, replace(tier, added="")))
        yield from others
        known = {case for case, _ in others}
        further = [_case(group, i, PLAIN, tier.added) for i in _spread(len(samples), tier.base)]
        yield from ((case, CHEAP) for case in further if case not in known)
    else:
        rich = sorted(every, key=lambda i: (-_size(samples[i]), i))
        huge = [i for i in rich if _size(samples[i]) > HUGE]
        usual = [i for i in every if i not in huge]
        base = [usual[at] for at in _spread(len(usual), tier.base)]
        for place, index in enumerate(base):
            yield _case(group, index), tuple(CHECKS) if place < tier.thorough else CHEAP
        yield from _varied(group, rich[len(huge) :], samples, tier)
        if tier.ranks and len(rich) > len(huge):
            covered = {_rank(samples[index]) for index in base}
            yield from _ranked(group, rich[len(huge)], samples[rich[len(huge)]], covered)
        if group.dtype == "float32":
            yield from ((_case(group, i), CHEAP) for i in huge[: tier.grown])


def _case(group: Group, index: int, profile: str = PLAIN, layout: str = PLAIN) -> Case:
    return Case(group.op, group.dtype, group.source, index, profile, layout)


def _varied(
    group: Group, rich: Sequence[int], samples: Sequence[Sample], tier: Tier
) -> Iterator[tuple[Case, tuple[str, ...]]]:
    """Yield the richest samples with other values, layouts and sizes."""
    kind = all_ops()[group.op].kind
    turn = group.seed  # so that a short tier has each of them for some op
    # arguments that a forward op produced for its backward belong together: their values are kept
    own_fixed = group.source == own.OWN and group.op in own.FIXED
    captured = own_fixed or group.source.endswith(f"+{recipes.CAPTURED}")
    changeable = getattr(torch, group.dtype).is_floating_point and not captured
    for index in rich[: tier.profiled]:
        for profile in _some(PROFILES[kind] if changeable else (), tier.profiles, turn):
            yield _case(group, index, profile), CHEAP
    # repeated values are not those that a forward op produced, and cannot be written to
    no_repeats = captured or group.op in ONCE or bool(all_ops()[group.op].written)
    layouts = [layout for layout in LAYOUTS if not (no_repeats and layout == "expanded")]
    some = _some(layouts, tier.layouts, turn)
    if tier.ranks and tier.layouts:  # in every dtype, whichever the turn
        some = [ALWAYS, *_some(layouts[1:], tier.layouts - 1, turn)]
    checks = THOROUGH if tier.name == "full" else (*CHEAP, "inplace", "layout")
    for index in rich[: tier.laid]:
        for layout in some:
            # a transposed vector has an unchanged layout
            flat = tier.ranks and layout == ALWAYS and _rank(samples[index]) < 2 and not captured
            more = (*checks, "out_transposed") if layout == ALWAYS else checks
            yield (
                _case(group, index, RANKS[3] if flat else PLAIN, layout),
                tuple(dict.fromkeys(more)),
            )
    if kind != "random" and not captured and group.op not in ONCE | POSITIVE:
        for index in rich[: tier.grown]:
            for growth in GROWTHS:
                yield _case(group, index, growth), SIZED


def _ranked(
    group: Group, index: int, sample: Sample, covered: Collection[int]
) -> Iterator[tuple[Case, tuple[str, ...]]]:
    """Yield one sample in every rank from 0 to 5 that no other case of the group has."""
    direct = group.source == own.OWN or group.source.endswith(f"+{recipes.BOUND}")
    if direct and len({tensor.dim() for tensor in sample.tensors}) > 1:
        return  # an op itself need not check that a weight fits: the CPU may read outside of it
    if group.op in ONCE | POSITIVE or group.source.endswith(f"+{recipes.CAPTURED}"):
        return
    if group.source == own.OWN and group.op in own.FIXED:
        return
    for rank, name in enumerate(RANKS):
        if rank not in covered:
            yield _case(group, index, name), (*CHEAP, "out")


def _rank(sample: Sample) -> int:
    return max((tensor.dim() for tensor in sample.tensors), default=0)


def _spread(count: int, wanted: int) -> list[int]:
    """Choose `wanted` numbers below `count`, evenly spaced, the first among them."""
    step = max(1.0, count / wanted)
    return [int(at * step) for at in range(min(count, wanted))]


def _some(words: Sequence[str], wanted: int, turn: int) -> list[str]:
    return [words[(turn + at) % len(words)] for at in range(min(wanted, len(words)))]


def _size(sample: Sample) -> int:
    return sum(tensor.numel() for tensor in sample.tensors)
