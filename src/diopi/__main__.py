# SPDX-License-Identifier: Apache-2.0
"""Drop-in replacement for the published DIOPI main.py: `python -m diopi --mode run_test …`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from deeplink import vendor as vendors
from deeplink.console import console
from deeplink.errors import DeeplinkError
from diopi.conformance import device_config
from diopi.conformance.command import Request, check_dtypes, generate, run
from diopi.conformance.device_config import DeviceConfig
from diopi.conformance.models import stored as models

DATA = Path("data")  # written by gen_data, read by run_test
ALL = "all_ops"


def main(line: Sequence[str] | None = None) -> int:
    """Run the command line; return 0 when everything passed or is a known gap."""
    given = _parser().parse_args(line)
    out = console()
    try:
        if given.get_model_list:
            for name, ops in models.listed().items():
                out.print(f"{name}: {', '.join(ops)}", soft_wrap=True)
            return 0
        request = _request(given)
        if given.mode == "gen_data":
            return int(not generate(request, given.data, out))
        return int(not run(request, out).passed)
    except DeeplinkError as error:
        console(stderr=True).print(str(error), soft_wrap=True)
        return 2


def _request(given: argparse.Namespace) -> Request:
    config = device_config.read(given.impl_folder) if given.impl_folder else DeviceConfig()
    check_dtypes(given.filter_dtype)
    skips = tuple(("*", dtype) for dtype in given.filter_dtype)
    ops = () if given.fname == ALL else _named(given.fname)
    tier = given.tier
    if given.model_name:
        models.check(given.model_name)
        tier = f"model:{given.model_name}"
    elif given.nhwc:
        tier = f"{tier}:nhwc"
    recompute = given.recompute or given.mode == "gen_data"
    return Request(
        given.vendor or vendors.choose().vendor.name,
        tier,
        ops,
        jobs=given.jobs,
        folder=given.results,
        config=replace(config, skips=(*config.skips, *skips)),
        verbose=given.verbose,
        baselines=None if recompute else given.data,
    )


def _named(name: str) -> tuple[str, ...]:
    """Return the pattern of an op and its variants: `add` covers `add_` and `add_scalar`."""
    return (name, f"{name}_*")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m diopi", description=__doc__)
    add = parser.add_argument
    add("--mode", choices=("gen_data", "run_test"), default="run_test")
    add("--fname", default=ALL, help="the op; all_ops for all of them")
    add("--model_name", default="", help="the cases of this model instead")
    add("--get_model_list", action="store_true", help="show the models and their ops")
    add("--filter_dtype", nargs="*", default=[], metavar="DTYPE", help="skip these")
    add("--nhwc", action="store_true", help="in addition, cases with images in NHWC layout")
    add("--verbose", "-v", action="store_true", help="print a line for every operator")
    add("--impl_folder", type=Path, help="a device_config.py, or the folder that has one")
    add("--vendor", default="", help="else DEEPLINK_VENDOR, else the first available")
    add("--tier", default="quick", choices=("smoke", "quick", "full"))
    add("--data", type=Path, default=DATA, help="the folder of the baselines")
    add("--recompute", action="store_true", help="without baselines: compute them here")
    add("--results", type=Path, default=Path("conformance_results"))
    add("--jobs", "-j", type=int, default=2)
    return parser


if __name__ == "__main__":
    sys.exit(main())
