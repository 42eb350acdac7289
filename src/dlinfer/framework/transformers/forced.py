# SPDX-License-Identifier: Apache-2.0
"""transformers: the logits of a model on prompts and on what the stock model generates after them,
judged position by position.

The tokens are the same in every run (teacher forcing), and so are the experts that routers choose:
one changed choice between two that are nearly equal would change all later logits.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from deeplink.errors import DeeplinkError
from deeplink.i18n import _
from deeplink.judge import envelope, judge
from deeplink.judge.formats import FORMATS
from dlinfer import kernels, observe
from dlinfer.capture import graph_of
from dlinfer.framework.applied import Applied, applied_to
from dlinfer.framework.transformers import generation
from dlinfer.framework.transformers.check import Routing, as_new
from dlinfer.framework.verdicts import Checked, Position, Report

SMALL = 50_000_000  # parameters up to which the reference is float64 on the CPU, with an envelope
SAMPLES = 3  # of the envelope
SHORT = 8  # tokens of a report's prompt
Apply = Callable[..., Applied]
Run = Callable[[], Tensor]


def check(model: Any, prompts: Iterable[Any], new_tokens: int, apply: Apply) -> Checked:
    """Judge a model; see `dlinfer.check`."""
    rows = [_ids(prompt, model) for prompt in prompts]
    if not rows:
        raise DeeplinkError(
            _("dlinfer.check needs prompts: one or more lists of token ids."),
            _("tokenizer(text).input_ids makes one."),
        )
    routing = [Routing(model) for _ in rows]
    with _stock(model, apply) as give, as_new(model), torch.no_grad():
        stock, tokens = [], []
        for row, routed in zip(rows, routing, strict=True):
            with routed.recorded():
                logits, chosen = _forced(model, row, new_tokens)
            stock.append(logits)
            tokens.append(torch.cat((row, chosen), 1))
        references = _References(model, rows, tokens, routing)
        expected = [references.run(at) for at in range(len(rows))]
        give()
        runs = [
            functools.partial(_replayed, model, *given)
            for given in zip(rows, tokens, routing, strict=True)
        ]
        found = [run() for run in runs]
        positions = [
            position
            for at, given in enumerate(zip(found, expected, stock, strict=True))
            for position in _judged(at, *given, functools.partial(references.sigma, at))
        ]
        wrong = None
        if not all(position.passed for position in positions):
            wrong = observe.first_wrong(lambda: [run() for run in runs], model)
    name = str(references.dtype).removeprefix("torch.")
    return Checked(type(model).__name__, name, tuple(positions), wrong)


def report(model: Any) -> Report:
    """Describe the kernels of a model; see `dlinfer.report`."""
    applied = applied_to(model)
    if applied is None:
        raise DeeplinkError(
            _("{model} has none of dlinfer's ops.").format(model=type(model).__name__),
            _("call dlinfer.apply(model) first."),
        )
    size = model.get_input_embeddings().weight.shape[0]
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(size, (1, SHORT), generator=generator).to(model.device)
    before = kernels.fallbacks()
    with as_new(model):
        found = observe.kernels_of(lambda: _forced(model, ids, 1))
    after = kernels.fallbacks()
    reasons = [
        f"{row.op} ran by its reference {after[row] - before.get(row, 0)} times: {row.reason}"
        for row in after
        if after[row] > before.get(row, 0)
    ]
    device = model.device.type
    counts = {op: dict(who) for op, who in found.items()}
    return Report(
        type(model).__name__, device, applied.layers, counts, tuple(reasons), _graph(model)
    )


def _graph(model: Any) -> str:
    """Describe how `generate` launches the kernels of a step."""
    reason = generation.why_not(model)
    if reason:
        return f"none: generate is transformers' own, because {reason}"
    graph = graph_of(model.device)
    if graph:
        return f"generate replays a step as a {graph}"
    return f"none: {model.device.type} has no graphs of launches"


def _ids(prompt: Any, model: Any) -> Tensor:
    """Return a prompt as [1, tokens] on the model's device."""
    if isinstance(prompt, str):
        raise DeeplinkError(
            _("dlinfer.check got a text; allowed: token ids."),
            _("tokenizer(text).input_ids makes one."),
        )
    ids = torch.as_tensor(prompt).reshape(1, -1)
    if not ids.numel() or ids.is_floating_point():
        raise DeeplinkError(_("dlinfer.check got a prompt without token ids; allowed: 1 or more."))
    return ids.long().to(model.device)


