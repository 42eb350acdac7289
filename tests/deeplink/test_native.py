"""Native parts: built by CMake at first use, cached by content, and clear when they cannot be had.

The tests build hlir_sim, one small unit without torch's headers, from a copy of the sources.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from deeplink import native, settings
from deeplink.errors import BuildError
from deeplink.native import parts
from tests.torch_dipu.interpreter import output_of, run_python

ROOT = Path(__file__).parents[2]
SOURCE = Path("deeplink_vendors/enflame/graph/csrc/hlir_sim.cpp")
WITHOUT_TORCH = parts.PARTS["hlir_sim"]
BUILD = """
from deeplink import native
print(native.build(["hlir_sim"], lambda line: print(line, flush=True))["hlir_sim"])
"""


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the C++ and of how it is built, which this process uses; with an empty cache."""
    copy = tmp_path / "src"
    for file in (ROOT / "src").rglob("*"):
        if file.suffix in parts.SOURCES:
            (copy / file.relative_to(ROOT / "src")).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy / file.relative_to(ROOT / "src"))
    shutil.copytree(
        ROOT / "src" / "deeplink",
        copy / "deeplink",
        ignore=shutil.ignore_patterns("__pycache__", "prebuilt"),
        dirs_exist_ok=True,
    )
    project = copy / "deeplink" / "native"
    monkeypatch.setattr(parts, "ROOT", copy)
    monkeypatch.setattr(parts, "PROJECT", project)
    monkeypatch.setenv("DIPU_BUILD_DIR", str(tmp_path / "cache"))
    yield copy


