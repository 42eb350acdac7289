"""Native parts: built once, cached by content, and clear when they cannot be had."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from deeplink import native
from deeplink.errors import BuildError
from tests.torch_dipu.interpreter import output_of, run_python


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> native.Library:
    """A small C++ library of its own, in a cache of its own."""
    monkeypatch.setenv("DIPU_BUILD_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "source"
    folder.mkdir()
    unit = folder / "unit_answer.cpp"
    unit.write_text('extern "C" __attribute__((visibility("default"))) int answer() { return 42; }')
    return native.Library("answer", (unit,), (folder,), torch=False)


def test_it_is_built_on_first_use_and_found_afterwards(
    library: native.Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    assert not library.is_built()
    path = library.build(said.append)
    assert ctypes.CDLL(str(path)).answer() == 42
    assert said[0].startswith("building the native part answer (once) into ")
    assert library.is_built()
    monkeypatch.setenv("CXX", "no-such-compiler")  # not needed any more
    assert library.build(said.append) == path
    assert sorted(p.name for p in path.parent.iterdir()) == ["libanswer.so", "lock"]


def test_another_source_is_another_build(library: native.Library) -> None:
    before = library.path()
    library.units[0].write_text("int other;")
    assert library.path() != before


def test_a_change_compiles_the_units_that_it_reaches(library: native.Library) -> None:
    folder = library.folders[0]
    (folder / "number.h").write_text("int number() { return 6; }")
    other = folder / "unit_other.cpp"
    other.write_text('#include "number.h"\nint seven() { return number() + 1; }')
    both = native.Library("answer", (*library.units, other), library.folders, torch=False)
    assert both.path() != library.path()  # the same files, and other units of them
    both.build()
    (folder / "number.h").write_text("int number() { return 7; }")
    said: list[str] = []
    both.build(said.append)
    assert [line.split(":")[0].strip() for line in said[1:-1]] == ["unit_other.cpp"]


def test_without_a_compiler_the_error_says_what_to_do(
    library: native.Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BuildError, match="answer needs a C\\+\\+20 compiler") as caught:
        library.build()
    assert "looked for 'no-such-compiler', found none" in str(caught.value)
    assert "DEEPLINK_VENDOR=cpu" in caught.value.hint


def test_a_compilers_complaint_is_shown(library: native.Library) -> None:
    library.units[0].write_text("int answer( {")
    with pytest.raises(BuildError, match=r"the native build of answer failed:[\s\S]*error:"):
        library.build()
    assert not library.is_built()


def test_a_cache_that_cannot_be_written_is_told(
    library: native.Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DIPU_BUILD_DIR", str(tmp_path / "file"))
    with pytest.raises(BuildError, match="cannot write the build of answer") as caught:
        library.build()
    assert "DIPU_BUILD_DIR" in caught.value.hint


def test_the_device_without_a_compiler(tmp_path: Path) -> None:
    bare = {"CXX": "no-such-compiler", "DIPU_BUILD_DIR": str(tmp_path)}
    done = run_python("import torch_dipu", **bare)
    assert done.returncode == 1
    assert "there is no C++ compiler" in done.stderr
    source = "import torch, ditorch; print(torch.ones(2, device='cuda').device)"
    assert output_of(source, DEEPLINK_VENDOR="cpu", DITORCH_QUIET="1", **bare).strip() == "cpu"
