# SPDX-License-Identifier: Apache-2.0
"""The environment of this process and of those that it starts: what is written, and other
programs' variables.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from deeplink.settings.file import reload_file
from deeplink.settings.kinds import Setting
from deeplink.settings.rows import DEEPLINK_VENDOR, DITORCH, DITORCH_QUIET


@contextmanager
def asking_for(vendor: str) -> Iterator[None]:
    """Set DEEPLINK_VENDOR inside the block, for the processes that it starts too; "": no change.

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
    """Set DITORCH_QUIET inside the block, for the processes that it starts too; else no change."""
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
    """DITORCH is on in processes started from here (torchrun's workers, spawned ones), unless the
    environment says otherwise.
    """
    os.environ.setdefault(DITORCH.name, "1")


@contextmanager
def activated_children() -> Iterator[None]:
    """`activate_children` for the processes that the block starts."""
    before = os.environ.get(DITORCH.name)
    activate_children()
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(DITORCH.name, None)


def watch_children(values: Mapping[str, str]) -> None:
    """Settings of op_tools in this process and in those started from here."""
    os.environ.update(values)


def environment(values: Mapping[str, str], without: Sequence[str] = ()) -> dict[str, str]:
    """The environment of a process that is to have these settings, and the default of those
    `without`, whatever the environment and the settings file say.
    """
    return {**os.environ, **dict.fromkeys(without, ""), **values}


def become(values: Mapping[str, str]) -> None:
    """This process has the environment that another one was to have."""
    os.environ.clear()
    os.environ.update(values)
    reload_file()


_WATCHED: dict[str, list[Callable[[], None]]] = {}


def watch(setting: Setting[Any], changed: Callable[[], None]) -> None:
    """Calls `changed` after this program sets or unsets the variable by `os.environ`."""
    _WATCHED.setdefault(setting.name, []).append(changed)
    if type(os.environ) is not _Watched:
        os.environ.__class__ = _Watched


class _Watched(type(os.environ)):  # type: ignore[misc]  # os._Environ has no public name
    """The environment, telling who asked of changes; reading it costs what it did."""

    def __setitem__(self, name: str, value: str) -> None:
        super().__setitem__(name, value)
        for changed in _WATCHED.get(name, ()):
            changed()

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        for changed in _WATCHED.get(name, ()):
            changed()


def hide_cuda() -> None:
    """Keeps CUDA's devices from this process, by a variable that is not ours: CUDA reads it when
    it starts, and offers no other way.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def leave_out_amx() -> str:
    """Keeps oneDNN from AMX in processes started from here, by a variable of oneDNN's own that a
    user's value goes before; returns the assignment.
    """
    name = "ONEDNN_MAX_CPU_ISA"
    return f"{name}={os.environ.setdefault(name, 'AVX512_CORE_FP16')}"


def columns() -> int:
    """The width that the environment gives to what is printed; 0 when it gives none."""
    text = os.environ.get("COLUMNS", "")
    return int(text) if text.isdigit() else 0


def locale() -> str:
    """The name of the locale of messages, such as zh_CN.UTF-8; "" where the environment has none.

    The variables are those of POSIX: the first one that is not empty counts.
    """
    names = map(os.environ.get, ("LC_ALL", "LC_MESSAGES", "LANG"))
    return next(filter(None, names), "")


def rank() -> int:
    """The rank that a launcher gave this process, by torchrun's variable; 0 without one."""
    return int(os.environ.get("RANK", "0") or 0)


def world() -> int:
    """How many ranks a launcher started, by torchrun's variable; 1 without one."""
    return int(os.environ.get("WORLD_SIZE", "1") or 1)


def label() -> str:
    """Free text in the name of the process monitor's file, by the classic variable `label`."""
    return os.environ.get("label", "")  # noqa: SIM112 (as the classic tools write it)


def local_world_size() -> int:
    """How many ranks a launcher started on this host, by torchrun's variable; 1 without one."""
    return max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1") or 1))
