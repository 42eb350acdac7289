# SPDX-License-Identifier: Apache-2.0
"""Libraries of inductor's graphs for the CPU: a stored library is loaded in a later process without
inductor itself, whose import alone takes a second.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import fx

START, CALL, END = "cpp_wrapper_src = (", "def _wrap_func(", "call = _wrap_func(inductor_entry)\n"
HEAD = {"", "import torch", "from torch._inductor.codecache import CppWrapperCodeCache"}
CPUINFO = Path("/proc/cpuinfo")
CUSTOM = (  # passes of the program in inductor's settings, which have no stable text
    "post_grad_custom_pre_pass", "post_grad_custom_post_pass", "joint_custom_pre_pass",
    "joint_custom_post_pass", "pre_grad_custom_pass", "_pre_fusion_custom_pass",
)  # fmt: skip


@dataclass(frozen=True)
class Library:
    """A compiled graph: the bytes of the library, and the source of a function for its entry."""

    code: bytes
    text: str


@dataclass
class Watch:
    """Records `inductor`'s result for one graph,
    which is passed to `wanted` before it is compiled.
    """

    wanted: Callable[[fx.GraphModule], bool]
    library: Library | None = None


@contextmanager
def watched(watch: Watch | None) -> Iterator[dict[str, Any]]:
    """Yield the settings of inductor that let a graph be recorded.

    torch's cache of AOTAutograd is off in the block, so that every graph is seen; inductor's own
    cache is still used.
    """
    from torch._functorch import config as functorch
    from torch._inductor.compile_fx import compile_fx_inner

    if watch is None:
        yield {}
        return
    seen = 0

    def compile_graph(graph: fx.GraphModule, given: Any, **known: Any) -> Any:
        nonlocal seen
        seen += 1
        wanted = watch.wanted(graph)  # before compiling: inductor modifies the graph
        made = compile_fx_inner(graph, given, **known)
        watch.library = _library(made) if wanted and seen == 1 else None
        return made

    with functorch.patch(enable_autograd_cache=False):
        yield {"inner_compile": compile_graph}


def _library(made: Any) -> Library | None:
    """Return the library of a compiled graph, if it consists of a library alone."""
    from torch._inductor.codecache import PyCodeCache

    unset = ("constants", "frozen_param_names", "torchbind_constants", "mutated_input_idxs",
             "opaque_value_type_classes", "inputs_to_check", "_wrap_compiled_regions")  # fmt: skip
    text = getattr(made, "source_code", "")
    head, _, rest = text.partition(START)
    parts = rest.partition(CALL)[2].partition(END)
    if not parts[1] or not set(head.splitlines()) <= HEAD:
        return None
    if any(getattr(made, name, None) for name in unset):
        return None
    modules = [m for m in PyCodeCache.modules if getattr(m, "key", "") == made.cache_key]
    entry = getattr(modules[-1], "inductor_entry", None) if modules else None
    file = getattr(getattr(entry, "__self__", None), "__file__", None)
    return None if file is None else Library(Path(file).read_bytes(), CALL + parts[0] + END)


def open_library(file: Path, text: str) -> Callable[[list[Any]], list[Any]]:
    """Return the function of a library, which takes ownership of its argument list.

    Raise ImportError or OSError where the file was not built for this machine.
    """
    from torch._inductor.codecache import CppWrapperCodeCache

    module: Any = CppWrapperCodeCache._load_library(str(file), file.stem)
    scope = {"torch": torch, "inductor_entry": module.inductor_entry_cpp}
    exec(text, scope)  # inductor's own lines
    made: Callable[[list[Any]], list[Any]] = scope["call"]
    return made


def state_of_inductor() -> str | None:
    """Return the state on which inductor's code for this CPU depends, in addition to the graph;
    None
    where it has no text.
    """
    from torch._functorch import config as functorch
    from torch._inductor import config

    if any(getattr(config, name, None) is not None for name in CUSTOM):
        return None
    settings = [sorted(part.save_config_portable().items()) for part in (config, functorch)]
    running = torch.get_num_threads(), torch.backends.mkldnn.enabled, torch.version.git_version
    told = repr((settings, running, _processor()))
    return None if " at 0x" in told else told


@cache
def _processor() -> tuple[str, ...]:
    """Return the instruction sets that code for this machine may use."""
    known = platform.machine(), platform.processor(), torch.backends.cpu.get_cpu_capability()
    if not CPUINFO.exists():
        return known
    with CPUINFO.open() as lines:
        flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return (*known, flags)
