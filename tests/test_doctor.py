"""`deeplink doctor` on the reference device, as a user calls it: everything passes."""

import json
import subprocess
import sys


def test_the_reference_device_passes_the_self_test() -> None:
    command = [sys.executable, "-m", "deeplink", "doctor", "--vendor", "reference", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    assert report["problems"] == []
    assert report["chosen"]["label"] == "reference device (CPU)"
    states = {check["name"]: check["status"] for check in report["self_test"]}
    assert states == dict.fromkeys(
        ["copy", "autograd", "rng", "streams", "save/load", "collective"], "ok"
    )
    assert done.returncode == 0
