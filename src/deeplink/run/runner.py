# SPDX-License-Identifier: Apache-2.0
"""`run [tools] train.py …`: run an unchanged program under the requested operator tools.

Three commands share it: `deeplink run`, `python -m ditorch run` and `python -m op_tools run`. The
request is written to the environment, so processes that the program starts have the tools, too.
"""

from __future__ import annotations

import builtins
import os
import runpy
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from importlib.metadata import entry_points
from pathlib import Path
from types import TracebackType
from typing import Self

from deeplink import settings
from deeplink.console import console
from deeplink.errors import DeeplinkError, SettingError
from deeplink.i18n import _
from deeplink.run.program import Program

# Launchers: they start the processes that do the work, and call no operators themselves.
LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
GROUP = "deeplink.autoload"
Stop = Callable[[], None]


@dataclass(frozen=True)
class Request:
    """A parsed command line: a program, and the tools and settings for it."""

    program: str
    is_module: bool
    arguments: tuple[str, ...]
    values: dict[str, str]  # settings
    python: tuple[str, ...] = ()  # options of the interpreter
    fail_on: tuple[str, ...] = ()  # kinds of findings that make the exit code 1

    @classmethod
    def of(cls, program: Program, values: dict[str, str], fail_on: tuple[str, ...] = ()) -> Self:
        """Build the request for a script or a module."""
        module = program.kind == "module"
        return cls(program.name, module, program.arguments, values, program.python, fail_on)

    @property
    def vendor(self) -> str:
        """The vendor of `--vendor`; "" where the option was not given."""
        return self.values.get(settings.DEEPLINK_VENDOR.name, "")

    @property
    def watched(self) -> bool:
        """Whether tools are to be started in this process."""
        asked = settings.OP_TOOLS_RUN.name in self.values
        return asked and not (self.is_module and self.program in LAUNCHERS)


def run(request: Request, start: Callable[[], Stop] | None = None) -> None:
    """Run the program under the tools and exit with its exit code.

    `start` starts the tools that OP_TOOLS_RUN names; default: the entry point of op_tools.
    """
    settings.watch_children(request.values)
    with errors_as_text():
        stop = (start or _registered())() if request.watched else None
    try:
        if request.is_module:
            execute("-m", request.program, *request.arguments)
        else:
            execute(request.program, *request.arguments)
    except Exception as error:
        trace = own_frames(error.__traceback__)
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        raise SystemExit(1) from None
    finally:
        if stop is not None:
            stop()


@contextmanager
def errors_as_text() -> Iterator[None]:
    """Print an error of this project as text and exit with status 2, without a traceback."""
    try:
        yield
    except DeeplinkError as error:
        console(stderr=True).print(str(error), style="red", soft_wrap=True)
        sys.exit(2)


def execute(first: str, *rest: str) -> None:
    """Run what `python FIRST REST` runs, a script or `-m module`, as `__main__` of this process.

    `__file__`, `sys.argv` and `sys.path[0]` get the values that Python itself sets.
    """
    here = os.getcwd()
    if sys.path[:1] in ([here], [""]):  # entry of the `python -m` that started this process
        del sys.path[0]
    if first == "-m":
        sys.argv = list(rest)
        _put_first(here)
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        return
    sys.argv = [first, *rest]
    file = os.path.join(here, first)  # not normalised: Python keeps "./" and ".." too
    _put_first(os.path.dirname(os.path.realpath(file)))
    loader = SourceFileLoader("__main__", file)
    main = types.ModuleType("__main__")
    vars(main).update(
        __annotations__={},
        __builtins__=builtins,
        __cached__=None,
        __file__=file,
        __loader__=loader,
    )
    code = loader.source_to_code(Path(file).read_bytes(), file)
    sys.modules["__main__"] = main
    exec(code, vars(main))


def _put_first(folder: str) -> None:
    if not sys.flags.safe_path:  # python -P adds no folder
        sys.path.insert(0, folder)


def own_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return a program's traceback without the frames of the starter and the tools."""
    while trace is not None and trace.tb_frame.f_code.co_filename in _STARTERS:
        trace = trace.tb_next
    at = trace
    while at is not None:
        while at.tb_next is not None and _is_tools(at.tb_next):
            at.tb_next = at.tb_next.tb_next
        at = at.tb_next
    return trace


def _is_tools(trace: TracebackType) -> bool:
    return trace.tb_frame.f_code.co_filename.startswith(_TOOLS_FOLDER)


_STARTERS = (
    *(__file__, str(Path(__file__).with_name("fork_server.py"))),
    *(runpy.__file__, "<frozen runpy>"),
    *("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>"),
)
_TOOLS_FOLDER = str(Path(__file__).parents[2] / "op_tools")


def _registered() -> Callable[[], Stop]:
    for point in entry_points(group=GROUP, name="op_tools"):
        found: Callable[[], Stop] = point.load()
        return found
    raise SettingError(
        _("the operator tools are not registered in this environment."),
        _("install the package anew (`make setup`, or `pip install -e .`)."),
    )
