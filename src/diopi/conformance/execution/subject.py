# SPDX-License-Identifier: Apache-2.0
"""The vendor under test: a torch device, or kernels of the interface on the host."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from deeplink import settings
from deeplink import vendor as vendors
from deeplink.errors import DeeplinkError, NoVendorError, VendorBrokenError
from deeplink.i18n import _
from deeplink.vendor import Vendor
from diopi import implementation, observing
from diopi.conformance.cases.sample import Callee
from diopi.conformance.execution.calls import Calls
from diopi.conformance.outside import matching, sources
from diopi.conformance.outside.matching import Matching
from diopi.conformance.outside.problems import Problem, problems_of
from diopi.conformance.outside.spec import Spec
from diopi.conformance.outside.watching import Watch, is_compiled
from diopi.implementation import Implementation
from diopi.resolve import Resolved
from diopi.schema import own_name

# Error texts after which no later call of this process can succeed.
STICKY = (
    "device-side assert",
    "illegal memory access",
    "misaligned address",
    "illegal instruction",
    "unspecified launch failure",
    "device is lost",
)


@dataclass(frozen=True)
class Subject:
    """Where cases run. `active` is entered around each call: it installs the kernels."""

    name: str
    device: str
    gaps: Path | None = None
    active: Callable[[], AbstractContextManager[Any]] = nullcontext
    kernels: Mapping[str, Resolved] = field(default_factory=dict, repr=False)
    calls: Calls = field(default_factory=Calls, repr=False)  # of its C functions
    words: str = ""  # of a command line that requests it; "": --vendor and its name
    watch: Watch | None = None  # of kernels of someone else
    matching: Matching | None = None  # their functions
    problems: Mapping[str, Problem] = field(default_factory=dict, repr=False)
    fused: Mapping[str, Callable[..., Any]] = field(default_factory=dict, repr=False)  # of guests
    allow_torch: bool = False  # such a kernel may call torch's own operator
    interpreted: bool = False  # by Triton's interpreter, in which a call takes seconds

    def ready(self) -> None:
        """Raise the device's error when it cannot be used at all."""
        torch.ones(1, device=self.device).cpu()

    def finish(self) -> None:
        """Synchronize the device; raises its asynchronous errors."""
        _finish(self.device)

    def lost(self, said: str) -> bool:
        """Whether an error text shows that the device is unusable for this process."""
        if any(words in said for words in STICKY):
            return True
        try:
            self.ready()
        except Exception:  # whatever it is
            return True
        return False

    @property
    def is_host(self) -> bool:
        """Whether it is torch's CPU itself, from which the expected results come."""
        return self.device == "cpu" and not self.kernels and not self.matching

    def begin(self) -> None:
        """Clear the calls of the previous case."""
        self.calls.begin()
        if self.watch is not None:
            self.watch.begin()

    def sources(self) -> dict[str, str]:
        """Return a checksum of the source of each kernel, by op; none for compiled ones."""
        found: dict[str, str] = {}
        if self.matching is not None:
            matched = [*self.matching.kernels.values(), *self.matching.forms.values()]
            found = {one.op.name: sources.checksum(one.kernel) for one in matched}
        for name, problem in self.problems.items():
            found[name] = sources.checksum(problem.candidate_module)
        return {name: digest for name, digest in found.items() if digest}

    def wants(self, check: str, op: str) -> bool:
        """Whether a check concerns the kernels of this subject.

        Without a form or a gradient of their own, kernels of someone else would be checked by
        those of torch. The search for leaks makes too many calls for an interpreter.
        """
        if self.watch is None:
            return True
        if check == "leak" and self.interpreted:
            return False
        if check in ("backward", "out") or check.startswith("out_"):
            return False
        found = self.kernels.get(op)
        return check != "inplace" or (found is not None and "inplace" not in found.derived)

    @property
    def overruns(self) -> list[str]:
        """The writes outside of results and arguments since `begin`."""
        return [*self.calls.overruns, *(self.watch.overruns if self.watch else ())]

    def has(self, op: str) -> bool:
        """Whether the vendor claims to implement an op."""
        return op in self.kernels or not (self.kernels or self.matching)

    def takes(self, callee: Callee) -> Callee:
        """Replace the callee by the vendor's kernel where an op is called by its own name."""
        if callee.name in self.problems and self.watch is not None:
            return replace(callee, function=self.problems[callee.name].candidate(self.watch))
        if not callee.direct or callee.name not in self.kernels:
            return callee
        # a kernel determines its own device
        return replace(callee, function=self.kernels[callee.name].call, factory=False)


