# SPDX-License-Identifier: Apache-2.0
"""Check of the published calls in LMDeploy's sources, by parsing: whether each call binds."""

from __future__ import annotations

import ast
import importlib.util
import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from deeplink.errors import DeeplinkError
from deeplink.i18n import _
from dlinfer import ops

NAME = "ext_ops"  # as LMDeploy imports dlinfer.ops


@dataclass(frozen=True, order=True)
class Call:
    """One form of calling an op: positional arguments, and names of keyword arguments."""

    op: str
    args: tuple[str, ...]
    named: tuple[str, ...]


def check() -> None:
    """Raise unless every call of the installed LMDeploy binds, or belongs to an omitted op."""
    spec = importlib.util.find_spec("lmdeploy.pytorch.kernels.dlinfer")
    if spec is None or not spec.submodule_search_locations:
        raise DeeplinkError(
            _("LMDeploy has no lmdeploy.pytorch.kernels.dlinfer."),
            _("this release is built otherwise than those that are known."),
        )
    folder = Path(spec.submodule_search_locations[0])
    sources = (path.read_text("utf-8") for path in sorted(folder.rglob("*.py")))
    wrong = [text for call in scan(sources) if (text := unbound(call))]
    if wrong:
        raise DeeplinkError(
            _("this LMDeploy calls dlinfer with unknown arguments: {names}.").format(
                names="; ".join(wrong)
            ),
            _("install a release of LMDeploy that dlinfer is tested with."),
        )


def scan(sources: Iterable[str]) -> list[Call]:
    """Return the distinct calls in Python sources."""
    return sorted({call for source in sources for call in _calls(source)})


def _calls(source: str) -> Iterator[Call]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            if isinstance(owner, ast.Name) and owner.id == NAME:
                named = tuple(sorted(keyword.arg or "**" for keyword in node.keywords))
                yield Call(node.func.attr, tuple(ast.unparse(a) for a in node.args), named)


def unbound(call: Call) -> str:
    """Return why a call does not bind; "" when it does, or when its op is omitted intentionally."""
    if call.op in ops.LEFT_OUT:
        return ""
    function = getattr(ops, call.op, None)
    if function is None:
        return f"there is no {call.op}"
    try:
        bound = inspect.signature(function).bind(*call.args, **dict.fromkeys(call.named))
    except TypeError as error:
        return f"{call.op}: {error}"
    forms = ops.FORMS.get(call.op)
    count = len(bound.arguments.get("rest", ())) + ("attn_mask" in call.named)
    if forms is not None and count not in forms:
        return f"{call.op}: {len(call.args)} arguments by position"
    return ""
