# SPDX-License-Identifier: Apache-2.0
"""What `--kernels SPEC` and the options with it request, in a form that a worker process gets."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from deeplink.errors import DeeplinkError

DEVICES = ("cpu", "cuda", "dipu")


@dataclass(frozen=True)
class Spec:
    """Kernels of someone else, and how to run them."""

    source: str  # a file, a folder, a module, or `module:object`
    device: str = ""  # "": cuda where there is one, else cpu
    interpret: bool = False  # Triton's interpreter runs the kernels on the CPU
    maps: tuple[tuple[str, str], ...] = ()  # function -> op, as the user states
    allow_torch: bool = False  # a kernel may call torch's own operator

    def __post_init__(self) -> None:
        if self.device and self.device not in DEVICES:
            raise DeeplinkError(
                f"no device {self.device!r}; allowed: {', '.join(DEVICES)}.",
                "leave --device out to use cuda where there is one, else the CPU.",
            )
        if self.interpret and self.device not in ("", "cpu"):
            raise DeeplinkError(
                f"--interpret runs Triton on the CPU, and --device is {self.device}.",
                "leave one of the two out.",
            )

    @property
    def name(self) -> str:
        """The name in tables and of pages: that of the file or folder, else of the module."""
        path = Path(self.source)
        return path.resolve().name if path.exists() else self.source.replace("/", ".")

    @property
    def words(self) -> str:
        """The words of a command line that requests these kernels."""
        words = ["--kernels", self.source]
        words += ["--device", self.device] if self.device else []
        words += ["--interpret"] if self.interpret else []
        for function, op in self.maps:
            words += ["--map", f"{function}={op}"]
        words += ["--allow-torch"] if self.allow_torch else []
        return shlex.join(words)

    def fields(self) -> dict[str, Any]:
        """Return the fields in a form for JSON."""
        return asdict(self)


def of_fields(fields: Mapping[str, Any]) -> Spec:
    """Return the Spec of fields that were JSON."""
    maps = tuple((str(function), str(op)) for function, op in fields["maps"])
    return Spec(**{**fields, "maps": maps})


def parse_maps(words: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Parse the words of `--map function=operator`."""
    found = []
    for word in words:
        function, equals, op = word.partition("=")
        if not (function and equals and op):
            raise DeeplinkError(
                f"--map {word!r} is not function=operator.", "as --map my_kernel=softmax."
            )
        found.append((function, op))
    return tuple(found)
