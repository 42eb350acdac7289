"""A vendor's torch.<device> as names and argument names: pinned in JSON, or read from a module."""

from __future__ import annotations

import inspect
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch

HERE = Path(__file__).parent
SRC = HERE.parents[1] / "src"
WHATS = ("name", "arguments", "behaviour")
KINDS = ("todo", "notyet", "never")
Release = tuple[int, int]
FIRST = (2, 13)  # the torch release that the gaps are about, and those after it

# Argument names; "module", "value"; None: there is such a thing, its arguments are not known.
Shape = list[str] | str | None


@dataclass(frozen=True)
class Contract:
    """What a package of a vendor offers in the place of torch.cuda."""

    vendor: str
    title: str  # "torch_npu 2.13.0"
    version: str
    names: Mapping[str, Shape]


@dataclass(frozen=True)
class Gap:
    """Names of torch.cuda that a vendor lacks, or has with other arguments or another behaviour."""

    cuda: tuple[str, ...]
    what: str
    kind: str
    reason: str
    since: str = ""  # the first torch release with this gap, and the first without it
    until: str = ""

    def is_of(self, torch_release: Release) -> bool:
        """Whether a torch release has this gap."""
        first = release(self.since) if self.since else FIRST
        return first <= torch_release and (not self.until or torch_release < release(self.until))


def release(version: str) -> Release:
    """The minor version: (2, 13) of "2.13.0+cpu"."""
    found = re.match(r"(\d+)\.(\d+)", version)
    assert found is not None, version
    return int(found[1]), int(found[2])


RELEASE = release(torch.__version__)


def pinned() -> list[Contract]:
    """Every contract in this folder, one for each version of a package; another vendor's JSON is
    dropped in, and nothing else.
    """
    return [contract for path in sorted(HERE.glob("*.json")) for contract in _read(path)]


def for_this_torch(vendor: str) -> Contract:
    """The contract of the version for the installed torch; where there is none, the newest."""
    found = [contract for contract in pinned() if contract.vendor == vendor]
    return next((one for one in found if release(one.version) == RELEASE), found[-1])


def of_module(vendor: str, module: ModuleType, version: str) -> Contract:
    """The contract that an imported module keeps."""
    names = {name: shape(getattr(module, name)) for name in dir(module)}
    return Contract(vendor, module.__name__, version, names)


def read_gaps(vendor: str) -> list[Gap]:
    """The entries of a vendor's gaps.toml about torch.cuda; a misspelt one is an error."""
    path = SRC / "deeplink_vendors" / vendor / "gaps.toml"
    gaps = [
        Gap(tuple(entry.pop("cuda")), **entry)
        for entry in tomllib.loads(path.read_text("utf-8"))["gap"]
    ]
    for gap in gaps:
        if gap.what not in WHATS or gap.kind not in KINDS or not gap.reason:
            raise ValueError(f"{path}: {gap}; what: {WHATS}, kind: {KINDS}, and a reason")
    return gaps


def listed(vendor: str, what: str) -> set[str]:
    """The names that the vendor's gaps.toml lists for the installed torch, or the first release."""
    about = max(RELEASE, FIRST)
    gaps = [gap for gap in read_gaps(vendor) if gap.what == what and gap.is_of(about)]
    return {name for gap in gaps for name in gap.cuda}


def cuda_names() -> dict[str, Shape]:
    """What torch.cuda offers, by torch itself."""
    return {name: shape(getattr(torch.cuda, name)) for name in torch.cuda.__all__}


def shape(thing: object) -> Shape:
    """Argument names as the JSON writes them."""
    if inspect.ismodule(thing):
        return "module"
    if not callable(thing):
        return "value"
    try:
        parameters = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):  # made in C, and has no error text
        return None
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return [stars.get(parameter.kind, "") + parameter.name for parameter in parameters]


def missing(contract: Contract, wanted: Iterable[str]) -> set[str]:
    """The names that the package does not have."""
    return {name for name in wanted if name not in contract.names}


def different(contract: Contract, wanted: Mapping[str, Shape]) -> set[str]:
    """The names that are there and do not take the arguments that are wanted."""
    return {
        name
        for name, shape in wanted.items()
        if name in contract.names and not accepts(contract.names[name], shape)
    }


def accepts(offered: Shape, wanted: Shape) -> bool:
    """Whether every call that fits `wanted`, by place or by name, fits `offered`."""
    if offered is None or wanted is None:
        return True  # nothing is known that speaks against it
    if isinstance(offered, str) or isinstance(wanted, str):
        return offered == wanted
    ours = [name for name in wanted if not name.startswith("*")]
    theirs = [name for name in offered if not name.startswith("*")]
    if any(name.startswith("**") for name in offered):
        return all(a == b for a, b in zip(ours, theirs, strict=False))
    return theirs[: len(ours)] == ours


def _read(path: Path) -> list[Contract]:
    data = json.loads(path.read_text("utf-8"))
    return [
        Contract(data["vendor"], f"{data['package']} {version}", version, data["names"])
        for version in data["versions"]
    ]
