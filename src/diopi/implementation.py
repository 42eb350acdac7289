# SPDX-License-Identifier: Apache-2.0
"""A vendor's kernels: discovered, checked against their ops, and given a route for every op.

A vendor's `kernels` module (or a class, or an object) holds any subset of the ops, as functions
with their names and arguments; `relu_` and `relu_out` are the in-place and the `out=` form of relu.
A name that starts with an underscore is private. The module may also define `library()`, which
returns the path of a library over the C ABI, and a `convert_config.yaml` may be in its folder.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from deeplink import vendor as vendors
from deeplink.errors import SignatureError, VendorBrokenError
from deeplink.i18n import _
from deeplink.vendor import Vendor
from diopi import adaptor, cabi, resolve
from diopi.op import Op, all_ops, signature
from diopi.resolve import Resolved

Kernel = Callable[..., Any]
FORMS = {"_out": "out", "_": "inplace"}  # suffix of a kernel's name -> form


@dataclass(frozen=True)
class Implementation:
    """The kernels of one vendor: those of ops by the op's name, those of forms by their own."""

    vendor: str
    kernels: Mapping[str, Kernel] = field(default_factory=dict)
    forms: Mapping[str, Kernel] = field(default_factory=dict)
    whole: bool = False  # torch itself supports this device: every op runs by its meaning

    def resolve(self, *, cpu_fallback: bool = False) -> dict[str, Resolved]:
        """Decide how each op runs."""
        return resolve.resolve(self, cpu_fallback=cpu_fallback)


def load(vendor: Vendor | str) -> Implementation:
    """Load the implementation of a vendor's record; torch's own kernels when it names none."""
    record = vendors.choose(vendor).vendor if isinstance(vendor, str) else vendor
    if not record.kernels:
        return Implementation(record.name, whole=True)
    try:
        module = importlib.import_module(record.kernels)
    # another author's module: whatever it raises is reported as its state
    except Exception as error:
        raise VendorBrokenError(
            _("the kernels of vendor {name!r} do not load: {kernels}: {kind}: {error}.").format(
                name=record.name, kernels=record.kernels, kind=type(error).__name__, error=error
            ),
            _("the record's `kernels` is the name of a module; import it by hand to see where."),
        ) from error
    return of(module, record.name)


def of(source: Any, vendor: str = "") -> Implementation:
    """Read the implementation in a module, a class or an object; SignatureError for a mismatch."""
    name = vendor or getattr(source, "__name__", type(source).__name__)
    found = _functions(source() if inspect.isclass(source) else source)
    kernels: dict[str, Kernel] = {}
    forms: dict[str, Kernel] = {}
    if isinstance(source, ModuleType) and hasattr(source, "library"):
        kernels |= cabi.load(Path(found.pop("library", source.library)()), name).kernels
    for own, kernel in found.items():
        op, form = _named(own, name, kernel)
        check(op, kernel, vendor=name, form=form)
        (forms if form else kernels)[own] = kernel
    return _adapted(Implementation(name, kernels, forms), source)


def routes(vendor: Vendor | str, *, cpu_fallback: bool = False) -> dict[str, str]:
    """Return the table of how each op runs on a vendor: op -> route."""
    resolved = load(vendor).resolve(cpu_fallback=cpu_fallback)
    return {name: one.route for name, one in resolved.items()}


def _functions(source: Any) -> dict[str, Kernel]:
    """Return the vendor's kernels by name: the public functions that its source defines."""
    if isinstance(source, Mapping):
        return dict(source)
    home = getattr(source, "__name__", "").partition(".")[0]
    found: dict[str, Kernel] = {}
    for name, value in inspect.getmembers(source, callable):
        if name.startswith("_") or inspect.isclass(value):
            continue
        module = getattr(value, "__module__", None) or ""
        # a module's imports from elsewhere are no kernels of its own (`from math import exp`)
        if not isinstance(source, ModuleType) or module.partition(".")[0] == home:
            found[name] = value
    return found


def _named(name: str, vendor: str, kernel: Kernel) -> tuple[Op, str]:
    """Return the op of a kernel, by its name, and its form."""
    ops = all_ops()
    if name in ops:
        return ops[name], ""
    for ending, form in FORMS.items():
        base = name.removesuffix(ending)
        if base != name and base in ops:
            return ops[base], form
    near = difflib.get_close_matches(name, ops, n=1)
    meant = f"did you mean {near[0]!r}? " if near else ""
    raise SignatureError(
        _("{vendor} has a kernel {name!r} ({where}), and no op has this name.").format(
            vendor=vendor, name=name, where=_where(kernel)
        ),
        _("{meant}A function that is no kernel starts with an underscore: `_{name}`.").format(
            meant=meant, name=name
        ),
    )