@contextmanager
def _stock(model: Any, apply: Apply) -> Iterator[Callable[[], None]]:
    """Restore the stock model; call the yielded function to give it dlinfer's ops. Afterwards the
    model is as it was before.
    """
    before = applied_to(model)
    if before is not None:
        before.undo()
    given: list[Applied] = []

    def give() -> None:
        given.append(apply(model, check=False))

    try:
        yield give
    finally:
        if before is None and given:
            given[0].undo()
        elif before is not None and not given:
            give()


def _forced(
    model: Any, ids: Tensor, new_tokens: int, tokens: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Run a prompt, then one token after the other with the cache: the given ones, or else the most
    likely ones. Return the logits of all positions [tokens, vocabulary], and the new tokens.
    """
    out = model(ids, use_cache=True)
    logits, chosen = [out.logits[0]], []
    for at in range(new_tokens):
        token = logits[-1][-1:].argmax(-1)[None] if tokens is None else tokens[:, at : at + 1]
        chosen.append(token)
        out = model(token, past_key_values=out.past_key_values, use_cache=True)
        logits.append(out.logits[0])
    return torch.cat(logits), torch.cat([ids[:, :0], *chosen], 1)


def _replayed(model: Any, ids: Tensor, tokens: Tensor, routing: Routing) -> Tensor:
    """Return the logits for given tokens, with the experts of the recorded run."""
    new = tokens[:, ids.shape[1] :]
    with routing.of(model).replayed():
        return _forced(model, ids, new.shape[1], new)[0]


class _References:
    """A copy of a stock model in a wider type, and its logits."""

    def __init__(
        self, model: Any, rows: list[Tensor], tokens: list[Tensor], routing: list[Routing]
    ) -> None:
        self.small = sum(p.numel() for p in model.parameters()) <= SMALL
        wide = self.small or model.dtype == torch.float32
        self.dtype = torch.float64 if wide else torch.float32
        device = torch.device("cpu") if self.small else model.device
        self.model = copy.deepcopy(model).to(device, self.dtype)
        if routing[0].routers and hasattr(model, "set_experts_implementation"):
            self.model.set_experts_implementation("eager")  # grouped products have no float64
        self.runs = [
            functools.partial(_replayed, self.model, ids.to(device), given.to(device), routed)
            for ids, given, routed in zip(rows, tokens, routing, strict=True)
        ]
        self.between = FORMATS[model.dtype].roundoff
        self._sigma: dict[int, Tensor | None] = {}

    def run(self, at: int) -> Tensor:
        """Return the logits of a prompt, on the CPU."""
        return self.runs[at]().cpu()

    def sigma(self, at: int) -> Tensor | None:
        """Return the standard deviation of the logits under rounding, for small models."""
        if not self.small:
            return None
        if at not in self._sigma:
            (found,) = envelope(
                lambda: [self.run(at)], [self.run(at)], between=self.between, samples=SAMPLES
            )
            self._sigma[at] = found
        return self._sigma[at]


def _judged(
    prompt: int,
    found: Tensor,
    expected: Tensor,
    stock: Tensor,
    sigma: Callable[[], Tensor | None],
) -> Iterator[Position]:
    found, stock = found.cpu(), stock.cpu()
    for at, (mine, reference, theirs) in enumerate(zip(found, expected, stock, strict=True)):
        plain = functools.partial(_same, theirs)
        verdict = judge(mine, reference, run_plain=plain)
        if not verdict.passed:  # the envelope costs several runs
            spread = functools.partial(_row, sigma, at)
            verdict = judge(mine, reference, run_plain=plain, run_envelope=spread)
        largest = reference.abs().max()
        error, stock_error = (
            float((t.to(reference.dtype) - reference).abs().max() / largest) for t in (mine, theirs)
        )
        same = bool(mine.argmax() == theirs.argmax())
        text = str(verdict)
        yield Position(prompt, at, verdict.passed, text, error, stock_error, same)


def _same(logits: Tensor) -> Tensor:
    return logits


def _row(sigma: Callable[[], Tensor | None], at: int) -> Tensor | None:
    whole = sigma()
    return None if whole is None else whole[at]
