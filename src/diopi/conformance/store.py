"""Baselines: what cases should give, computed on one machine and used on another.

A folder with `manifest.jsonl` (a line for each case: a checksum of its arguments, where its values
are) and shards of float64 results with the bounds of their errors. Arguments are not stored: they
are made anew from the case's recipe, and the checksum says whether they are the same.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from deeplink.errors import DeeplinkError
from deeplink.judge.formats import FORMATS
from diopi.conformance import safetensors
from diopi.conformance.case import Case
from diopi.conformance.expected import Expected, Values
from diopi.conformance.sample import Callee, Sample

MANIFEST = "manifest.jsonl"
MOST = 1 << 12  # elements of one result; of larger ones so many are kept
SHARD = 64 << 20  # bytes

PARTS = ("results", "sigma", "gradients", "gradient_sigma")


@dataclass(frozen=True)
class Entry:
    """One line of the manifest; per part the names of its tensors, "" where there is none."""

    case: str
    checksum: str
    torch: str
    shard: str
    results: tuple[str, ...] = ()
    sigma: tuple[str, ...] = ()
    gradients: tuple[str, ...] = ()
    gradient_sigma: tuple[str, ...] = ()
    complex: tuple[str, ...] = ()  # those that are stored as their parts


@dataclass(frozen=True)
class Made:
    """The baseline of one case, on its way to the store."""

    case: str
    checksum: str
    parts: dict[str, list[Tensor | None]]


def checksum(sample: Sample) -> str:
    """Of all bytes of the arguments."""
    digest = hashlib.sha256()
    for tensor in sample.tensors:
        plain = tensor.detach().resolve_conj().resolve_neg()
        if plain.layout != torch.strided:
            plain = plain.to_dense()
        digest.update(f"{plain.dtype}{list(plain.shape)}".encode())
        digest.update(plain.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def make(case: Case, callee: Callee, sample: Sample) -> Made:
    """The baseline of a case; raises what the CPU raises."""
    expected = Expected(callee, sample)
    plain = expected.plain
    parts: dict[str, list[Tensor | None]] = {
        "results": [
            _light(t, p.dtype) for t, p in zip(expected.results, plain.tensors, strict=True)
        ],
        "sigma": list(expected.sigma or []),
    }
    if plain.roots:
        try:
            pairs = zip(expected.gradients, plain.leaves, strict=False)
            parts["gradients"] = [None if g is None else _light(g, p.dtype) for g, p in pairs]
            parts["gradient_sigma"] = list(expected.gradient_sigma or [])
        except Exception:  # the CPU's own limits: without gradients then
            parts.pop("gradients", None)
    kept = {
        part: [None if t is None else _kept(part, picked(t, case)) for t in tensors]
        for part, tensors in parts.items()
    }
    return Made(case.id, checksum(sample), kept)


def _light(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """In float32 where the result is of a half type: still far finer than it."""
    half = dtype in FORMATS and FORMATS[dtype].is_half and not dtype.is_complex
    return tensor.float() if half and tensor.dtype == torch.float64 else tensor


def _kept(part: str, tensor: Tensor) -> Tensor:
    """Of an envelope only the size matters."""
    return tensor.bfloat16() if part.endswith("sigma") else tensor


def picked(tensor: Tensor, case: Case) -> Tensor:
    """The elements that are kept of a large tensor; a small one as it is."""
    if tensor.numel() <= MOST:
        return tensor
    generator = torch.Generator().manual_seed(case.seed)
    at = torch.randint(0, tensor.numel(), (MOST,), generator=generator)
    return tensor.reshape(-1)[at]


class Writer:
    """Writes a bundle: lines and shards, as baselines come."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("baseline-*.safetensors"):
            old.unlink()
        self._folder, self._bytes, self._count = folder, 0, 0
        self._tensors: dict[str, Tensor] = {}
        self._manifest: IO[str] = (folder / MANIFEST).open("w", encoding="utf-8")

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._flush()
        self._manifest.close()

    def add(self, made: Made) -> None:
        names: dict[str, tuple[str, ...]] = {}
        parted: list[str] = []
        for part, tensors in made.parts.items():
            names[part] = tuple(
                "" if t is None else self._keep(f"{made.case}:{part}{i}", t, parted)
                for i, t in enumerate(tensors)
            )
        entry = Entry(
            made.case, made.checksum, torch.__version__, self._shard, complex=tuple(parted), **names
        )
        self._manifest.write(json.dumps(asdict(entry)) + "\n")
        if self._bytes > SHARD:
            self._flush()

    @property
    def _shard(self) -> str:
        return f"baseline-{self._count:03}.safetensors"

    def _keep(self, name: str, tensor: Tensor, parted: list[str]) -> str:
        if tensor.is_complex():
            parted.append(name)
            tensor = torch.view_as_real(tensor.to(torch.complex128))
        self._tensors[name] = tensor.clone()
        self._bytes += tensor.numel() * tensor.element_size()
        return name

    def _flush(self) -> None:
        if self._tensors:
            path = self._folder / self._shard
            safetensors.write(path, self._tensors, {"format": "pt", "torch": torch.__version__})
            self._tensors, self._bytes = {}, 0
            self._count += 1


