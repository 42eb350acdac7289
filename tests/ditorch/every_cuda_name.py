"""Call every public function of torch.cuda under ditorch, in this process; print what each did."""

from __future__ import annotations

import importlib
import inspect
import json
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.cuda.gds

import ditorch
from deeplink.errors import DeeplinkError
from ditorch import cuda_namespace, table

# Arguments by the name of the parameter, where the default or a device does not serve.
ARGUMENTS: dict[str, Any] = {
    "device": 0,
    "peer_device": 1,
    "seed": 7,
    "size": 1024,
    "fraction": 0.5,
    "new_state": lambda: torch.cuda.get_rng_state(0),
    "new_states": lambda: torch.cuda.get_rng_state_all(),
    "obj": lambda: torch.ones(1, device="cuda"),
    "stream": lambda: torch.cuda.current_stream(),
    "callable": lambda: lambda: None,
    "callables": lambda: torch.nn.Linear(2, 2).cuda(),
    "sample_args": lambda: (torch.ones(1, 2, device="cuda"),),
    "msg": "text",
    "res": 0,
    "debug_mode": 0,
    "filename": str(Path(sys.argv[1]) / "file"),
    "path": str(Path(sys.argv[1]) / "file"),
    "mem_ptr": lambda: torch.cuda.caching_allocator_alloc(1024, 0),
    "data_ptr": 0,
    "stream_id": 0,
    "device_index": 0,
    "device_type": int(torch.ones(1, device="cuda").device.index or 0),
}


def arguments(function: Any) -> dict[str, Any]:
    """The arguments that a call needs."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {}
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
    needed = [p for p in parameters if p.default is p.empty and p.kind in named]
    made = {}
    for parameter in needed:
        value = ARGUMENTS.get(parameter.name, 0)
        made[parameter.name] = value() if inspect.isfunction(value) else value
    return made


def expected(name: str) -> str:
    """What the table promises for the name, as `deeplink coverage` reports it."""
    row, session = table.find(name), ditorch.current()
    assert row is not None and session is not None and session.target is not None
    return "unsupported" if cuda_namespace.missing(row, session.target) == "" else "works"


def attempt(function: Any) -> str:
    """Call a function: "works", "unsupported", or the error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function(**arguments(function))
    except DeeplinkError as error:
        return "unsupported" if error.hint else f"no hint: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "works"


def names() -> list[str]:
    """The public functions and classes of torch.cuda that the table has, and its other names."""
    found = [name for name in table.rows() if not name.rpartition(".")[2].startswith("_")]
    return found + [name for name in torch.cuda.__all__ if name not in found]


def main() -> None:
    for name in names():
        module, _, last = name.rpartition(".")
        try:
            owner = importlib.import_module(f"torch.cuda.{module}".rstrip("."))
        except ImportError:
            continue
        value = getattr(owner, last, None)
        if not callable(value) or isinstance(value, ModuleType):
            continue
        print(json.dumps([name, "the process ended", ""]), flush=True)  # a crash has a name
        print(json.dumps([name, attempt(value), expected(name)]), flush=True)


if __name__ == "__main__":
    assert ditorch.current() is not None
    main()
