"""`deeplink doctor` on the reference device, as a user calls it: everything passes."""

import json
import os

from tests import warm

DOCTOR = ("-m", "deeplink", "doctor", "--vendor", "reference")


def test_the_reference_device_passes_the_self_test() -> None:
    done = warm.run([*DOCTOR, "--json"], os.environ, warn="ignore")
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    assert report["problems"] == []
    assert report["chosen"]["label"] == "reference device (CPU)"
    states = {check["name"]: check["status"] for check in report["self_test"]}
    assert states == dict.fromkeys(
        ["copy", "autograd", "rng", "streams", "save/load", "collective"], "ok"
    )
    assert done.returncode == 0


def test_the_doctor_shows_who_runs_an_operator() -> None:
    done = warm.run([*DOCTOR, "--ops", "add|copy_|conv2d", "--json"], os.environ, warn="ignore")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    by = {row["overload"]: row["by"] for row in report["operators"]}
    assert by["aten::add.Tensor"] == by["aten::add.out"] == "host"
    assert by["aten::copy_"] in ("device", "composite")
    assert by["aten::conv2d"] == "composite"
    assert sum(report["summary"].values()) == len(report["operators"])
