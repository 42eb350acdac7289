# SPDX-License-Identifier: Apache-2.0
"""`deeplink run [tools] train.py …`: the options of the operator tools, as settings."""

from __future__ import annotations

import inspect
import shlex
from typing import Annotated, Any

import typer

from deeplink import settings
from deeplink.commands import common, host
from deeplink.errors import SettingError
from deeplink.i18n import _
from deeplink.run import program as programs
from deeplink.run.runner import Request

# A tool by its option: the word of its settings, its arguments in the help, and what it does.
TOOLS = {
    "capture": ("CAPTURE", "", "Write arguments, results and gradients of calls, to replay them."),
    "autocompare": ("AUTOCOMPARE", "", "Compare each call with the CPU in higher precision."),
    "time": ("TIME_MEASURE", "", "Time each call, forward and backward."),
    "fallback": ("FALLBACK", "OPS", "Run these operators on the CPU."),
    "cast": ("DTYPE_CAST", "OPS", "Compute these operators in another type (OP_DTYPE_CAST_DICT)."),
    "overflow": ("OVERFLOW_CHECK", "", "Name the operator that makes the first NaN or Inf."),
    "observe": ("OBSERVE", "", "Show arguments and results of each call."),
    "guard": ("GUARD", "", "Always on, at little cost: find wrong results of the device."),
}
RECORDER = "Always on: keep the last steps on disk, for when a run goes wrong."
# The other options: what represents their value, the setting, and what they mean.
OPTIONS: dict[str, tuple[str, settings.Setting[Any], str]] = {
    "steps": ("3-5", settings.OP_TOOLS_STEPS, "Only these training steps, as 3,10-20,100-."),
    "ranks": ("0,1", settings.OP_TOOLS_RANKS, "Only these ranks."),
    "modules": ("PATTERNS", settings.OP_TOOLS_MODULES, "Only these modules, as blocks.*.attn."),
    "sites": ("PATTERNS", settings.OP_TOOLS_SITES, "Only these source lines, as model.py:10."),
    "first": (
        "N",
        settings.OP_TOOLS_FIRST,
        "Only the first N calls per (operator, shapes, dtypes); 0: all; with --capture: 1.",
    ),
    "every": ("K", settings.OP_TOOLS_EVERY, "Only every k-th call of an operator."),
    "level": (
        "api|aten|module",
        settings.OP_TOOLS_LEVEL,
        "What counts as an operator; default: follows from the names in the lists.",
    ),
    "devices": ("KINDS", settings.OP_TOOLS_DEVICES, "Only these kinds of devices, as cpu."),
    "config": ("FILE", settings.DEEPLINK_CONFIG, "A settings file in place of deeplink.toml."),
    "guard-budget": ("SHARE", settings.OP_GUARD_BUDGET, "Of --guard: its share of the time."),
    "on-finding": ("warn|stop", settings.OP_GUARD_ON_FINDING, "Of --guard: what a finding does."),
    "budget": (
        "25%",
        settings.OP_AUTOCOMPARE_BUDGET,
        "Of --autocompare: how much longer a step may take.",
    ),
    "trace": ("FILE", settings.OP_TIME_MEASURE_TRACE, "Of --time: a trace for Perfetto."),
    "capture-mode": (
        "tensors|statistics|hash",
        settings.OP_CAPTURE_MODE,
        "Of --capture: what is written of a tensor.",
    ),
    "capture-format": (
        "folders|packed",
        settings.OP_CAPTURE_FORMAT,
        "Of --capture: a folder for each call, or one file for each process.",
    ),
}
SELECTION = "Selection and output"
# What --fail-on takes, and the tools that find it.
FAIL_ON = {"wrong": ("autocompare", "guard"), "nan": ("overflow",)}


