"""`run [tools] train.py …`: a program as it is, watched by the operator tools that were asked for.

Three commands share it: `deeplink run`, `python -m ditorch run` and `python -m op_tools run`. What
is asked for goes into the environment, so processes that the program starts are watched too.
"""

from __future__ import annotations

import argparse
import builtins
import os
import runpy
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from importlib.metadata import entry_points
from pathlib import Path
from types import TracebackType
from typing import Any

from deeplink import settings
from deeplink.errors import DeeplinkError, SettingError
from deeplink.table import console

# A tool by its option: the word of its settings, its arguments in the help, and what it does.
TOOLS = {
    "capture": ("CAPTURE", "", "write arguments, results and gradients, of one call of each kind"),
    "autocompare": ("AUTOCOMPARE", "", "compare each call with the CPU in higher precision"),
    "time": ("TIME_MEASURE", "", "time each call, forward and backward"),
    "fallback": ("FALLBACK", "OPS", "run these operators on the CPU"),
    "cast": ("DTYPE_CAST", "OPS", "compute these operators in another type (OP_DTYPE_CAST_DICT)"),
    "overflow": ("OVERFLOW_CHECK", "", "name the operator that makes the first NaN or Inf"),
    "observe": ("OBSERVE", "", "show arguments and results of each call"),
    "guard": ("GUARD", "", "always on, at little cost: find wrong results of the device"),
}
# The other options: what stands for their value, the setting, and what they mean.
OPTIONS: dict[str, tuple[str, settings.Setting[Any], str]] = {
    "steps": ("3-5", settings.OP_TOOLS_STEPS, "watch these training steps"),
    "ranks": ("0,1", settings.OP_TOOLS_RANKS, "watch these ranks"),
    "modules": ("PATTERNS", settings.OP_TOOLS_MODULES, "watch these modules, as blocks.*.attn"),
    "sites": ("PATTERNS", settings.OP_TOOLS_SITES, "watch these lines, as model.py:10"),
    "first": (
        "N",
        settings.OP_TOOLS_FIRST,
        "watch so many calls of each signature; 0: all; --capture: 1",
    ),
    "every": ("K", settings.OP_TOOLS_EVERY, "watch every k-th call of an operator"),
    "level": ("api|aten|module", settings.OP_TOOLS_LEVEL, "what counts as an operator"),
    "devices": ("KINDS", settings.OP_TOOLS_DEVICES, "watch these devices, as cpu"),
    "results": ("DIR", settings.OP_TOOLS_RESULTS, "where files go; default op_tools_results"),
    "config": ("FILE", settings.DEEPLINK_CONFIG, "a settings file in place of deeplink.toml"),
    "guard-budget": ("SHARE", settings.OP_GUARD_BUDGET, "with --guard, of the time; default 0.01"),
    "on-finding": ("warn|stop", settings.OP_GUARD_ON_FINDING, "with --guard, what follows"),
    "budget": ("25%", settings.OP_AUTOCOMPARE_BUDGET, "with --autocompare, of the step's time"),
    "trace": ("FILE", settings.OP_TIME_MEASURE_TRACE, "with --time, a trace for Perfetto"),
}
# They start the processes that do the work, and do none of their own.
LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
GROUP = "deeplink.autoload"
# The context of a command whose words, --help too, another reads: what follows them is its own.
FORWARDED: dict[str, Any] = {
    "allow_extra_args": True,
    "allow_interspersed_args": False,
    "ignore_unknown_options": True,
    "help_option_names": [],
}
Stop = Callable[[], None]


@dataclass(frozen=True)
class Request:
    """What the command line asks for: a program, and what it is watched by."""

    program: str
    is_module: bool
    arguments: tuple[str, ...]
    values: dict[str, str]  # settings

    @property
    def vendor(self) -> str:
        """The vendor of `--vendor`; "" where the option was not given."""
        return self.values.get(settings.DEEPLINK_VENDOR.name, "")

    @property
    def watched(self) -> bool:
        """Whether tools are to be started in this process."""
        asked = settings.OP_TOOLS_RUN.name in self.values
        return asked and not (self.is_module and self.program in LAUNCHERS)


def parse(command: str, line: Sequence[str]) -> Request:
    """The options up to the program; all after it is the program's. Exits with 2 on a bad one."""
    parser = _parser(command)
    given = parser.parse_args(list(line))
    rest = given.module if given.module is not None else given.program
    if not rest:
        swallowed = [word for word in TOOLS if str(getattr(given, word)).endswith(".py")]
        hints = [f"\nHint: --{word} takes operators: --{word} OPS train.py" for word in swallowed]
        parser.error("which program? A script, or -m and a module." + "".join(hints))
    try:
        values = _values(given)
    except SettingError as error:
        parser.error(str(error))
    if given.module is None:
        check_script(parser, rest[0])
    return Request(rest[0], given.module is not None, tuple(rest[1:]), values)


def check_script(parser: argparse.ArgumentParser, script: str) -> None:
    """Exit with 2 when there is no such script, and say what to type instead."""
    if Path(script).is_file():
        return
    name = Path(script).name
    hint = f"for a module say -m {script}"
    if name.startswith("python"):
        hint = "leave out the interpreter: the script comes first"
    elif name == "torchrun":
        hint = "-m torch.distributed.run in place of torchrun"
    elif name.endswith(".py"):
        hint = f"looked for it from {Path.cwd()}"
    parser.error(f"no script {script!r}.\nHint: {hint}")


