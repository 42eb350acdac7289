# SPDX-License-Identifier: Apache-2.0
"""Recipes: the sources of the cases' arguments, which are recreated wherever the suite runs."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from deeplink.errors import DeeplinkError
from diopi.conformance import own
from diopi.conformance.cases import growth, layouts, profiles
from diopi.conformance.cases.bound import bound
from diopi.conformance.cases.capturing import captured
from diopi.conformance.cases.case import PLAIN, Case, Group
from diopi.conformance.cases.draws import Portable
from diopi.conformance.cases.sample import Callee, Sample
from diopi.conformance.checks import distributions
from diopi.conformance.models import stored
from diopi.conformance.own import OWN
from diopi.op import Op, get

SAMPLES, WIDER, ERRORS = "samples", "wider", "errors"  # the lists of an op_db entry
FOREACH = tuple(f"foreach_{kind}_op_db" for kind in "unary binary pointwise reduce other".split())
CAPTURED = "captured"  # the calls of the op inside of those samples, forward and backward
BOUND = "bound"  # those samples as calls of the op itself


class NoRecipeError(DeeplinkError):
    """There is no such case, or the CPU cannot create it; the text is the reason."""


@cache
def op_db() -> Mapping[str, Any]:
    """Return every entry of torch's op_db by its full name."""
    with warnings.catch_warnings():
        # its import scripts functions and warns about deprecations
        warnings.simplefilter("ignore")
        from torch.testing._internal import common_methods_invocations as lists
    found: dict[str, Any] = {}
    for name in ("op_db", *FOREACH):
        for entry in getattr(lists, name, ()):
            found.setdefault(entry.full_name, entry)
    return found


@cache
def _names() -> Mapping[str, tuple[str, ...]]:
    """Return the entries by alternative names: of all variants, or with `_` for the last dot."""
    found: dict[str, tuple[str, ...]] = {}
    for full, entry in op_db().items():
        for name in {full, entry.name, entry.formatted_name, f"{full.replace('.', '_')}"}:
            found[name] = (*found.get(name, ()), full)
    return found


def entries_of(op: Op) -> list[str]:
    """Return the full names of the entries of op_db that an op names."""
    found = [full for name in op.opinfo for full in _names().get(name, ())]
    return list(dict.fromkeys(found))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Set the generators of torch, numpy and Python to a seed inside the block."""
    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])


def entry_of(source: str) -> tuple[Any, str]:
    """Return the entry of op_db and the list of it that a source names."""
    name, _, listed = source.partition("+")
    if name not in op_db() or listed not in (SAMPLES, WIDER, ERRORS, CAPTURED, BOUND):
        raise NoRecipeError(f"this torch's op_db has no {source!r}")
    return op_db()[name], listed


def callee(group: Group, index: int = 0) -> Callee:
    """Return the function of a group; in a model it depends on the call."""
    if group.source.startswith(stored.PREFIX):
        return stored.callee(_calls(group)[index])
    if group.source == distributions.SOURCE:
        return Callee(distributions.SOURCE, distributions.function(group.op), draws=True)
    if group.source == OWN or group.source.endswith((f"+{CAPTURED}", f"+{BOUND}")):
        op = get(group.op)
        names, draws = {a.name for a in op.arguments}, op.kind == "random"
        factory = op.family == "creation" and "dtype" in names and "input" not in names
        return Callee(op.name, op.meaning, factory=factory, draws=draws, direct=True)
    entry, _ = entry_of(group.source)
    return Callee(
        entry.full_name,
        entry,
        entry.inplace_variant,
        entry.supports_out and not entry.name.startswith("_foreach"),
        entry.is_factory_function,
        get(group.op).kind == "random",
    )


def samples(group: Group, most: int) -> list[Sample]:
    """Create the arguments of a group's calls, in order, at most `most`."""
    with seeded(group.seed), Portable(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if group.source.startswith(stored.PREFIX):
            return [stored.sample(call) for call in _calls(group)[:most]]
        if group.source == distributions.SOURCE:
            return [distributions.sample(group.op)]
        if group.source == OWN:
            return own.samples(group.op, getattr(torch, group.dtype))[:most]
        return list(islice(_of_entry(group), most))


def _calls(group: Group) -> list[dict[str, Any]]:
    name = group.source.removeprefix(stored.PREFIX)
    return stored.calls(name).get((group.op, group.dtype), [])


def _of_entry(group: Group) -> Iterator[Sample]:
    entry, listed = entry_of(group.source)
    dtype = getattr(torch, group.dtype)
    if listed == ERRORS:
        return (_plain(error.sample_input) for error in entry.error_inputs("cpu"))
    wants = entry.supports_autograd and dtype in entry.supported_backward_dtypes("cpu")
    make = entry.reference_inputs if listed == WIDER else entry.sample_inputs
    found = (_plain(sample) for sample in make("cpu", dtype, requires_grad=wants))
    if listed == BOUND:
        return bound(get(group.op), found)
    return found if listed != CAPTURED else captured(get(group.op), entry, found)


def _plain(sample: Any) -> Sample:
    args = (sample.input, *sample.args)
    return Sample(args, dict(sample.kwargs), sample.output_process_fn_grad)


def varied(sample: Sample, case: Case) -> Sample:
    """Return the sample with the profile and the layout of a case."""
    if case.profile == case.layout == PLAIN:
        return sample
    generator = torch.Generator().manual_seed(case.seed)
    values: Any = (sample.args, sample.kwargs)
    with Portable():
        if case.profile in growth.RANKS:
            values = growth.ranked(case.profile, values, generator)
        elif case.profile in growth.GROWTHS:
            values = growth.apply(case.profile, values, generator)
        elif case.profile != PLAIN:
            values = pytree.tree_map_only(
                Tensor, lambda t: profiles.apply(case.profile, t, generator), values
            )
    if case.layout != PLAIN:
        values = pytree.tree_map_only(Tensor, lambda t: layouts.apply(case.layout, t), values)
    return replace(sample, args=values[0], kwargs=values[1], laid=case.layout != PLAIN)


def changes(sample: Sample, made: Sample) -> bool:
    """Whether a variation changes this sample; if not, it is no separate case."""
    pairs = zip(sample.tensors, made.tensors, strict=True)
    return any(
        a is not b
        and (a.shape != b.shape or a.stride() != b.stride()
             or a.storage_offset() != b.storage_offset() or not torch.equal(a, b))
        for a, b in pairs
    )  # fmt: skip
