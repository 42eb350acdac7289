"""`one-iter record train.py …` and `one-iter compare RECORD train.py …`: their command line.

The work is op_tools' (`op_tools.one_iter`); what is asked for goes into the environment.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from deeplink import settings
from deeplink.running import Request, add_vendor, check_script

EPILOG = """
One iteration is run and the program ends after it. `record` writes what goes into each layer and
comes out of it, weights and gradients. `compare` starts from the recorded weights, inputs and
random numbers, judges each layer alone on what was recorded, and shows how the whole run drifts.
Status: 0 all is well, 1 a layer diverges, 2 the two do not fit (another model, other shapes).

examples:
  {command} record --to rec --vendor cpu train.py          on the trusted device
  {command} compare rec train.py                           on the device under test
  {command} compare rec --json found.json train.py --lr 1e-3
  {command} record --to rec --step 100 -m my.training      the iteration 100, from 0
  {command} record --to rec -m torch.distributed.run --nproc-per-node 2 train.py
                                                           every rank writes, and compares, its own
"""


def parse(command: str, line: Sequence[str]) -> Request:
    """The options up to the program; all after it is the program's. Exits with 2 on a bad one."""
    parser = _parser(command)
    given = parser.parse_args(list(line))
    if given.module is None:  # those between the record and the program, for argparse has an order
        between = argparse.ArgumentParser(prog=f"{command} {given.mode}", allow_abbrev=False)
        given = _options(between, given.mode).parse_args(given.program, given)
    rest = given.module if given.module is not None else given.program
    if given.mode == "compare" and not Path(given.record).is_dir():
        parser.error(f"no record at {given.record!r}; make one with: {command} record --to DIR …")
    if not rest:
        parser.error("which program? A script, or -m and a module.")
    if given.module is None:
        check_script(parser, rest[0])
    return Request(rest[0], given.module is not None, tuple(rest[1:]), _values(given))


def _values(given: argparse.Namespace) -> dict[str, str]:
    values = {
        settings.OP_TOOLS_RUN.name: "one-iter",
        settings.OP_ONE_ITER_MODE.name: given.mode,
        settings.OP_ONE_ITER_STEP.name: str(given.step),
    }
    if given.record:
        values[settings.OP_ONE_ITER_RECORD.name] = str(Path(given.record).resolve())
    if given.mode == "compare" and given.json:
        values[settings.OP_ONE_ITER_JSON.name] = str(Path(given.json).resolve())
    if given.vendor:
        values[settings.DEEPLINK_VENDOR.name] = given.vendor
    return values


def _parser(command: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=command,
        description="One training iteration, layer by layer: which layer goes wrong here.",
        epilog=EPILOG.format(command=command),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    modes = parser.add_subparsers(dest="mode", required=True, metavar="record|compare")
    record = modes.add_parser("record", help="on the trusted device", allow_abbrev=False)
    record.add_argument("--to", dest="record", metavar="DIR", help="where the record goes")
    compare = modes.add_parser("compare", help="on the device under test", allow_abbrev=False)
    compare.add_argument("record", metavar="RECORD", help="the folder that `record` wrote")
    _options(record, "record")
    _options(compare, "compare")
    return parser


def _options(parser: argparse.ArgumentParser, mode: str) -> argparse.ArgumentParser:
    parser.add_argument("--step", type=int, default=0, metavar="N", help="which one, from 0")
    add_vendor(parser)
    if mode == "compare":
        parser.add_argument("--json", metavar="FILE", help="write what was found")
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, help="run a module")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="a script and its arguments")
    return parser
