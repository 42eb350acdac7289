# SPDX-License-Identifier: Apache-2.0
"""Selection of operators and models: by names, or by a file of cases."""

from __future__ import annotations

import configparser
import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch

from deeplink.errors import DeeplinkError
from deeplink.i18n import _
from dicp.backend import GraphCompiler
from dicp.conformance import overloads
from dicp.conformance.models import MODELS, PLAIN

KEYS = ("ops", "models", "dtypes")
TEST_FILE = re.compile(r"(?:test_)?(.+?)(?:\.py)?")
# names of test files that differ from the model's name
ALIASES = {"stable_diffusion": "diffusion unet"}
NAMES = (*PLAIN, *MODELS)


@dataclass(frozen=True)
class Cases:
    """The selected names, as written."""

    ops: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()


def read(path: Path) -> Cases:
    """Read the cases of a TOML file, or of an INI file with a section [cases] or [pytest]."""
    try:
        text = path.read_text("utf-8")
        if path.suffix == ".toml":
            return _cases(path, tomllib.loads(text))
        parser = configparser.ConfigParser()
        parser.read_string(text)
    except (OSError, ValueError, configparser.Error) as error:
        raise DeeplinkError(f"cannot read cases from {path}: {error}.") from error
    found: dict[str, list[str]] = {}
    for section in parser.sections():
        for key, value in parser[section].items():
            if section == "pytest" and key == "python_files":
                for name in value.split():
                    kind, plain = _of_test_file(name)
                    found.setdefault(kind, []).append(plain)
            elif section != "pytest":
                found.setdefault(key, []).extend(_parts(value))
    return _cases(path, found)


def _parts(value: str) -> list[str]:
    """Split names on lines of their own, or between commas: a model's name may contain a space."""
    return [part.strip() for part in re.split(r"[,\n]", value) if part.strip()]


def _of_test_file(name: str) -> tuple[str, str]:
    """Parse `test__softmax.py` to ("ops", "_softmax"), `test_llama.py` to ("models", "llama")."""
    match = TEST_FILE.fullmatch(name)
    plain = match[1] if match else name
    model = ALIASES.get(plain, plain.replace("_", " "))
    return ("models", model) if model in NAMES else ("ops", plain)


def _cases(path: Path, found: Mapping[str, Any]) -> Cases:
    unknown = [key for key in found if key not in KEYS]
    if unknown:
        raise DeeplinkError(f"{path} has {unknown[0]!r}; allowed: {', '.join(KEYS)}.")
    for key, value in found.items():
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise DeeplinkError(f"{path}: {key} is {value!r}; allowed: a list of names.")
    return Cases(**{key: tuple(value) for key, value in found.items()})


def operators(backend: GraphCompiler) -> list[Any]:
    """Return the operators that a backend converts, without arithmetic of sizes."""
    found = [t for t in backend.conversions if isinstance(t, torch._ops.OpOverload)]
    return sorted((t for t in found if t is not torch.ops.aten.sym_size.int), key=str)


def chosen_operators(backend: GraphCompiler, names: Sequence[str]) -> list[Any]:
    """Return the overloads that names match (`_softmax`, `aten.add.Tensor`, `aten.max_*`): among
    those that the backend converts, else among core ATen, which then stay eager.
    """
    own = {str(target): target for target in operators(backend)}
    core = {str(target): target for target in overloads.core()}
    found: dict[str, Any] = {}
    for name in names:
        found |= _meant(name, own) or _meant(name, core) or _beyond(name, {**core, **own})
    return list(found.values())


def _meant(name: str, known: Mapping[str, Any]) -> dict[str, Any]:
    return {text: target for text, target in known.items() if _means(name, text)}


def _means(name: str, text: str) -> bool:
    space, base, overload = text.split(".", 2)
    spellings = (text, f"{space}.{base}", f"{base}.{overload}", base)
    return any(fnmatch(spelling, name) for spelling in spellings)


def _beyond(name: str, known: Iterable[str]) -> dict[str, Any]:
    """Return the overloads of an ATen operator that is neither converted nor core."""
    base = name.removeprefix("aten.").partition(".")[0]
    packet = getattr(torch.ops.aten, base, None) if base.isidentifier() else None
    if packet is None:
        bases = sorted({text.split(".")[1] for text in known})
        close = difflib.get_close_matches(base, bases, n=1)
        hint = f"did you mean {close[0]!r}?" if close else "`--list` shows all operators."
        raise DeeplinkError(_("no operator {name!r} in torch.ops.aten.").format(name=name), hint)
    targets = [getattr(packet, overload) for overload in packet.overloads() if overload != "out"]
    return {str(target): target for target in targets}


def chosen_models(names: Sequence[str]) -> list[str]:
    """Return the models that names match; raise DeeplinkError where one matches none."""
    found: list[str] = []
    for name in names:
        hits = [model for model in NAMES if fnmatch(model, name)]
        if not hits:
            close = difflib.get_close_matches(name, NAMES, n=1)
            hint = f"did you mean {close[0]!r}?" if close else ""
            raise DeeplinkError(
                _("no model {name!r}; there are: {names}.").format(
                    name=name, names=", ".join(NAMES)
                ),
                hint,
            )
        found += [model for model in hits if model not in found]
    return found