def open_subject(name: str, *, runs: bool = True) -> Subject:
    """Open a vendor by its name, or `module` or `module:attribute` that holds kernels.

    A process that runs no case itself (`runs=False`) may have the device of another vendor.
    """
    # torch's default would judge TF32 as float32; op_db's import forbids the public name for it
    torch._C._set_cudnn_allow_tf32(False)
    if is_module(name):
        return of_kernels(name, implementation.of(_source(name), name))
    chosen = _chosen(name)
    vendors.load_device(chosen, any_chip=not runs)
    gaps = chosen.gaps_file()
    if chosen.kernels:
        return of_kernels(name, implementation.load(chosen), chosen.device, gaps)
    return Subject(name, chosen.device, gaps)


def open_kernels(spec: Spec) -> Subject:
    """Open kernels of someone else: match their functions with ops, and watch each call."""
    torch._C._set_cudnn_allow_tf32(False)
    if spec.interpret:
        settings.interpret_triton()
    return of_source(spec, sources.read(spec), _device(spec))


def of_source(spec: Spec, source: sources.Source, device: str = "cpu") -> Subject:
    """Create a subject from functions of someone else."""
    found = matching.match(source.functions, spec.maps, source.missing)
    kernels, forms, watch = dict(source.exact), {}, None
    if not kernels:  # a library has observers of its own
        watch = Watch({op: one.function for op, one in found.kernels.items()})
        watch.opaque |= {op for op, one in found.kernels.items() if is_compiled(one.kernel)}
        forms = {name: watch.watched(name, one.call) for name, one in found.forms.items()}
        kernels = {one.op.name: _functional(forms[name]) for name, one in found.forms.items()}
        kernels |= {op: watch.watched(op, one.call) for op, one in found.kernels.items()}
    subject = of_kernels(
        spec.name, Implementation(spec.name, kernels, forms), device, routes=("kernel",)
    )
    return replace(
        subject,
        words=spec.words,
        watch=watch,
        matching=found,
        problems={one.name: one for one in problems_of(source, device)},
        allow_torch=spec.allow_torch,
        interpreted=spec.interpret,
    )