def check(op: Op, kernel: Kernel, *, vendor: str = "the vendor", form: str = "") -> None:
    """Raise SignatureError unless the kernel takes the op's arguments: names, order, defaults."""
    wanted = _form_signature(op, form)
    try:
        found = inspect.signature(kernel)
    except (TypeError, ValueError):  # a builtin has no signature
        raise SignatureError(
            _("{vendor}'s kernel {name} ({where}) does not say what it takes.").format(
                vendor=vendor, name=op.name, where=_where(kernel)
            ),
            _("wrap it: {definition}").format(definition=_definition(op, wanted, form)),
        ) from None
    wrong = _differences(wanted, found)
    if wrong:
        raise SignatureError(
            f"{vendor}'s kernel does not take the arguments of {op.name} ({_where(kernel)}):\n"
            f"  op:     {_name(op, form)}{_shown(wanted)}\n"
            f"  kernel: {_name(op, form)}{_shown(found)}\n" + "\n".join(f"  - {w}" for w in wrong),
            _definition(op, wanted, form),
        )


def _form_signature(op: Op, form: str) -> inspect.Signature:
    plain = signature(op)
    if form != "out":
        return plain
    outs = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation="Tensor")
        for name in op.result_names
    ]
    return plain.replace(parameters=[*plain.parameters.values(), *outs])


def _differences(wanted: inspect.Signature, found: inspect.Signature) -> list[str]:
    ours, theirs = list(wanted.parameters.values()), list(found.parameters.values())
    wrong: list[str] = []
    for index, (mine, other) in enumerate(zip(ours, theirs, strict=False), 1):
        if other.kind in (other.VAR_POSITIONAL, other.VAR_KEYWORD):
            return [*wrong, f"`{other}` takes anything: write the {len(ours)} arguments out"]
        if mine.name != other.name:
            wrong.append(f"argument {index} is called {mine.name!r}, not {other.name!r}")
        elif mine.kind != other.kind and other.kind is not other.POSITIONAL_OR_KEYWORD:
            wrong.append(f"{mine.name!r} is given by position, the kernel takes it otherwise")
        elif _default(mine) != _default(other):
            wrong.append(
                f"{mine.name!r} has {_default_text(mine)}; the kernel's has {_default_text(other)}",
            )
    wrong += [f"{extra.name!r} is an extra argument" for extra in theirs[len(ours) :]]
    wrong += [f"{lack.name!r} is missing" for lack in ours[len(theirs) :]]
    return wrong


def _default(parameter: inspect.Parameter) -> Any:
    value = parameter.default
    return tuple(value) if isinstance(value, (list, tuple)) else value


def _default_text(parameter: inspect.Parameter) -> str:
    if parameter.default is inspect.Parameter.empty:
        return "no default"
    return f"the default {parameter.default!r}"


def _shown(found: inspect.Signature) -> str:
    """Format a signature with types as they are written, without the result."""
    text = str(found.replace(return_annotation=inspect.Signature.empty))
    return text.replace("'", "") if "': '" not in text else text


def _definition(op: Op, wanted: inspect.Signature, form: str) -> str:
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in wanted.parameters.values()]
    return f"def {_name(op, form)}{inspect.Signature(bare)}: …"


def _name(op: Op, form: str) -> str:
    return op.name + next((ending for ending, f in FORMS.items() if f == form), "")


def _where(kernel: Kernel) -> str:
    code = getattr(inspect.unwrap(kernel), "__code__", None)
    if code is None:
        return f"{getattr(kernel, '__module__', None) or 'builtin'}"
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}"


def _adapted(found: Implementation, source: Any) -> Implementation:
    """Apply the conversions of the convert_config.yaml in the folder of the source."""
    try:
        path = Path(inspect.getfile(source if isinstance(source, ModuleType) else type(source)))
    except (TypeError, OSError):  # it has no file
        return found
    config = path.with_name(adaptor.FILE)
    return adapted(found, config) if config.is_file() else found


def adapted(found: Implementation, config: Path) -> Implementation:
    """Wrap the kernels of an implementation in the conversions of a file.

    Forms that the vendor provides are unchanged for ops without a rule; the others are derived from
    the converted kernel.
    """
    rules = adaptor.read(config)
    ops = all_ops()
    kernels = {name: adaptor.adapt(ops[name], k, rules) for name, k in found.kernels.items()}
    changed = {name for name, kernel in kernels.items() if kernel is not found.kernels[name]}
    forms = {
        name: form
        for name, form in found.forms.items()
        if _named(name, found.vendor, form)[0].name not in changed
    }
    return replace(found, kernels=kernels, forms=forms)