class Bundle:
    """A bundle to read from."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, safetensors.File] = {}

    def check(self) -> None:
        """DeeplinkError unless there is anything to read."""
        if not (self._folder / MANIFEST).is_file():
            raise DeeplinkError(
                f"there are no baselines in {self._folder}.",
                hint="make them with `--mode gen_data`, or run with --recompute.",
            )

    @cached_property
    def entries(self) -> dict[str, Entry]:
        self.check()
        found = {}
        for line in (self._folder / MANIFEST).read_text("utf-8").splitlines():
            fields = json.loads(line)
            for part in (*PARTS, "complex"):
                fields[part] = tuple(fields[part])
            found[fields["case"]] = Entry(**fields)
        return found

    def values(self, entry: Entry, part: str) -> Values:
        """The tensors of one part of a case."""
        if entry.shard not in self._files:
            self._files[entry.shard] = safetensors.File(self._folder / entry.shard)
        file = self._files[entry.shard]
        found: Values = []
        for name in getattr(entry, part):
            tensor = file.get(name) if name else None
            whole = tensor is None or name not in entry.complex
            found.append(tensor if whole or tensor is None else torch.view_as_complex(tensor))
        return found


class Stored(Expected):
    """What a call should give, from a bundle; how the CPU does it is still found out here."""

    def __init__(self, callee: Callee, sample: Sample, bundle: Bundle, case: Case) -> None:
        super().__init__(callee, sample)
        self._bundle, self._case = bundle, case
        self._entry = bundle.entries[case.id]

    def picked(self, tensor: Tensor) -> Tensor:
        return picked(tensor, self._case)

    @cached_property
    def results(self) -> list[Tensor]:
        return [t for t in self._bundle.values(self._entry, "results") if t is not None]

    @cached_property
    def sigma(self) -> Values | None:
        return self._doubled("sigma")

    @cached_property
    def gradients(self) -> Values:
        return self._bundle.values(self._entry, "gradients")

    @cached_property
    def gradient_sigma(self) -> Values | None:
        return self._doubled("gradient_sigma")

    def _doubled(self, part: str) -> Values | None:
        found = self._bundle.values(self._entry, part)
        return [None if t is None else t.double() for t in found] or None


def mismatch(bundle: Bundle, case: Case, sample: Sample) -> str:
    """Why a case cannot be held against the bundle; "" when it can."""
    entry = bundle.entries.get(case.id)
    if entry is None:
        return "no baseline for it"
    if entry.checksum != checksum(sample):
        return f"its arguments are not those of the baseline, which torch {entry.torch} made"
    return ""