def _functional(inplace: Callable[..., Any]) -> Callable[..., Any]:
    """Return the op of a kernel that exists in place alone: it changes a copy."""

    def call(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        target = input.clone()
        inplace(target, *args, **kwargs)
        return target

    return call


def _device(spec: Spec) -> str:
    if spec.device == "dipu":
        chosen = vendors.choose("reference").vendor
        vendors.load_device(chosen)
        return chosen.device
    if spec.device == "cuda" and not torch.cuda.is_available():
        raise DeeplinkError(
            _("--device cuda: torch finds no GPU."),
            _("--device cpu runs kernels of plain Python, and --interpret those of Triton."),
        )
    if spec.device:
        return spec.device
    return "cuda" if torch.cuda.is_available() and not spec.interpret else "cpu"


def is_module(name: str) -> bool:
    """Whether a name is that of a module of kernels,
    `module:attribute` included, not a vendor's.
    """
    if "." in name or ":" in name:
        return True
    return vendors.find(name) is None and importlib.util.find_spec(name) is not None


def _chosen(name: str) -> Vendor:
    try:
        return vendors.choose(name).vendor
    except NoVendorError as error:
        hint = "A module of kernels is named as `module` or `module:attribute`."
        raise NoVendorError(error.message, f"{error.hint} {hint}") from None


def _source(name: str) -> Any:
    module, _colon, attribute = name.partition(":")
    try:
        found = importlib.import_module(module)
        return getattr(found, attribute) if attribute else found
    # another author's module: whatever it raises is reported as its state
    except Exception as error:
        raise VendorBrokenError(
            _("the kernels in {name} do not load: {kind}: {error}.").format(
                name=name, kind=type(error).__name__, error=error
            ),
            _("a vendor's name, or module:attribute of kernels; import it by hand to see where."),
        ) from error


def of_kernels(
    name: str,
    kernels: Implementation,
    device: str = "cpu",
    gaps: Path | None = None,
    routes: Sequence[str] = ("kernel", "decomposition"),
) -> Subject:
    """Create a subject from kernels: each replaces its ATen overloads on the vendor's device."""
    runs = {op: found for op, found in kernels.resolve().items() if found.route in routes}
    routed = {
        overload: (found, form) for found in runs.values() for overload, form in _forms(found)
    }
    calls = Calls(lambda: _finish(device))

    @contextmanager
    def active() -> Iterator[None]:
        with observing.observed(calls), _Routed(routed, device):
            yield

    return Subject(name, device, gaps, active, runs, calls)


def _finish(device: str) -> None:
    if device != "cpu":
        torch.get_device_module(device).synchronize()


def _forms(found: Resolved) -> list[tuple[str, Callable[..., Any]]]:
    rows = []
    for overload in found.op.aten:
        base, _, rest = overload.removeprefix("aten::").partition(".")
        schema = getattr(getattr(torch.ops.aten, base), rest or "default")._schema
        if any(argument.is_out for argument in schema.arguments):
            rows.append((overload, found.out))
        elif schema.is_mutable and base.endswith("_") and not found.op.written:
            rows.append((overload, found.inplace))
        else:
            rows.append((overload, found.call))
    return rows


class _Routed(TorchDispatchMode):
    """A mode that sends the ATen overloads of ops to the vendor's kernels."""

    def __init__(
        self, routed: dict[str, tuple[Resolved, Callable[..., Any]]], device: str = "cpu"
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._routed, self._type = routed, torch.device(device).type

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = str(func).replace("aten.", "aten::", 1).removesuffix(".default")
        if name not in self._routed or self._elsewhere(args, kwargs):
            return func(*args, **kwargs)
        found, form = self._routed[name]
        schema = func._schema
        given = dict(zip((a.name for a in schema.arguments), args, strict=False)) | kwargs
        outs = [a.name for a in schema.arguments if a.is_out]
        known = {argument.name for argument in found.op.arguments}
        named = {key: value for key, value in given.items() if key not in outs}
        call = {own_name(schema.name, key): value for key, value in named.items()}
        call = {key: value for key, value in call.items() if key in known}
        call |= dict(zip(found.op.result_names, (given[out] for out in outs), strict=False))
        if form is found.inplace:
            first = found.op.arguments[0].name
            return form(call.pop(first), **call)
        return form(**call)

    def _elsewhere(self, args: Any, kwargs: dict[str, Any]) -> bool:
        """Whether the kernels do not apply: on the host, or a copy from or to it."""
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if not tensors:  # a device creates tensors itself
            return self._type != "cpu"
        asked = kwargs.get("device")
        if asked is not None:
            places = {torch.device(asked).type, *(tensor.device.type for tensor in tensors)}
        else:
            places = {tensor.device.type for tensor in tensors if tensor.dim()}
        if places:
            return places != {self._type}
        # numbers alone: one of them on the device is enough, a Python number is on the host
        return all(tensor.device.type != self._type for tensor in tensors)