def run(context: typer.Context, program: common.Program = None, **options: Any) -> None:
    """Run a CUDA program unchanged on the chosen device

    The program's output and exit code are its own. With a tool its operators are watched; tools
    can be combined. They write into a new folder of op_tools_results, whose run.json has the
    command, versions and device; op_tools_results/latest is the newest.

    OPS are names such as linear, torch.nn.functional.gelu, aten.mm.default, mm.out or diopiMm, or
    regular expressions, with commas between.

    \b
    Examples:
      deeplink run train.py --epochs 3
      deeplink run --time --steps 3-5 train.py                which operators are slow
      deeplink run --time --trace trace.json train.py         open it in ui.perfetto.dev
      deeplink run --autocompare train.py                     which operators are wrong
      deeplink run --autocompare --fail-on wrong train.py     for CI: 1 when one is wrong
      deeplink run --overflow train.py                        where the first NaN comes from
      deeplink run --recorder train.py                        always on: 0.5 to 4 % of the time
      deeplink run --guard train.py                           always on: wrong results
      deeplink run --fallback gelu train.py                   run gelu on the CPU and check
                                                              whether the loss recovers
      deeplink run --capture train.py                         one call of each signature
      deeplink run --capture --first 0 --ops linear --steps 3 train.py
      deeplink run --triton interpret train.py                Triton kernels without a GPU
      deeplink run --time torchrun --nproc-per-node 2 train.py

    \b
    Exit codes:
      the program's own; 1 when --fail-on finds something;
      2 when an option, the vendor or a setting is refused
    """
    if not program:
        _check_swallowed(options)
    found = programs.python_only(programs.read(program, "run"), "run")
    request = Request.of(found, values(options), _fail_on(options))
    raise typer.Exit(host.of(context).program("run", request, context.meta["line"]))


def _check_swallowed(options: dict[str, Any]) -> None:
    """Raise a SettingError for an option that takes operators and was given the script."""
    for word, (_key, metavar, _help) in TOOLS.items():
        if metavar and str(options[word]).endswith(".py"):
            script = options[word]
            raise SettingError(
                _("--{word} takes operators, found {script!r}, and no program was given.").format(
                    word=word, script=script
                ),
                _("--{word} OPS {script}, for example: deeplink run --{word} gelu {script}").format(
                    word=word, script=script
                ),
            )


def _fail_on(options: dict[str, Any]) -> tuple[str, ...]:
    """The kinds of findings of --fail-on; SettingError where no tool looks for one."""
    kinds = tuple(filter(None, (options["fail_on"] or "").split(",")))
    for kind in kinds:
        if kind not in FAIL_ON:
            raise SettingError(
                _("--fail-on {kind}: no such finding; allowed: {names}.").format(
                    kind=kind, names=", ".join(FAIL_ON)
                ),
                _("for example: deeplink run --autocompare --fail-on wrong train.py"),
            )
        if not any(options[tool] for tool in FAIL_ON[kind]):
            tools = _(" or ").join(f"--{tool}" for tool in FAIL_ON[kind])
            raise SettingError(
                _("--fail-on {kind} needs {tools}.").format(kind=kind, tools=tools),
                _("for example: deeplink run --{fail_on} --fail-on {kind} train.py").format(
                    fail_on=FAIL_ON[kind][0], kind=kind
                ),
            )
    return kinds


def values(given: dict[str, Any]) -> dict[str, str]:
    """The settings that options mean; SettingError for one that is not allowed."""
    asked = {word: given[word] for word in TOOLS if given[word]}
    started = [*asked, *(["recorder"] if given["recorder"] else [])]
    found: dict[str, str] = {}
    for word, operators in asked.items():
        if isinstance(operators, str):
            found[f"OP_{TOOLS[word][0]}_LIST"] = operators
        elif given["ops"] is not None:
            found[f"OP_{TOOLS[word][0]}_LIST"] = given["ops"]
        if given["disable"] is not None:
            found[f"OP_{TOOLS[word][0]}_DISABLE_LIST"] = given["disable"]
    if started:
        found[settings.OP_TOOLS_RUN.name] = ",".join(started)
    for word, (_metavar, setting, _help) in OPTIONS.items():
        text = given[_parameter(word)]
        if text is not None:
            found[setting.name] = common.allowed(word, setting, text)
    if given["output"]:
        found[settings.OP_TOOLS_RESULTS.name] = given["output"]
    if "capture" in asked and not _selects(given):
        found[settings.OP_CAPTURE_FIRST.name] = "1"
    if given["verbose"]:
        found[settings.OP_TOOLS_VERBOSE.name] = "1"
    if found and not started:
        words = (*OPTIONS, "verbose", "output")
        named = [(word, given[_parameter(word)]) for word in words]
        raise _needs_a_tool({word: value for word, value in named if value})
    if given["vendor"]:
        found[settings.DEEPLINK_VENDOR.name] = given["vendor"]
    if given["triton"] is not None:
        text = common.allowed("triton", settings.DITORCH_TRITON, given["triton"])
        found[settings.DITORCH_TRITON.name] = text
    if given["quiet"]:
        found[settings.DITORCH_QUIET.name] = "1"
    return found


