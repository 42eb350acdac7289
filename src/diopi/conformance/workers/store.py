# SPDX-License-Identifier: Apache-2.0
"""Baselines: the expected results of cases, computed on one machine and used on another.

A folder with `manifest.jsonl.gz` (a line for each case: a checksum of its arguments, the location
of its values) and shards of float64 results with the bounds of their errors. Arguments are not
stored: they are recreated from the case's recipe and verified by the checksum. Results that any CPU
computes (in float64, or integers) are not stored either. Equal values are stored once.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from deeplink.errors import DeeplinkError
from deeplink.judge.formats import FORMATS
from deeplink.tensors import bytes_of
from diopi.conformance.cases.case import Case
from diopi.conformance.cases.sample import Callee, Sample
from diopi.conformance.execution.expected import Expected, Values
from diopi.conformance.execution.running import Run
from diopi.conformance.workers import safetensors

MANIFEST = "manifest.jsonl.gz"
MOST, LEAST = 512, 24  # elements of a result that are kept: fewer if there are many results
EDGE, WITHIN = 32, 96  # the first and the last elements, where tails are, and random others
SHARD = 16 << 20  # bytes; the maximum loss of an interruption
KEY = 16  # digits of the checksum of a tensor, which is its name
COMPLEX = "j"  # suffix of the name of a complex tensor, which is stored as its parts
STORED = frozenset({torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex32})

NO_BASELINE = "no baseline"  # start of a reason
PARTS = ("results", "sigma", "gradients", "gradient_sigma")


@dataclass(frozen=True)
class Entry:
    """One line of the manifest; per part its tensors as `shard.key`, "" where there is none."""

    case: str
    checksum: str
    torch: str
    results: tuple[str, ...] = ()
    sigma: tuple[str, ...] = ()
    gradients: tuple[str, ...] = ()
    gradient_sigma: tuple[str, ...] = ()


@dataclass(frozen=True)
class Baseline:
    """The baseline of one case, before it is stored."""

    case: str
    checksum: str
    parts: dict[str, list[Tensor | None]]


def checksum(sample: Sample) -> str:
    """Hash all bytes of the arguments, with a single representation of NaN."""
    digest = hashlib.sha256()
    for tensor in sample.tensors:
        plain = tensor.detach().resolve_conj().resolve_neg()
        if plain.layout != torch.strided:
            plain = plain.to_dense()
        if plain.is_floating_point() and plain.isnan().any():
            plain = torch.where(plain.isnan(), torch.full_like(plain, torch.nan), plain)
        digest.update(f"{plain.dtype}{list(plain.shape)}".encode())
        digest.update(bytes_of(plain))
    return digest.hexdigest()[:32]


def make(case: Case, callee: Callee, sample: Sample) -> Baseline:
    """Compute the baseline of a case; raises what the CPU raises."""
    expected = Expected(callee, sample)
    plain = expected.plain
    places, types = _places(case, plain), [t.dtype for t in plain.tensors]
    parts: dict[str, list[Tensor | None]] = {}
    if any(dtype in STORED for dtype in types):
        parts["results"] = _stored_form(list(expected.results), types, places)
        parts["sigma"] = _stored_form(expected.sigma or [], types, places, True)
    types = [leaf.dtype for leaf in plain.leaves]
    if plain.roots and any(dtype in STORED for dtype in types):
        try:
            parts["gradients"] = _stored_form(expected.gradients, types, places)
            parts["gradient_sigma"] = _stored_form(
                expected.gradient_sigma or [], types, places, True
            )
        except Exception:  # limits of the CPU: without gradients then
            parts.pop("gradients", None)
    return Baseline(case.id, checksum(sample), parts)


def _stored_form(
    values: Values, types: list[torch.dtype], places: _Places, coarse: bool = False
) -> list[Tensor | None]:
    """Return the stored form of some values; an envelope is stored in low precision."""
    return [
        None if tensor is None or dtype not in STORED else _light(places.of(tensor), dtype, coarse)
        for tensor, dtype in zip(values, types, strict=False)
    ]


def _light(tensor: Tensor, dtype: torch.dtype, coarse: bool) -> Tensor:
    """Convert to float32 if the result is of a half type: still far more precise than it."""
    if coarse:
        return tensor.bfloat16()
    narrower = {torch.float64: torch.float32, torch.complex128: torch.complex64}
    half = dtype in FORMATS and FORMATS[dtype].is_half
    return tensor.to(narrower.get(tensor.dtype, tensor.dtype)) if half else tensor


@dataclass(frozen=True)
class _Places:
    """The elements of a case's results and gradients that are kept."""

    seed: int
    most: int

    def of(self, tensor: Tensor) -> Tensor:
        """Select the kept elements of a large tensor; return a small one unchanged."""
        count = tensor.numel()
        if count <= self.most:
            return tensor
        edge, within = min(EDGE, self.most // 4), min(WITHIN, self.most // 2)
        generator = torch.Generator().manual_seed(self.seed)
        chance = torch.randint(0, count, (within,), generator=generator)
        edges = torch.arange(edge)
        return tensor.reshape(-1)[torch.cat([edges, chance, count - edge + edges])]


def _places(case: Case, plain: Run) -> _Places:
    tensors = max(1, len(plain.tensors), len(plain.leaves))
    return _Places(case.seed, max(LEAST, MOST // tensors))


class Writer:
    """Writes a bundle shard by shard with the manifest lines of each; can resume one."""

    def __init__(self, folder: Path, resume: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._bytes, self._count = folder, 0, 0
        self._tensors: dict[str, Tensor] = {}
        self._known: dict[str, str] = {}  # by key
        self._lines: list[str] = []
        self.done: list[str] = []  # the cases that were stored before
        if resume and (folder / MANIFEST).is_file():
            self._read()
        else:
            for old in (*folder.glob(_shard("*")), folder / MANIFEST):
                old.unlink(missing_ok=True)

    def _read(self) -> None:
        for entry in Bundle(self._folder).entries.values():
            self.done.append(entry.case)
            for name in (name for part in PARTS for name in getattr(entry, part) if name):
                number, _, key = name.partition(".")
                self._known[key] = name
                self._count = max(self._count, int(number) + 1)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._flush()

    def add(self, made: Baseline) -> None:
        names = {
            part: tuple("" if t is None else self._keep(t) for t in tensors)
            for part, tensors in made.parts.items()
        }
        entry = Entry(made.case, made.checksum, torch.__version__, **names)
        self._lines.append(json.dumps(asdict(entry)) + "\n")
        if self._bytes > SHARD:
            self._flush()

    def _keep(self, tensor: Tensor) -> str:
        ending = COMPLEX if tensor.is_complex() else ""
        if ending:
            tensor = torch.view_as_real(tensor.resolve_conj())
        data = f"{tensor.dtype}{list(tensor.shape)}{ending}".encode() + bytes_of(tensor)
        key = hashlib.sha256(data).hexdigest()[:KEY] + ending
        if key not in self._known:
            self._known[key] = f"{self._count}.{key}"
            self._tensors[key] = tensor.clone()
            self._bytes += tensor.numel() * tensor.element_size()
        return self._known[key]

    def _flush(self) -> None:
        if self._tensors:
            path = self._folder / _shard(f"{self._count:03}")
            safetensors.write(path, self._tensors, {"format": "pt", "torch": torch.__version__})
            self._tensors, self._bytes = {}, 0
            self._count += 1
        # after their shard: an interruption leaves no line without its values
        with gzip.open(self._folder / MANIFEST, "at", encoding="utf-8") as manifest:
            manifest.writelines(self._lines)
        self._lines.clear()


def _shard(number: str) -> str:
    return f"baseline-{number}.safetensors"


class Bundle:
    """A bundle for reading."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, safetensors.File] = {}

    def check(self) -> None:
        """Raise DeeplinkError if the bundle is empty."""
        if not (self._folder / MANIFEST).is_file():
            raise DeeplinkError(
                f"there are no baselines in {self._folder}.",
                hint="make them with `--mode gen_data`, or run with --recompute.",
            )

    @cached_property
    def entries(self) -> dict[str, Entry]:
        self.check()
        found = {}
        with gzip.open(self._folder / MANIFEST, "rt", encoding="utf-8") as file:
            for line in file:
                fields = json.loads(line)
                for part in PARTS:
                    fields[part] = tuple(fields[part])
                found[fields["case"]] = Entry(**fields)
        return found

    def values(self, entry: Entry, part: str) -> Values:
        """Return the tensors of one part of a case, None for those that are not stored."""
        return [self._get(name) if name else None for name in getattr(entry, part)]

    def _get(self, name: str) -> Tensor:
        number, _, key = name.partition(".")
        if number not in self._files:
            self._files[number] = safetensors.File(self._folder / _shard(f"{int(number):03}"))
        tensor = self._files[number].get(key)
        return torch.view_as_complex(tensor) if key.endswith(COMPLEX) else tensor


class Stored(Expected):
    """The expected results of a call from a bundle; the CPU's own run is computed here."""

    def __init__(self, callee: Callee, sample: Sample, bundle: Bundle, case: Case) -> None:
        super().__init__(callee, sample)
        self._bundle, self._case = bundle, case
        self._entry = bundle.entries[case.id]
        self._here = Expected(callee, sample)

    @cached_property
    def _places(self) -> _Places:
        return _places(self._case, self.plain)

    def picked(self, tensor: Tensor) -> Tensor:
        return self._places.of(tensor) if tensor.dtype in STORED else tensor

    @cached_property
    def results(self) -> list[Tensor]:
        found = self._merged("results", self.plain.tensors, lambda: list(self._here.results))
        return [tensor for tensor in found or [] if tensor is not None]

    @cached_property
    def sigma(self) -> Values | None:
        return self._merged("sigma", self.plain.tensors, lambda: self._here.sigma)

    @cached_property
    def gradients(self) -> Values:
        return self._merged("gradients", self.plain.leaves, lambda: self._here.gradients) or []

    @cached_property
    def gradient_sigma(self) -> Values | None:
        return self._merged("gradient_sigma", self.plain.leaves, lambda: self._here.gradient_sigma)

    def _merged(
        self, part: str, like: list[Tensor], here: Callable[[], Values | None]
    ) -> Values | None:
        """Return the stored values, and compute those that are not stored."""
        stored = self._bundle.values(self._entry, part)
        if part.endswith("sigma"):
            stored = [None if t is None else t.double() for t in stored]
        mine = [tensor.dtype in STORED for tensor in like]
        if stored and all(mine):
            return stored
        computed = here()
        if computed is None:
            return None
        rows = zip(mine, computed, stored or [None] * len(computed), strict=False)
        return [self._one(*row) for row in rows]

    def _one(self, is_stored: bool, value: Tensor | None, kept: Tensor | None) -> Tensor | None:
        if value is None or not is_stored:
            return value
        return self._places.of(value) if kept is None else kept


def mismatch(bundle: Bundle, case: Case, sample: Sample) -> str:
    """Return why a case cannot be compared with the bundle; "" when it can."""
    entry = bundle.entries.get(case.id)
    if entry is None:
        return f"{NO_BASELINE} for it"
    if entry.checksum != checksum(sample):
        return f"{NO_BASELINE} of these arguments; torch {entry.torch} made others"
    return ""
