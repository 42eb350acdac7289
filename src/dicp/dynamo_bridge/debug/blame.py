# SPDX-License-Identifier: Apache-2.0
"""Verify mode: compare every partition and every whole graph with eager; minimise a wrong graph."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from typing import Any

from torch import fx

from deeplink import settings
from deeplink.errors import VerifyError
from deeplink.i18n import _
from dicp.backend import Executable
from dicp.dynamo_bridge.codegen import user_line
from dicp.dynamo_bridge.debug import verify
from dicp.dynamo_bridge.debug.minify import Cut, minify, write_script
from dicp.dynamo_bridge.run import Constants, Part, Program

# Compiles a graph and runs it; the inputs of these names are constants.
Again = Callable[[fx.GraphModule, list[Any], Collection[str]], Sequence[Any]]


def watch(
    program: Program, traced: fx.GraphModule, backend: str, whole: Again, part: Again
) -> None:
    """Check each call of a program: the partitions by their graphs, the whole by the traced graph.

    `whole` compiles with all passes, `part` with none.
    """
    names = [node.name for node in traced.graph.find_nodes(op="placeholder")]
    frozen = [names[i] for i in program.frozen.tensors]

    def check(given: list[Any], results: Sequence[Any]) -> None:
        wrong = verify.check(traced, given, results)
        if wrong:
            raise _error(_("after its rewrites"), traced, given, wrong, backend, frozen, whole)

    program.check = check
    constants = program.constants(program.frozen.tensors)
    for one in program.parts:
        one.load = _checked(one, one.load, backend, part)
        one.executable = one.load(constants)


def _checked(
    part: Part, load: Callable[[Constants], Executable], backend: str, again: Again
) -> Callable[[Constants], Executable]:
    gm, names = part.gm, part.shape.inputs
    assert gm is not None  # verify mode loads no plan from the disk

    def checked(constants: Constants) -> Executable:
        run = load(constants)
        frozen = [name for name in names if name in constants]

        def call(args: list[Any]) -> Sequence[Any]:
            rest = iter(list(args))
            given = [constants[name] if name in constants else next(rest) for name in names]
            results = run(args)
            wrong = verify.check(gm, given, results)
            if wrong:
                raise _error(
                    _("in {name}").format(name=part.shape.name),
                    gm,
                    given,
                    wrong,
                    backend,
                    frozen,
                    again,
                )
            return results

        return call

    return checked


def _error(
    place: str,
    gm: fx.GraphModule,
    given: list[Any],
    wrong: Sequence[verify.Mismatch],
    backend: str,
    frozen: Collection[str],
    again: Again,
) -> VerifyError:
    def fails(cut: fx.GraphModule, inputs: list[Any]) -> bool:
        return bool(verify.check(cut, inputs, again(cut, inputs, frozen)))

    cut = minify(gm, given, fails)
    told = "; ".join(map(str, wrong[:3]))
    if cut is None:
        return VerifyError(
            f"{backend} computes something wrong {place}: {told}",
            "a second compile was correct: check for state that is kept between calls.",
        )
    why = f"{', '.join(cut.ops)}{_line(cut)}: {told}"
    folder = hashlib.sha256(why.encode()).hexdigest()[:12]
    path = settings.DICP_CACHE_DIR.get() / "failures" / folder
    script = write_script(path, cut, backend.removesuffix(" (sim)"), why)
    return VerifyError(f"{backend} computes wrong {place}: {why}", f"`python {script}` shows it.")


def _line(cut: Cut) -> str:
    lines = [line for node in cut.gm.graph.nodes if (line := user_line(node))]
    return f" at {lines[0]}" if lines else ""
