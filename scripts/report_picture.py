"""Make the picture of a report page: docs/images/report.png, from a real run with a fault.

Run `python -m scripts.report_picture`. It needs Chromium (apt-get install chromium).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.op_tools.browser import Browser

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs/images/report.png"
PROGRAM = ROOT / "examples/train_small.py"
FAULT = "ignore_strides:mm"
WIDTH, HEIGHT = 1280, 1240


def main() -> None:
    """Search for the cause of the fault, and photograph the top of the report."""
    with tempfile.TemporaryDirectory(prefix="deeplink_") as folder:
        shutil.copy(PROGRAM, Path(folder, "train.py"))
        environment = {**os.environ, "DIPU_QUIRKS": FAULT, "DEEPLINK_VENDOR": "reference"}
        for words in (["bisect", "train.py"], ["report", "bisect_results"]):
            line = [sys.executable, "-m", "deeplink", *words]
            subprocess.run(line, cwd=folder, env=environment, check=words[0] == "report")
        with Browser(WIDTH, HEIGHT) as page:
            page.size(WIDTH, HEIGHT)
            page.open(Path(folder, "bisect_results", "report.html"), state={"lang": "en"})
            page.screenshot(PICTURE)
    print(f"{PICTURE}: {PICTURE.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