def run(request: Request, start: Callable[[], Stop] | None = None) -> None:
    """Runs the program with its arguments, and the tools around it; its exit code is kept.

    `start` starts the tools that OP_TOOLS_RUN names; without it, by the entry point of op_tools.
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
    """Show an error of this project by its text, and exit with status 2: no traceback."""
    try:
        yield
    except DeeplinkError as error:
        console(stderr=True).print(str(error), style="red", soft_wrap=True)
        sys.exit(2)


def execute(first: str, *rest: str) -> None:
    """Run what `python FIRST REST` runs, a script or `-m module`, as `__main__` of this process.

    `__file__`, `sys.argv` and `sys.path[0]` are those that Python itself gives the program.
    """
    here = os.getcwd()
    if sys.path[:1] in ([here], [""]):  # of the `python -m` that started this process
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
    """A program's error as Python shows it: without who started it, and without the tools."""
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
    *(__file__, str(Path(__file__).with_name("warm.py")), runpy.__file__, "<frozen runpy>"),
    *("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>"),
)
_TOOLS_FOLDER = str(Path(__file__).parents[1] / "op_tools")


def _registered() -> Callable[[], Stop]:
    for point in entry_points(group=GROUP, name="op_tools"):
        found: Callable[[], Stop] = point.load()
        return found
    raise SettingError(
        "the operator tools are not registered in this environment.",
        "install the package anew (`make setup`, or `pip install -e .`).",
    )


# The command line.


def _values(given: argparse.Namespace) -> dict[str, str]:
    asked = {word: getattr(given, word) for word in TOOLS if getattr(given, word)}
    started = [*asked, *(["recorder"] if given.recorder else [])]
    values: dict[str, str] = {}
    for word, operators in asked.items():
        if isinstance(operators, str):
            values[f"OP_{TOOLS[word][0]}_LIST"] = operators
        elif given.ops is not None:
            values[f"OP_{TOOLS[word][0]}_LIST"] = given.ops
        if given.disable is not None:
            values[f"OP_{TOOLS[word][0]}_DISABLE_LIST"] = given.disable
    if started:
        values[settings.OP_TOOLS_RUN.name] = ",".join(started)
    for word, (_, setting, _) in OPTIONS.items():
        text = getattr(given, word.replace("-", "_"))
        if text is not None:
            try:
                setting.parse(text)
            except ValueError as error:
                problem = f"--{word} {text}: {error}; allowed: {setting.allowed}"
                raise SettingError(problem) from None
            values[setting.name] = text
    if "capture" in asked and not _selects(given.first):
        values[settings.OP_CAPTURE_FIRST.name] = "1"
    if given.verbose:
        values[settings.OP_TOOLS_VERBOSE.name] = "1"
    if values and not started:
        named = (word for word in (*OPTIONS, "verbose") if getattr(given, word.replace("-", "_")))
        options = [f"--{word}" for word in named]
        raise SettingError(
            f"{', '.join(options)} need{'s' * (len(options) == 1)} a tool; "
            f"tools: {', '.join(f'--{word}' for word in (*TOOLS, 'recorder'))}.",
            f"for example: --time {options[0]} …",
        )
    if given.vendor:
        values[settings.DEEPLINK_VENDOR.name] = given.vendor
    return values


def _selects(first: str | None) -> bool:
    """Whether something says how many calls of each signature are captured, or they are small."""
    is_set = settings.OP_TOOLS_FIRST.is_set() or settings.OP_CAPTURE_FIRST.is_set()
    return first is not None or is_set or settings.OP_CAPTURE_MODE.get() != "tensors"


def _parser(command: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=command,
        usage=f"{command} [tools] [options] train.py …   (or -m module …)",
        description="Run a program as it is, and watch its operators without touching its code.",
        epilog=EXAMPLES.format(command=command),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    tools = parser.add_argument_group("tools (any of them together)")
    for word, (_, value, text) in TOOLS.items():
        if value:
            tools.add_argument(f"--{word}", metavar=value, help=text)
        else:
            tools.add_argument(f"--{word}", action="store_true", help=text)
    text = "keep what the last steps looked like on disk, for when it goes wrong"
    tools.add_argument("--recorder", action="store_true", help=text)
    more = parser.add_argument_group("which calls, and where to")
    more.add_argument("--ops", metavar="OPS", help="these operators only, as torch.add,aten.mm.*")
    more.add_argument("--disable", metavar="OPS", help="not these operators")
    for word, (value, setting, text) in OPTIONS.items():
        more.add_argument(f"--{word}", metavar=value, help=f"{text} ({setting.name})")
    more.add_argument("--verbose", action="store_true", help="a table for each call")
    add_vendor(parser)
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, help="run a module")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="a script and its arguments")
    return parser


def add_vendor(parser: argparse.ArgumentParser) -> None:
    """Give a parser `--vendor`; its command enters `deeplink.vendor.using(given.vendor)`."""
    text = "run on this vendor's device, as cpu (DEEPLINK_VENDOR); `deeplink doctor` lists them"
    parser.add_argument("--vendor", default="", metavar="NAME", help=text)


EXAMPLES = """
examples:
  {command} train.py --epochs 3
  {command} --time --steps 3-5 train.py               which operators are slow
  {command} --time --trace trace.json train.py        and when: open it in ui.perfetto.dev
  {command} --autocompare train.py                    which operators are wrong
  {command} --overflow train.py                       where the first NaN comes from
  {command} --recorder train.py                       always on: 0.5 to 4 % of the time
  {command} --guard train.py                          always on: wrong results of the device
  {command} --fallback torch.nn.functional.gelu train.py      without this one: is it well?
  {command} --capture train.py                        one call of each signature, to replay
  {command} --capture --first 0 --ops torch.nn.functional.linear --steps 3 train.py
  {command} --time -m torch.distributed.run --nproc-per-node 2 train.py
"""
