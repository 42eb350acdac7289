# SPDX-License-Identifier: Apache-2.0
"""The expected results of a call: in float64, on the CPU, and the envelope of rounding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType

import torch
from torch import Tensor

from deeplink.judge import envelope
from deeplink.judge.envelope import FLOAT32, FLOAT64
from deeplink.judge.formats import FORMATS, coarser
from diopi.conformance.cases.sample import Callee, Sample
from diopi.conformance.execution.running import Run, host, run

# Their meaning depends on the type itself: the reference is the CPU's run in that type.
BY_TYPE = frozenset(
    """
    nextafter nan_to_num frexp linalg.matrix_rank linalg.pinv pinverse histc view_as type
    linalg.matrix_rank.hermitian linalg.pinv.hermitian linalg.lstsq special.spherical_bessel_j0
    finfo byte char short int long bool half bfloat16 float double to item
    """.split()
)
BY_LAYOUT = "as_strided"  # and as_strided_*: the result depends on the layout
Values = list[Tensor | None]


class Expected:
    """The expected results, each part computed once, on demand; forward before gradients."""

    casts: Mapping[torch.dtype, torch.dtype] = MappingProxyType({})

    def __init__(
        self,
        callee: Callee,
        sample: Sample,
        casts: Mapping[torch.dtype, torch.dtype] = MappingProxyType({}),
    ) -> None:
        """Prepare the call; `casts`: coarser types in which the vendor's adaptor computes."""
        self._callee, self._sample, self.casts = callee, sample, casts

    def stored_as(self, tensor: Tensor) -> Tensor:
        """Convert a result to the type in which the vendor computes it; its values stay."""
        return tensor.to(self.casts.get(tensor.dtype, tensor.dtype))

    @cached_property
    def _dense(self) -> bool:
        """Whether to use contiguous arguments: a call's meaning does not depend on their layout,
        but
        torch's own kernels may.
        """
        return self._sample.laid and not self._callee.name.startswith(BY_LAYOUT)

    def picked(self, tensor: Tensor) -> Tensor:
        """Return the elements of a result that are compared: all."""
        return tensor

    @cached_property
    def plain(self) -> Run:
        """The CPU's run; raises what the CPU raises."""
        return run(self._callee, self._sample)

    @cached_property
    def _contiguous_run(self) -> Run:
        """The CPU's run with contiguous arguments, which no layout can affect."""
        return run(self._callee, self._sample, dense=True) if self._dense else self.plain

    @cached_property
    def _by_type(self) -> bool:
        return self._callee.name in BY_TYPE

    @cached_property
    def _wide(self) -> Run:
        if self._by_type:
            return self._contiguous_run
        try:
            return run(self._callee, self._sample, wide=True, dense=self._dense)
        except (RuntimeError, TypeError, ValueError, NotImplementedError):
            return self._contiguous_run  # not for these types: the CPU's own result then

    @cached_property
    def results(self) -> list[Tensor]:
        """The results in float64."""
        return [host(t) for t in self._wide.tensors]

    @cached_property
    def given(self) -> list[Tensor]:
        """The arguments after the call, in float64."""
        return [host(t) for t in self._wide.given]

    @cached_property
    def given_sigma(self) -> Values | None:
        """The envelope of each argument after the call;
        None where the call cannot be decomposed.
        """

        def once() -> Values:
            return list(self._wide_again(grad=False).given)

        return self._noise(once, self.given)

    @cached_property
    def plain_results(self) -> list[Tensor]:
        """The results of the CPU's run."""
        return [host(t) for t in self._contiguous_run.tensors]

    @cached_property
    def sigma(self) -> Values | None:
        """The envelope of each result; None where the call cannot be decomposed."""

        def once() -> Values:
            return list(self._wide_again(grad=False).tensors)

        return self._noise(once, self.results)

    # Gradients.

    @cached_property
    def seeds(self) -> list[Tensor]:
        """A random gradient for each differentiable result, in the type of the result."""
        generator = torch.Generator().manual_seed(len(self._sample.tensors))
        return [_normal(root, generator) for root in self.plain.roots]

    @cached_property
    def gradients(self) -> Values:
        """The gradients in float64; empty where there are none."""
        if len(self._wide.roots) != len(self.plain.roots):
            return []
        return [None if g is None else host(g) for g in self._wide.gradients(self.seeds)]

    @cached_property
    def plain_gradients(self) -> Values:
        return [None if g is None else host(g) for g in self._contiguous_run.gradients(self.seeds)]

    @cached_property
    def gradient_sigma(self) -> Values | None:
        """The envelope of each gradient."""

        def once() -> Values:
            return self._wide_again().gradients(self.seeds)

        return self._noise(once, self.gradients)

    def _wide_again(self, grad: bool = True) -> Run:
        return run(self._callee, self._sample, wide=True, dense=self._dense, grad=grad)

    def _noise(self, once: Callable[[], Values], centre: Sequence[Tensor | None]) -> Values | None:
        if self._by_type:
            return None
        floats = [t if t is not None and t.dtype in FORMATS else None for t in centre]
        stored = self.stored
        wide = stored in (torch.float64, torch.complex128)

        def checked() -> Values:
            return [None if c is None else t for t, c in zip(once(), floats, strict=True)]

        try:
            return envelope(
                checked,
                floats,
                inside=2 * FLOAT64 if wide else FLOAT32,  # there the reference has errors as well
                between=FORMATS[stored].roundoff,
            )
        except Exception:  # torch raises anything when a call cannot be decomposed
            return None

    @cached_property
    def stored(self) -> torch.dtype:
        """The coarsest floating type of the call."""
        found = torch.float64
        for tensor in [*self._sample.tensors, *self.plain.tensors]:
            dtype = self.casts.get(tensor.dtype, tensor.dtype)
            if dtype in FORMATS:
                found = coarser(found, dtype)
        return found


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    real = like.real if like.is_complex() else like
    drawn = torch.randn(like.shape, generator=generator, dtype=torch.float64)
    return drawn.to(real.dtype).to(like.dtype)