def build(said: list[str] | None = None) -> Path:
    """The library of the part, with what its build reports."""
    lines: list[str] = [] if said is None else said
    return native.build(["hlir_sim"], lines.append)["hlir_sim"]


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Return the output of a new Python process."""
    return subprocess.run(
        [sys.executable, *arguments],
        env=settings.environment(environment),
        capture_output=True,
        text=True,
        check=False,
    )


def other_process(tree: Path) -> subprocess.Popen[str]:
    """Another Python that builds the part from the copy."""
    kept = settings.environment({"PYTHONPATH": str(tree)})
    return subprocess.Popen(
        [sys.executable, "-c", BUILD], env=kept, stdout=subprocess.PIPE, text=True
    )


def test_it_is_built_at_first_use_and_found_afterwards(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    assert native.path_of("hlir_sim") is None
    path = build(said)
    ctypes.CDLL(str(path))
    assert said[0] == "building native parts (hlir_sim): 1 unit, about 1 s, once"
    assert said[1] == "[1/1] hlir_sim: hlir_sim.cpp"
    assert said[2].startswith("native parts ready after ")
    monkeypatch.setenv("CXX", "no-such-compiler")  # a part that is built needs none
    assert build(said) == path == native.path_of("hlir_sim")
    assert len(said) == 3


def test_a_changed_source_is_built_anew(tree: Path) -> None:
    first = build()
    source = tree / SOURCE
    source.write_text(source.read_text() + '\nextern "C" const char changed[] = "CHANGED";\n')
    assert not native.is_built("hlir_sim")
    assert b"CHANGED" in build().read_bytes()
    assert b"CHANGED" not in first.read_bytes()


def test_a_source_replaced_by_an_older_file_is_built_anew(tree: Path) -> None:
    build()
    source = tree / SOURCE
    source.write_text(source.read_text() + '\nextern "C" const char changed[] = "CHANGED";\n')
    os.utime(source, (1, 1))
    assert b"CHANGED" in build().read_bytes()


def test_a_compilers_complaint_is_shown_and_the_fixed_source_is_built(tree: Path) -> None:
    source = tree / SOURCE
    good = source.read_text()
    source.write_text("int answer( {")
    with pytest.raises(BuildError, match=r"the native build of hlir_sim failed:[\s\S]*error:"):
        build()
    assert not native.is_built("hlir_sim")
    source.write_text(good)
    assert build().is_file()


def test_the_library_of_the_package_is_used_where_the_cache_cannot_be(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tree / "deeplink" / "native" / "prebuilt"
    folder.mkdir()
    shutil.copyfile(build(), folder / WITHOUT_TORCH.file_name())
    monkeypatch.setenv("DIPU_BUILD_DIR", "/dev/null")
    assert build() == folder / WITHOUT_TORCH.file_name()


def test_a_package_for_another_torch_is_reported_in_one_line(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "_reported", [])
    folder = tree / "deeplink" / "native" / "prebuilt"
    folder.mkdir()
    (folder / "hlir_sim-torch2.9-cpython-39-0123456789ab.so").write_bytes(b"of another torch")
    said: list[str] = []
    build(said)
    (line,) = (line for line in said if "torch2.9" in line)
    assert line == (
        "the native parts of this package were built for torch2.9-cpython-39; this is "
        f"{WITHOUT_TORCH.tag()}: they are built anew, from the sources in the package"
    )


def test_ccache_is_used_where_it_is_installed(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "bin" / "ccache"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/compiled\nexec "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(script.parent), prepend=os.pathsep)
    build()
    assert "unity_hlir_sim_cxx.cxx" in (tmp_path / "compiled").read_text()


def test_releases_of_a_minor_version_share_a_build(monkeypatch: pytest.MonkeyPatch) -> None:
    def minor(version: str) -> str:
        monkeypatch.setattr(parts, "torch_version", lambda: version)
        return parts.torch_minor()

    assert minor("2.13.0+cpu") == minor("2.13.1") == "2.13"
    assert minor("2.14.0a0+git12") == "2.14.0a0+git12"


def test_one_of_two_processes_builds(tree: Path) -> None:
    children = [other_process(tree), other_process(tree)]
    outputs = [child.communicate()[0].splitlines() for child in children]
    assert [child.returncode for child in children] == [0, 0]
    assert outputs[0][-1] == outputs[1][-1] == str(build())
    assert sum(line.startswith("[1/1]") for output in outputs for line in output) == 1


def test_a_killed_build_leaves_nothing_that_is_loaded(tree: Path, tmp_path: Path) -> None:
    child = other_process(tree)
    assert child.stdout is not None
    assert child.stdout.readline().startswith("building native parts")
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert list((tmp_path / "cache").glob("*.so")) == []
    ctypes.CDLL(str(build()))


def test_without_a_compiler_the_error_says_what_to_do(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BuildError, match=r"hlir_sim needs a C\+\+20 compiler") as caught:
        build()
    assert "no 'no-such-compiler' was found" in str(caught.value)
    assert "DEEPLINK_VENDOR=cpu" in caught.value.hint


@pytest.mark.parametrize("absent", ["cmake", "ninja"])
def test_without_a_build_tool_the_error_says_what_to_do(
    tree: Path, tmp_path: Path, absent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    monkeypatch.setenv("CXX", shutil.which(settings.CXX.get()) or "")
    for tool in {"cmake", "ninja"} - {absent}:
        (tools / tool).touch()
        (tools / tool).chmod(0o755)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tools))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match=f"hlir_sim needs {absent} to build") as caught:
        build()
    assert caught.value.hint == "pip install cmake ninja"


def test_a_cache_that_cannot_be_written_is_reported(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIPU_BUILD_DIR", "/dev/null")
    with pytest.raises(BuildError, match="cannot write the build of hlir_sim") as caught:
        build()
    assert "DEEPLINK_CACHE_DIR" in caught.value.hint


def test_an_unknown_part_is_refused_by_name() -> None:
    with pytest.raises(BuildError, match=r"no native part is named 'opcheck'; parts: torch_dipu"):
        native.build(["opcheck"])


def test_the_command_answers_a_mistake_without_a_traceback() -> None:
    done = python("-m", "deeplink.build", "opcheck")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, "Hint: name one of these.")
    assert "Traceback" not in done.stderr


def test_a_build_waits_until_builds_are_allowed(tree: Path) -> None:
    build()
    source = tree / SOURCE
    source.write_text(source.read_text() + "\n")
    with native.no_builds():
        child = other_process(tree)
        assert child.stdout is not None
        assert child.stdout.readline().startswith("another process builds native parts: waiting")
        assert not native.is_built("hlir_sim")
    assert child.communicate()[0].splitlines()[-1] == str(native.path_of("hlir_sim"))


def test_a_build_without_torch_says_that_torch_comes_first() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(parts.PROJECT / "parts.py")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "this Python has no torch" in done.stderr
    assert "pip install --no-build-isolation" in done.stderr


def test_a_vendor_finds_the_headers_by_cmake(tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.21)\n"
        "project(chip LANGUAGES C)\n"
        "find_package(deeplink REQUIRED)\n"
        "add_library(chip MODULE chip.c)\n"
        "target_link_libraries(chip PRIVATE deeplink::headers)\n"
    )
    (tmp_path / "chip.c").write_text(
        "#include <diopi/functions.h>\n"
        "#include <dipu_runtime.h>\n"
        "int abi(void) { return DIPU_RUNTIME_ABI; }\n"
    )
    place = python("-m", "deeplink.native", "--cmakedir").stdout.strip()
    cmake, ninja = native.tool("cmake", "chip"), native.tool("ninja", "chip")
    configure = [cmake, "-S", ".", "-B", "b", "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    for command in ([*configure, f"-Ddeeplink_DIR={place}"], [ninja, "-C", "b"]):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert ctypes.CDLL(str(tmp_path / "b" / "libchip.so")).abi() > 0


def test_a_wheel_has_the_native_parts_and_what_builds_them(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q"]
    part = ["-C", "cmake.define.DEEPLINK_PARTS=hlir_sim", "-w", str(tmp_path), str(ROOT)]
    done = subprocess.run([*pip, *part], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("deeplink-*.whl")
    version = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert wheel.name.split("-", 2)[2] == f"{version}-{version}-linux_x86_64.whl"
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    bare = {"DIPU_BUILD_DIR": "/dev/null", "CXX": "no-such-compiler", "PYTHONPATH": str(site)}
    done = python("-m", "deeplink.native", "--examples", **bare)
    assert (Path(done.stdout.strip()) / "droplet" / "README.md").is_file()
    done = python("-c", BUILD, **bare)
    assert Path(done.stdout.strip()).parent == site / "deeplink" / "native" / "prebuilt"


def test_the_device_without_a_compiler(tmp_path: Path) -> None:
    bare = {"CXX": "no-such-compiler", "DIPU_BUILD_DIR": str(tmp_path)}
    # nor parts that an installation brought
    hidden = "from deeplink import native; native._prebuilt = lambda: []; import torch_dipu"
    done = run_python(hidden, **bare)
    assert done.returncode == 1
    assert "there is no C++ compiler" in done.stderr
    source = "import torch, ditorch; print(torch.ones(2, device='cuda').device)"
    assert output_of(source, DEEPLINK_VENDOR="cpu", DITORCH_QUIET="1", **bare).strip() == "cpu"
