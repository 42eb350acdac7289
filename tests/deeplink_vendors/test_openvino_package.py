"""openvino is imported without its converter, which is loaded on first use."""

import subprocess
import sys

import pytest

pytest.importorskip("openvino")

PROGRAM = """
import sys
from deeplink_vendors.cpu.openvino import package
ours = package.imported()
assert "openvino.tools.ovc" not in sys.modules
import openvino
assert openvino is ours is package.imported()
from openvino import convert_model
import openvino.tools.ovc
assert convert_model is openvino.tools.ovc.convert_model is openvino.convert_model
try:
    openvino.nothing
except AttributeError as error:
    print(error)
"""


def test_the_converter_comes_on_request() -> None:
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "module 'openvino' has no attribute 'nothing'\n"
