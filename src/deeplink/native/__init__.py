# SPDX-License-Identifier: Apache-2.0
"""Native parts: taken from the installed wheel, else built with CMake and cached.

A library's file name holds a hash of its sources and of its environment (torch's minor version,
Python, the machine). A library of other sources or another torch has another name and is never
loaded. `parts.py` computes the names; `CMakeLists.txt` defines how the parts are compiled.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import IO, TypeVar

from deeplink import settings
from deeplink.errors import BuildError
from deeplink.i18n import _
from deeplink.native import parts
from deeplink.native.parts import PARTS
from deeplink.process import children

T = TypeVar("T")
Say = Callable[[str], None]
# A progress line of ninja: a unity unit of several files, or a single file.
_UNIT = re.compile(
    r"Building CXX object CMakeFiles/(.+?)\.dir/(?:Unity/unity_(\w+)_cxx\.cxx|.*?(\w+)\.cpp)\.o$"
)
_SECONDS = {
    True: 12.0,
    False: 1.0,
}  # estimated seconds of a unit with torch's headers and without, until one is measured
_LIBRARY = re.compile(rf"({'|'.join(map(re.escape, PARTS))})-(.+)-([0-9a-f]{{12}})\.so")


def path_of(name: str) -> Path | None:
    """Return the library of a part if it is built: in the package, or in the cache."""
    file = _part(name).file_name()
    return next((f / file for f in (*_prebuilt(), _cache()) if (f / file).is_file()), None)


def is_built(name: str) -> bool:
    """Whether a part can be loaded without building it."""
    return path_of(name) is not None


def build(names: Sequence[str], progress: Say = lambda line: None) -> dict[str, Path]:
    """Build what is missing of these parts or groups ("core", "all"); return each part's library.

    `progress` receives a line when a build starts, after each unit, and at the end; nothing if all
    is built. Safe for several processes at once: one builds, the others wait for it.
    """
    wanted = _checked(lambda: parts.names(names))
    missing = [name for name in wanted if not is_built(name)]
    if missing:
        _build(missing, progress)
    found = {name: path_of(name) for name in wanted}
    return {name: path for name, path in found.items() if path is not None}


def load_extension(name: str, say: Say = lambda line: None) -> ModuleType:
    """Return the module `<name>._C` of a part; build it if it is missing, load it once."""
    module_name = f"{name}._C"
    if module_name not in sys.modules:
        path = build([name], say)[name]
        spec = importlib.util.spec_from_file_location(module_name, path)
        assert spec is not None and spec.loader is not None  # a file path always gives both
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[module_name] = module
    return sys.modules[module_name]


def folder_of(package: str) -> Path:
    """Return a package's folder without importing the package."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise BuildError(f"no package {package!r} is installed.", hint="pip install deeplink.")
    return Path(spec.origin).parent


def includes() -> tuple[Path, Path]:
    """Return the folders of the C headers that a vendor's library is compiled with."""
    return parts.ROOT / "diopi" / "include", parts.ROOT / "torch_dipu" / "csrc" / "include"


def cmake_folder() -> Path:
    """Return the folder of deeplinkConfig.cmake, for CMake's find_package(deeplink)."""
    return parts.PROJECT


def examples() -> Path:
    """Return the folder of the examples, in the wheel or in the checkout."""
    installed = parts.ROOT / "deeplink_examples"
    return installed if installed.is_dir() else parts.ROOT.parent / "examples"


def has_compiler() -> bool:
    """Whether a C++ compiler for a build exists."""
    return shutil.which(settings.CXX.get()) is not None


def compiler_state() -> str:
    """Describe the C++ compiler in use, or that there is none, for reports."""
    name = settings.CXX.get()
    return shutil.which(name) or f"none found (CXX={name})"


@contextmanager
def no_builds() -> Iterator[None]:
    """Wait for builds of all processes to end, and prevent new builds within the block."""
    with ExitStack() as held:
        for folder in sorted(_cache().glob("cmake/*/")):
            held.enter_context(_locked(folder, lambda line: None))
        yield


def _part(name: str) -> parts.Part:
    _checked(lambda: parts.names([name]))
    if PARTS[name].torch:
        _checked(parts.torch_version)
    return PARTS[name]


def _has_torch() -> bool:
    try:
        return bool(parts.torch_version())
    except parts.MissingError:
        return False


def _checked(call: Callable[[], T]) -> T:
    try:
        return call()
    except parts.MissingError as error:
        raise BuildError(str(error), hint=error.hint) from None


def _cache() -> Path:
    return settings.DIPU_BUILD_DIR.get()