def _needs_a_tool(given: dict[str, Any]) -> SettingError:
    options = [f"--{word}" for word in given]
    example = " ".join(
        f"--{word}" if value is True else f"--{word} {shlex.quote(str(value))}"
        for word, value in given.items()
    )
    return SettingError(
        _("{names} {count:needs|need} a tool; tools: {tools}.").format(
            count=len(options),
            names=", ".join(options),
            tools=", ".join(f"--{word}" for word in (*TOOLS, "recorder")),
        ),
        _("for example: deeplink run --time {example} train.py").format(example=example),
    )


def _selects(given: dict[str, Any]) -> bool:
    """Whether something says how many calls of each signature are captured, or they are small."""
    is_set = settings.OP_TOOLS_FIRST.is_set() or settings.OP_CAPTURE_FIRST.is_set()
    mode = given["capture_mode"] or settings.OP_CAPTURE_MODE.get()
    return given["first"] is not None or is_set or mode != "tensors"


def _parameter(word: str) -> str:
    return word.replace("-", "_")


def _parameters() -> list[tuple[str, Any, Any]]:
    """The options: the name of each parameter, its type and its default."""
    found: list[tuple[str, Any, Any]] = []
    for word, (_key, metavar, text) in TOOLS.items():
        if metavar:
            option = typer.Option(f"--{word}", metavar=metavar, help=text, rich_help_panel="Tools")
            found.append((word, Annotated[str | None, option], None))
        else:
            option = typer.Option(f"--{word}", help=text, rich_help_panel="Tools")
            found.append((word, Annotated[bool, option], False))
    option = typer.Option("--recorder", help=RECORDER, rich_help_panel="Tools")
    found.append(("recorder", Annotated[bool, option], False))
    texts = {"ops": "Only these operators.", "disable": "Not these operators."}
    for word, text in texts.items():
        option = typer.Option(f"--{word}", metavar="OPS", help=text, rich_help_panel=SELECTION)
        found.append((word, Annotated[str | None, option], None))
    for word, (metavar, setting, text) in OPTIONS.items():
        option = typer.Option(
            f"--{word}",
            metavar=metavar,
            help=f"{text} ({setting.name})",
            rich_help_panel=SELECTION,
        )
        found.append((_parameter(word), Annotated[str | None, option], None))
    results = settings.OP_TOOLS_RESULTS.name
    text = f"The folder of this run. Default: a new one in op_tools_results ({results})."
    option = typer.Option("--output", "-o", metavar="DIR", help=text, rich_help_panel=SELECTION)
    found.append(("output", Annotated[str | None, option], None))
    text = "Exit with 1 when the tools found wrong results, or NaN and Inf (wrong,nan)."
    option = typer.Option(
        "--fail-on", metavar="|".join(FAIL_ON), help=text, rich_help_panel=SELECTION
    )
    found.append(("fail_on", Annotated[str | None, option], None))
    option = typer.Option("--verbose", help="A table for each call.", rich_help_panel=SELECTION)
    found.append(("verbose", Annotated[bool, option], False))
    setting = settings.DITORCH_TRITON
    text = "What runs Triton kernels: the device, or Triton's interpreter on the CPU."
    option = typer.Option("--triton", metavar="device|interpret", help=f"{text} ({setting.name})")
    found.append(("triton", Annotated[str | None, option], None))
    return [*found, ("vendor", common.VendorName, ""), ("quiet", common.Quiet, False)]


def _declare() -> None:
    """Give `run` the parameters of the tables, for Typer to read."""
    plain = list(inspect.signature(run).parameters.values())[:2]
    kinds = run.__annotations__
    context, program = (
        plain[0].replace(annotation=typer.Context),
        plain[1].replace(annotation=common.Program),
    )
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, kind, default in _parameters()
    ]
    run.__signature__ = inspect.Signature([context, program, *more])  # type: ignore[attr-defined]
    kinds.clear()
    kinds.update({each.name: each.annotation for each in (context, program, *more)})


_declare()
