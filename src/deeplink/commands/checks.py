# SPDX-License-Identifier: Apache-2.0
"""The commands that check a device or a program: coverage, conformance, pytorch-tests, replay."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from deeplink import settings
from deeplink.commands import common, host

KERNELS = "Kernels of anyone"  # options of conformance


def coverage(
    context: typer.Context,
    program: Annotated[
        list[str],
        typer.Argument(
            metavar="PROGRAM",
            help="A script, a folder of them, -m module, python train.py, or torchrun train.py.",
        ),
    ],
    every: Annotated[bool, typer.Option("--all", help="Show what is supported, too.")] = False,
    json: common.Json = "",
    vendor: common.VendorName = "",
    quiet: common.Quiet = False,
) -> None:
    """Read a program: which of its CUDA calls the device supports

    The program does not run. Its names of torch.cuda are looked up for the chosen device, also
    those in modules of the program that it imports.

    \b
    Examples:
      deeplink coverage train.py
      deeplink coverage --all src/
      deeplink coverage -m package.train

    \b
    Exit codes:
      0 all calls are supported; 1 one is not, or the program depends on CUDA otherwise (CUDA C++,
      Triton kernels, CUDA's libraries, packages with CUDA binaries); 2 the program cannot be read
    """
    path = common.work("deeplink.inspection.cuda_usage:source")(program)

    def here() -> int:
        work = common.work("ditorch.coverage:check")
        return int(work(path, every=every, json=json, vendor=vendor))

    with settings.quiet(quiet):
        line = context.meta["line"]
        raise typer.Exit(host.of(context).patched("coverage", line, here))


def pytorch_tests(
    context: typer.Context,
    suites: Annotated[
        str, typer.Option(help="Built-in suites, with commas between.")
    ] = "op_db,module_db,optim_db",
    sources: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Instead: a checkout of PyTorch, whose test files run on the device.",
            show_default=False,
        ),
    ] = None,
    files: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Its test files; default: all test_*.py."),
    ] = None,
    only: Annotated[
        str,
        typer.Option(metavar="REGEX", help="Only tests whose file::class::test has this pattern."),
    ] = "",
    dtypes: Annotated[
        str, typer.Option(help="Only these dtypes, with commas between; tests without one run.")
    ] = "",
    cuda: Annotated[
        bool, typer.Option("--cuda", help="Run the files for torch.cuda, which is the device.")
    ] = False,
    cpu: Annotated[
        Literal["all", "failed", "none"],
        typer.Option(help="Which of the files' tests run on the plain CPU as well."),
    ] = "all",
    every_class: Annotated[
        bool, typer.Option("--all-classes", help="Run classes that are made for no device, too.")
    ] = False,
    output: Annotated[
        Path | None,
        common.output(
            "The CSV. Default: rows.csv in a new folder of pytorch_tests_results.", "FILE"
        ),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Processes at a time.")] = 2,
    time_limit: Annotated[
        float,
        typer.Option("--timeout", "--time-limit", min=0.1, help="Seconds for one test."),
    ] = 120.0,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Keep the rows of the latest CSV, and run only the rest."),
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Delete the rows of an earlier run.")
    ] = False,
    no_run: Annotated[
        bool, typer.Option("--no-run", help="Run nothing: show what the CSV holds.")
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(
            help="What this device leaves out. Default: the gaps.toml of the vendor.",
            show_default=False,
        ),
    ] = None,
    diff: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The CSV of an earlier run, to compare with.", show_default=False
        ),
    ] = None,
    export_config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Run nothing: write the tests that the device leaves out. FILE.json: the list of "
            "disabled tests; FILE.py: PyTorch's test configuration.",
            show_default=False,
        ),
    ] = None,
    vendor: common.VendorName = "",
    quiet: common.Quiet = False,
) -> None:
    """Run PyTorch's own tests on the device

    Without --sources: every operator, module and optimizer of torch's own test databases, against
    the CPU. With it: the test files of a checkout, for the device by its own name, and the same
    tests on the plain CPU. What counts is a test that the CPU passes and the device fails. Each
    test is one row of the CSV: file, class, test, device or cpu, result (passed, failed, skipped,
    error), seconds, and the cause of a failure: `chip` (values, missing kernels, crashes) or `shim`
    (a name of torch.cuda, the identity of the device, jit.script). A crash or a hang costs one row.

    \b
    Examples:
      deeplink pytorch-tests --dtypes float32 --jobs 8
      deeplink pytorch-tests --suites op_db --only 'forward_(add|mul)_'
      deeplink pytorch-tests --resume                  go on after an interruption
      deeplink pytorch-tests --sources ~/pytorch --files test_torch.py test_nn.py
      deeplink pytorch-tests --sources ~/pytorch --files test_cuda.py --cuda
      deeplink pytorch-tests -o new.csv --diff old.csv
      deeplink pytorch-tests --no-run -o new.csv --diff old.csv
      deeplink pytorch-tests --export-config disabled.json

    \b
    Exit codes:
      0 no test failed, 1 one failed (with --diff: one that did not fail before; with --sources: one
      that the CPU passes and gaps.toml does not list), 2 nothing was run
    """

    def here() -> int:
        work = common.work("ditorch.pytorch_tests.command:pytorch_tests")
        return int(
            work(
                suites=suites,
                sources=sources,
                files=tuple(files or ()),
                only=only,
                dtypes=dtypes,
                cuda=cuda,
                cpu=cpu,
                every_class=every_class,
                output=output,
                jobs=jobs,
                time_limit=time_limit,
                resume=resume,
                overwrite=overwrite,
                no_run=no_run,
                config=config,
                old=diff,
                export_config=export_config,
                device=vendor,
            )
        )

    with settings.quiet(quiet):
        line = context.meta["line"]
        raise typer.Exit(host.of(context).patched("pytorch-tests", line, here))


def conformance(
    context: typer.Context,
    vendor: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="A vendor's name, or module:attribute of a module of kernels."
        ),
    ] = "reference",
    tier: Annotated[
        str, typer.Option(metavar="TIER", help="How many cases: smoke, quick or full.")
    ] = "quick",
    ops: Annotated[
        list[str] | None,
        typer.Option(metavar="OP", help="Only these operators, as conv*."),
    ] = None,
    dtypes: Annotated[
        list[str] | None, typer.Option(metavar="DTYPE", help="Only these dtypes, as float32.")
    ] = None,
    case: Annotated[
        str, typer.Option(metavar="ID", help="Run one case by its id, in this process.")
    ] = "",
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Processes at a time.")] = 2,
    limit: Annotated[float, typer.Option(metavar="SECONDS", help="For one case.")] = 60.0,
    output: Annotated[Path, common.output("Default: conformance_results.")] = Path(
        "conformance_results"
    ),
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an interrupted run.")
    ] = False,
    gaps: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Instead of the vendor's own gaps.toml."),
    ] = None,
    generate: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Make the baselines, and run no case.")
    ] = None,
    baselines: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Compare with baselines made elsewhere.")
    ] = None,
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Compute the baselines here (the default).")
    ] = False,
    publish: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write a page and a table of the results.")
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="Show the operators, and run no case.")
    ] = False,
    shard: Annotated[
        str,
        typer.Option(
            metavar="I/N", help="Only part I of N parts of the cases.", show_default=False
        ),
    ] = "",
    compare: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="Two result folders: show regressions and fixes, and run no case.",
            show_default=False,
        ),
    ] = None,
    kernels: Annotated[
        str,
        typer.Option(
            metavar="SPEC",
            help="Instead of a vendor: kernels in a file, a folder, a module, or module:object.",
            show_default=False,
            rich_help_panel=KERNELS,
        ),
    ] = "",
    device: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="cpu, cuda or dipu. Default: cuda where there is one, else cpu.",
            show_default=False,
            rich_help_panel=KERNELS,
        ),
    ] = "",
    interpret: Annotated[
        bool,
        typer.Option(
            "--interpret",
            help="Run Triton kernels by Triton's interpreter on the CPU.",
            rich_help_panel=KERNELS,
        ),
    ] = False,
    map_: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="FUNCTION=OP",
            help="The operator of a function whose name does not show it.",
            rich_help_panel=KERNELS,
        ),
    ] = None,
    changed_only: Annotated[
        bool,
        typer.Option(
            "--changed-only",
            help="Keep the results of kernels whose source is that of the run in the folder.",
            rich_help_panel=KERNELS,
        ),
    ] = False,
    allow_torch: Annotated[
        bool,
        typer.Option(
            "--allow-torch",
            help="A kernel may call torch's own operator.",
            rich_help_panel=KERNELS,
        ),
    ] = False,
    json: common.Json = "",
) -> None:
    """Check the operators of a vendor against their definition

    --kernels judges functions of any source: SPEC is a Python or Triton file whose functions are
    named like operators (def softmax(x, dim)), a module, module:object, module:enable of a package
    that registers through torch.library, a folder of BackendBench or KernelBench, or a library
    (.so) with functions of diopi.h. Each function is matched with an operator by its name and its
    parameters. A kernel that crashes, hangs or writes outside of its memory is named, and the run
    continues. Results may not come from torch's own operator, an earlier call, uninitialised
    memory, or memory around the arguments.

    \b
    Examples:
      deeplink conformance --vendor acme
      deeplink conformance --vendor acme --ops 'conv*' softmax --dtypes float16
      deeplink conformance --vendor acme --tier full --resume
      deeplink conformance --vendor acme --case ID        one case of the report
      deeplink conformance --kernels softmax.py --interpret
      deeplink conformance --kernels flag_gems:enable --device cuda --tier smoke
      deeplink conformance --kernels kernels.py --map fast_norm=layer_norm
      deeplink conformance --compare results_main results

    \b
    Exit codes:
      0 all cases passed or are known gaps, 1 one failed, 2 nothing was run
    """
    work = common.work("diopi.conformance.command:conformance")
    status = work(
        vendor=vendor,
        tier=tier,
        ops=tuple(ops or ()),
        dtypes=tuple(dtypes or ()),
        case=case,
        jobs=jobs,
        limit=limit,
        folder=output,
        resume=resume,
        gaps=gaps,
        generate_to=generate,
        baselines=None if recompute else baselines,
        publish_to=publish,
        listed=list_,
        json=json,
        kernels=kernels,
        device=device,
        interpret=interpret,
        maps=tuple(map_ or ()),
        allow_torch=allow_torch,
        shard=shard,
        changed_only=changed_only,
        compared=tuple(compare or ()),
    )
    ran = not (case or generate or publish or list_ or compare)
    if ran and (output / "results.jsonl").is_file() and json != common.STDOUT:
        common.work("op_tools.diagnosis.report.cli:page")(output)
    raise typer.Exit(status)


def replay(
    context: typer.Context,
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="Captured calls: a folder, or an archive.")
    ],
    run_times: Annotated[
        int, typer.Option("--run-times", "--run_times", min=1, help="Runs of each call.")
    ] = 100,
    only_run_forward: Annotated[
        bool, typer.Option("--forward-only", "--only_run_forward", help="No backward.")
    ] = False,
    sync_time_measure: Annotated[
        bool, typer.Option("--time", "--sync_time_measure", help="Show the time of each run.")
    ] = False,
    acc_check: Annotated[
        bool,
        typer.Option(
            "--check", "--acc_check", help="Compare with the CPU in float64, and show it."
        ),
    ] = False,
    device: Annotated[
        str | None,
        typer.Option(help="Where; default: where it was captured.", show_default=False),
    ] = None,
    against: Annotated[
        Literal["captured", "cpu", "float64"] | None,
        typer.Option(help="What the result is compared with.", show_default=False),
    ] = None,
    json: common.Json = "",
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the outcomes as JUnit XML.")
    ] = None,
    export: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the worst case as a script.")
    ] = None,
    trust: Annotated[
        list[str] | None,
        typer.Option(metavar="PACKAGE", help="A package besides torch whose functions may run."),
    ] = None,
) -> None:
    """Run captured calls again: compare their results, time them

    \b
    Examples:
      deeplink replay op_tools_results/op_capture_results
      deeplink replay op_tools_results/op_capture_results --device cpu --against float64
      deeplink replay calls.opcap --time --run-times 10
      deeplink replay calls.opcap --check --export wrong.py

    \b
    Exit codes:
      0 all calls ran and agree, 1 one failed or differs, 2 there is nothing to replay
    """
    work = common.work("op_tools.run_op_from_data:replay")
    status = work(
        directory,
        run_times=run_times,
        only_run_forward=only_run_forward,
        sync_time_measure=sync_time_measure,
        acc_check=acc_check,
        device=device,
        against=against,
        json_file=json,
        junit=junit,
        export_to=export,
        trust=tuple(trust or ()),
    )
    raise typer.Exit(status)