def _prebuilt() -> list[Path]:
    """List the folders of libraries that a wheel or an editable installation contains."""
    return [parts.PROJECT / "prebuilt", Path(sysconfig.get_path("platlib")) / "deeplink_prebuilt"]


def _build_folder() -> Path:
    """Return CMake's build folder: one per source tree, compiler, Python and torch."""
    torch = f"torch{parts.torch_version()}" if _has_torch() else "no-torch"
    key = f"{parts.ROOT} {sys.executable} {compiler_state()}"
    tag = f"{torch}-{sysconfig.get_config_var('SOABI')}"
    return _cache() / "cmake" / f"{tag}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"


def _build(names: list[str], say: Say) -> None:
    """Compile parts and move their libraries into the cache."""
    label = ", ".join(names)
    cmake, ninja, compiler = _tools(label)
    folder = _build_folder()
    with _locked(folder, say, label) as lock:
        missing = [name for name in names if not is_built(name)]
        if not missing:  # another process built them in the meantime
            return
        _report_other_torch(missing, say)
        files = {name: PARTS[name].file_name() for name in missing}
        start = time.monotonic()
        sources = _Sources(folder, missing)
        values = {
            "CMAKE_MAKE_PROGRAM": ninja,
            "CMAKE_CXX_COMPILER": compiler,
            "Python_EXECUTABLE": sys.executable,
            "DEEPLINK_PARTS": "none",
        }
        configure = [cmake, "-S", str(parts.PROJECT), "-B", str(folder), "-G", "Ninja", "-Wno-dev"]
        _run(label, [*configure, *(f"-D{name}={value}" for name, value in values.items())], lock)
        if sources.are_older_than_objects():
            _run(label, [ninja, "-C", str(folder), "-t", "clean"], lock)
        make = [ninja, "-C", str(folder), *missing]
        progress = _Progress(_run(label, [*make, "-n"], lock), say)
        sources.remember()
        _run(label, [*make, f"-j{_jobs()}"], lock, progress.read)
        if files != {name: PARTS[name].file_name() for name in missing}:
            raise BuildError(
                _("sources of {label} changed while they were compiled.").format(label=label),
                hint=_("run it again."),
            )
        try:
            for name, file in files.items():
                half = _cache() / f"{file}.{os.getpid()}.tmp"
                shutil.copyfile(folder / f"{name}.so", half)
                half.rename(_cache() / file)  # atomic: a reader never sees an incomplete library
        except OSError as error:
            raise _unwritable(label, error) from error
        say(
            _("native parts ready after {seconds:.0f} s: {names}").format(
                seconds=time.monotonic() - start, names=", ".join(missing)
            )
        )


class _Progress:
    """Converts ninja's output to completed steps and an estimate of the remaining time.

    The estimate scales with the completed units: a unit with torch's headers takes far longer
    than one without, and the time of the linker is negligible.
    """

    def __init__(self, plan: str, say: Say) -> None:
        self.say = say
        self.steps = [unit for line in plan.splitlines() if (unit := _UNIT.search(line))]
        self.total = sum(map(self._seconds, self.steps))
        self.done = 0.0
        self.count = 0
        self.start = time.monotonic()
        parted = ", ".join(dict.fromkeys(unit[1] for unit in self.steps))
        if self.steps:
            guess = _duration(self.total / min(_jobs(), len(self.steps)))
            units = (
                _("1 unit")
                if len(self.steps) == 1
                else _("{count} {count:unit|units}").format(count=len(self.steps))
            )
            say(
                _("building native parts ({parted}): {units}, about {guess}, once").format(
                    parted=parted, units=units, guess=guess
                )
            )

    @staticmethod
    def _seconds(unit: re.Match[str]) -> float:
        return _SECONDS[PARTS[unit[1]].torch]

    def read(self, line: str) -> None:
        """Process one line of ninja's output."""
        unit = _UNIT.search(line)
        if unit is None:
            return
        self.count += 1
        self.done += self._seconds(unit)
        left = (time.monotonic() - self.start) / self.done * (self.total - self.done)
        ending = (
            _(", {duration} left").format(duration=_duration(left))
            if self.count < len(self.steps)
            else ""
        )
        self.say(f"[{self.count}/{len(self.steps)}] {unit[1]}: {unit[2] or unit[3]}.cpp{ending}")


