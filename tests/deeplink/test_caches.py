"""`deeplink cache` and `deeplink build`: sizes, and nothing of others is deleted."""

import json
from pathlib import Path

import pytest

from deeplink import cli


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (
        "native/op_tools-torch2.13.0+cpu-cpython-311-0123456789ab/_C.so",
        "native/objects/unit.o",
        "native/someone_elses.txt",
        "graphs/inductorgraph/a.so",
        "graphs/photos/holiday.jpg",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(bytes(2**20))
    monkeypatch.setenv("DIPU_BUILD_DIR", str(tmp_path / "native"))
    monkeypatch.setenv("DICP_CACHE_DIR", str(tmp_path / "graphs"))
    return tmp_path


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_info_shows_entries_and_sizes(caches: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.status(["cache", "info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(row["cache"], Path(row["path"]).name[:8], row["size"]) for row in found] == [
        ("native", "objects", 2**20),
        ("native", "op_tools", 2**20),
        ("graphs", "inductor", 2**20),
    ]
    assert cli.status(["cache", "info", "graphs"]) == 0
    shown = capsys.readouterr().out
    assert f"graphs: 1.0 MiB in {caches / 'graphs'}" in shown and "native" not in shown


def test_clean_deletes_what_the_caches_wrote_and_nothing_else(
    caches: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = left(caches)
    assert cli.status(["cache", "clean", "--dry-run"]) == 0
    assert left(caches) == before and "would delete" in capsys.readouterr().out
    assert cli.status(["cache", "clean", "graphs"]) == 0
    assert "deleted 1 entry, 1.0 MiB" in capsys.readouterr().out
    assert cli.status(["cache", "clean"]) == 0
    assert "deleted 2 entries, 2.0 MiB" in capsys.readouterr().out
    assert left(caches) == ["holiday.jpg", "someone_elses.txt"]


def test_an_unknown_part_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.status(["build", "no_such_part"]) == 2
    said = capfd.readouterr().err
    assert "'no_such_part'" in said and "torch_dipu" in said and "Hint: " in said
