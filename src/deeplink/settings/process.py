# SPDX-License-Identifier: Apache-2.0
"""The environment of this process and its children: variables written,
and those of other programs.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from deeplink.settings.file import reload_file
from deeplink.settings.kinds import Setting
from deeplink.settings.rows import DEEPLINK_VENDOR, DITORCH, DITORCH_QUIET


@contextmanager
def selecting_vendor(vendor: str) -> Iterator[None]:
    """Set DEEPLINK_VENDOR inside the block, for child processes too; "": no change.

    Does not check the name: `deeplink.vendor.using` does.
    """
    if not vendor:
        yield
        return
    before = os.environ.get(DEEPLINK_VENDOR.name)
    os.environ[DEEPLINK_VENDOR.name] = vendor
    try:
        yield
    finally:
        os.environ.pop(DEEPLINK_VENDOR.name)
        if before is not None:
            os.environ[DEEPLINK_VENDOR.name] = before


@contextmanager
def quiet(on: bool) -> Iterator[None]:
    """Set DITORCH_QUIET inside the block, for child processes too; no change when `on` is False."""
    before = os.environ.get(DITORCH_QUIET.name)
    if on:
        os.environ[DITORCH_QUIET.name] = "1"
    try:
        yield
    finally:
        if on:
            os.environ.pop(DITORCH_QUIET.name)
        if on and before is not None:
            os.environ[DITORCH_QUIET.name] = before


def activate_children() -> None:
    """Activate ditorch in child processes (torchrun's workers, spawned ones), unless the
    environment
    sets DITORCH.
    """
    os.environ.setdefault(DITORCH.name, "1")


@contextmanager
def activated_children() -> Iterator[None]:
    """Activate ditorch in the child processes that the block starts."""
    before = os.environ.get(DITORCH.name)
    activate_children()
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(DITORCH.name, None)


def watch_children(values: Mapping[str, str]) -> None:
    """Set variables of op_tools in this process and its children."""
    os.environ.update(values)


def environment(values: Mapping[str, str], without: Sequence[str] = ()) -> dict[str, str]:
    """Return the environment for a child process with these settings, and with the default of those
    in
    `without`, whatever the environment and the settings file contain.
    """
    return {**os.environ, **dict.fromkeys(without, ""), **values}


def become(values: Mapping[str, str]) -> None:
    """Replace the environment of this process by one that `environment` computed."""
    os.environ.clear()
    os.environ.update(values)
    reload_file()


_WATCHED: dict[str, list[Callable[[], None]]] = {}


def watch(setting: Setting[Any], changed: Callable[[], None]) -> None:
    """Call `changed` after this program sets or unsets the variable through `os.environ`."""
    _WATCHED.setdefault(setting.name, []).append(changed)
    if type(os.environ) is not _Watched:
        os.environ.__class__ = _Watched


class _Watched(type(os.environ)):  # type: ignore[misc]  # os._Environ has no public name
    """os.environ with change callbacks; reading it has no extra cost."""

    def __setitem__(self, name: str, value: str) -> None:
        super().__setitem__(name, value)
        for changed in _WATCHED.get(name, ()):
            changed()

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        for changed in _WATCHED.get(name, ()):
            changed()


def hide_cuda() -> None:
    """Hide CUDA's devices from this process by CUDA's own variable, which CUDA reads at start-up.

    CUDA has no other interface for this.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def interpret_triton() -> Callable[[], None]:
    """Make Triton interpret kernels, by Triton's own variable, also in child processes.

    Triton reads it at each definition of a kernel, its own kernels included. Return the undo.
    """
    name = "TRITON_INTERPRET"
    before = os.environ.get(name)
    os.environ[name] = "1"

    def undo() -> None:
        os.environ.pop(name, None)
        if before is not None:
            os.environ[name] = before

    return undo


def leave_out_amx() -> str:
    """Disable AMX for oneDNN in child processes unless the user set oneDNN's variable.

    Return the assignment as text.
    """
    name = "ONEDNN_MAX_CPU_ISA"
    return f"{name}={os.environ.setdefault(name, 'AVX512_CORE_FP16')}"


def columns() -> int:
    """Return the terminal width that the environment sets; 0 when it sets none."""
    text = os.environ.get("COLUMNS", "")
    return int(text) if text.isdigit() else 0


def locale() -> str:
    """The name of the locale of messages, such as zh_CN.UTF-8; "" where the environment has none.

    The variables are those of POSIX: the first one that is not empty counts.
    """
    names = map(os.environ.get, ("LC_ALL", "LC_MESSAGES", "LANG"))
    return next(filter(None, names), "")


def rank() -> int:
    """Return the rank of this process from torchrun's variable; 0 without one."""
    return int(os.environ.get("RANK", "0") or 0)


def world() -> int:
    """Return the number of ranks from torchrun's variable; 1 without one."""
    return int(os.environ.get("WORLD_SIZE", "1") or 1)


def label() -> str:
    """Return the variable `label`, free text for the name of the process monitor's file."""
    return os.environ.get("label", "")  # noqa: SIM112 (as the classic tools write it)


def local_world_size() -> int:
    """How many ranks a launcher started on this host, by torchrun's variable; 1 without one."""
    return max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1") or 1))