class _Sources:
    """The content of the sources at the last build of a folder.

    Ninja compares time stamps. A file that was replaced by an older one (`cp -p`, an unpacked
    archive) counts as unchanged, and its object would be of other sources than the name states.
    """

    def __init__(self, folder: Path, names: list[str]) -> None:
        self.note = folder / "sources.json"
        self.files = [file for name in names for file in PARTS[name].sources()]
        self.now = {str(f): hashlib.sha256(f.read_bytes()).hexdigest() for f in self.files}
        try:
            self.before: dict[str, str] = json.loads(self.note.read_text("utf-8"))
            self.built = self.note.stat().st_mtime
        except (OSError, ValueError):
            self.before, self.built = {}, 0.0

    def are_older_than_objects(self) -> bool:
        """Whether a file was changed without a newer time stamp."""
        return any(
            self.before.get(str(file), self.now[str(file)]) != self.now[str(file)]
            and file.stat().st_mtime <= self.built
            for file in self.files
        )

    def remember(self) -> None:
        """Record the content of the sources before they are compiled."""
        self.note.write_text(json.dumps({**self.before, **self.now}), "utf-8")


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


_reported: list[str] = []


def _report_other_torch(names: list[str], say: Say) -> None:
    """Report once per process that the package contains these parts for another torch or Python."""
    for folder in _prebuilt():
        for path in sorted(folder.glob("*.so")):
            named = _LIBRARY.fullmatch(path.name)
            if named and named[1] in names and named[2] != PARTS[named[1]].tag() and not _reported:
                _reported.append(named[2])
                say(
                    f"the native parts of this package were built for {named[2]}; this is "
                    f"{PARTS[named[1]].tag()}: they are built anew, from the sources in the package"
                )


@contextmanager
def _locked(folder: Path, say: Say, label: str = "") -> Iterator[IO[bytes]]:
    """Hold the lock of a build folder, creating the folder;
    report once if another process holds it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = folder.with_name(f"{folder.name}.lock").open("wb")
    except OSError as error:
        raise _unwritable(label, error) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(
                _("another process builds native parts: waiting for it ({name})").format(
                    name=lock.name
                )
            )
            fcntl.flock(lock, fcntl.LOCK_EX)
        folder.mkdir(parents=True, exist_ok=True)  # the cache may have been cleaned in the meantime
        yield lock


def _unwritable(label: str, error: OSError) -> BuildError:
    return BuildError(
        _("cannot write the build of {label} to {cache}: {error}.").format(
            label=label, cache=_cache(), error=error
        ),
        hint=_("set DEEPLINK_CACHE_DIR to a folder that you may write."),
    )


def _jobs() -> int:
    """Return the number of parallel compilers: the setting,
    or one per core with two gigabytes each.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cores = os.cpu_count() or 1
    return settings.DIPU_BUILD_JOBS.get() or max(1, min(cores, memory >> 31))


def _tools(label: str) -> tuple[str, str, str]:
    """Return the paths of CMake, ninja and the compiler."""
    name = settings.CXX.get()
    compiler = shutil.which(name)
    if compiler is None:
        raise BuildError(
            _("{label} needs a C++20 compiler for its native part; no {name!r} was found.").format(
                label=label, name=name
            ),
            hint=_(
                "install g++ (Debian: `apt-get install g++`), or set CXX to your compiler, or do "
                "without the device: DEEPLINK_VENDOR=cpu."
            ),
        )
    return tool("cmake", label), tool("ninja", label), compiler


def tool(name: str, label: str) -> str:
    """Return the path of cmake or ninja: pip's next to this Python, else the system's."""
    scripts = sysconfig.get_path("scripts")
    found = shutil.which(name, path=scripts) or shutil.which(name)
    if found is None:
        raise BuildError(
            _(
                "{label} needs {name} to build its native part; searched {scripts} and PATH; it "
                "is not there."
            ).format(label=label, name=name, scripts=scripts),
            hint="pip install cmake ninja",
        )
    return found


def _run(label: str, command: list[str], lock: IO[bytes], read: Say = lambda line: None) -> str:
    """Run a command and return its output, passing each line to `read` as well.

    The command inherits the lock: if it outlives this process, no other build starts.
    """
    lines = []
    child = children.start(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, pass_fds=(lock.fileno(),)
    )
    try:
        assert child.stdout is not None  # requested above
        with child.stdout:
            for raw in child.stdout:
                lines.append(raw.decode("utf-8", "replace"))
                read(lines[-1].rstrip("\n"))
        failed = child.wait() != 0
    except BaseException:
        children.end(child)
        raise
    if failed:
        raise BuildError(
            _("the native build of {label} failed:\n{output}").format(
                label=label, output="".join(lines).strip()[-4000:]
            ),
            hint=_(
                "gcc 12 with torch 2.11 to 2.15 is known to work; `deeplink doctor` shows what "
                "is here."
            ),
        )
    return "".join(lines)
