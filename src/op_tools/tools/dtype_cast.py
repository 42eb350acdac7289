# SPDX-License-Identifier: Apache-2.0
"""OpDtypeCast: runs chosen operators in another type, and returns the types they would return."""

from __future__ import annotations

import functools
from collections import Counter
from contextlib import nullcontext
from typing import Any

import torch

from deeplink import settings
from deeplink.i18n import _
from op_tools.core import op_names, terminal
from op_tools.core.call import Call, device_of, tensors
from op_tools.core.options import Options
from op_tools.core.tool import Started
from op_tools.tensors.host_transfer import Copies, converted, no_autocast
from op_tools.tools.fallback import OnCopies, dense, give_back, moves, run

# Conversions to a type that the program chooses.
CONVERSIONS = frozenset(
    "double float half bfloat16 long int short bool char byte cfloat cdouble chalf to type_as "
    "type _to_copy".split()
)


class OpDtypeCast(OnCopies):
    """Arguments are cast by OP_DTYPE_CAST_DICT (or `casts`), and results back to the type that
    torch's promotion gives for the arguments as they were.
    """

    key = "DTYPE_CAST"
    hook = "OpDtypeCastHook"
    excluded = op_names.VIEWS | op_names.UNINITIALISED | op_names.TRANSFERS | CONVERSIONS

    def begin(self, options: Options) -> None:
        super().begin(options)
        self._used: Counter[torch.dtype] = Counter()
        self._option = options.more.get("casts")
        self._casts()  # raises at the start for casts that are not allowed

    def _casts(self) -> dict[torch.dtype, torch.dtype]:
        """The casts, read for each call: the program may change the setting meanwhile."""
        casts = self._option
        if isinstance(casts, dict):
            return {_dtype(a): _dtype(b) for a, b in casts.items()}
        setting = settings.OP_DTYPE_CAST_DICT
        pairs = setting.get() if casts is None else setting.parse(casts)
        return {_dtype(a): _dtype(b) for a, b in pairs.items()}

    def substitute(self, call: Call) -> Any:
        casts = self._casts()
        if _names_dtype(call) or moves(call) or not dense(call):
            return NotImplemented
        device = device_of(call.args, call.kwargs)
        dtypes = [tensor.dtype for tensor in tensors(call.args, call.kwargs)]
        if device is None or not any(dtype in casts for dtype in dtypes):
            return NotImplemented
        wanted = self.expected(call, device)
        autocast = torch.is_autocast_enabled(device.type)
        if autocast:  # which would cast the arguments to the widest of the types
            floating = [casts.get(dtype, dtype) for dtype in dtypes if dtype.is_floating_point]
            widest = functools.reduce(torch.promote_types, floating)
            casts = {dtype: widest for dtype in dtypes if dtype.is_floating_point}
        copies = Copies(lambda t: converted(t, t.device, casts.get(t.dtype)), call=call)
        with no_autocast(device) if autocast else nullcontext():
            done = run(call, copies, copies.of(call.args), copies.of(call.kwargs))
        if done.has_view:
            return NotImplemented
        returned = give_back(call, done, device, wanted)
        self.hits[call.name] += 1
        changed = [(o, c) for o, c in copies if o.dtype != c.dtype]
        self._used.update(original.dtype for original, _ in changed)
        if terminal.verbose():
            self._show(call, copies, done.result, returned)
        return returned

    def _show(self, call: Call, copies: Copies, result: Any, returned: Any) -> None:
        config = settings.OP_DTYPE_CAST_DICT.show(
            {str(a)[6:]: str(b)[6:] for a, b in self._casts().items()}
        )
        inputs = call.args, call.kwargs
        sides = (
            ("input", tensors(inputs), tensors(copies.of(inputs))),
            ("output", tensors(result), tensors(returned)),
        )
        rows = [
            (call.name, f"{side}[{i}]", f"{a.dtype} -> {b.dtype}", config)
            for side, before, after in sides
            for i, (a, b) in enumerate(zip(before, after, strict=True))
            if a.dtype != b.dtype
        ]
        terminal.write(terminal.grid(("name", "target", "action", "config"), rows))

    def finish(self, started: Started) -> None:
        lines = self.summary(_("in another type"))
        unused = [str(source) for source in self._casts() if not self._used[source]]
        if unused and started.applied:
            lines.append(
                _("OpDtypeCast: no argument was of {names}").format(names=", ".join(unused))
            )
        terminal.summary(self, started, lines)


def _dtype(value: torch.dtype | str) -> torch.dtype:
    if isinstance(value, torch.dtype):
        return value
    dtype = getattr(torch, value.removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{value!r} is no type of torch")
    return dtype


def _names_dtype(call: Call) -> bool:
    return call.kwargs.get("dtype") is not None or any(
        isinstance(value, torch.dtype) for value in call.args
    )
