"""Native parts: C++ built on first use and cached by torch version, Python and source hash.

Each unit's object is kept too: what a change does not reach is not compiled again.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from deeplink import settings
from deeplink.errors import BuildError

# hidden, without a jump table: calls between the parts cost less
FLAGS = ("-O3", "-g0", "-fPIC", "-std=c++20", "-w", "-fvisibility=hidden", "-fno-plt")
TORCH_FLAGS = ("-DTORCH_EXTENSION_NAME=_C", "-DAT_PER_OPERATOR_HEADERS", "-DUSE_DISTRIBUTED")
HEADERS_OF = {"torch_dipu": ("diopi",)}  # extension -> packages whose `include` it is built with
TORCH_LIBRARIES = ("-lc10", "-ltorch", "-ltorch_cpu", "-ltorch_python")
Say = Callable[[str], None]
_INCLUDE = re.compile(rb'^\s*#\s*include\s+["<]([^">]+)[">]', re.MULTILINE)


@dataclass(frozen=True)
class Library:
    """A shared library: the units are compiled apart, they and all C++ in `folders` are hashed."""

    name: str
    units: tuple[Path, ...]
    folders: tuple[Path, ...]
    torch: bool  # a torch extension (module `_C`), or plain C++
    flags: tuple[str, ...] = ()  # for its units, beside those of all

    def path(self) -> Path:
        """Where it lies once built."""
        folder = settings.DIPU_BUILD_DIR.get() / f"{self.name}{self._tag()}-{self._hash()}"
        return folder / ("_C.so" if self.torch else f"lib{self.name}.so")

    def is_built(self) -> bool:
        """Whether the next `build` has nothing to do."""
        return self.path().exists()

    def build(self, say: Say = lambda line: None) -> Path:
        """Its path; compiles first when it is not there. Safe for several processes at once."""
        path = self.path()
        if path.exists():
            return path
        lock = path.parent / "lock"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock.touch()
        except OSError as error:
            raise BuildError(
                f"cannot write the build of {self.name} to {path.parent}: {error}.",
                hint="set DIPU_BUILD_DIR to a folder that you may write.",
            ) from error
        with lock.open() as held:
            fcntl.flock(held, fcntl.LOCK_EX)  # another process may be building it
            if not path.exists():
                self._compile(path, say)
        return path

    def _tag(self) -> str:
        return f"-torch{_torch_version()}-{sys.implementation.cache_tag}" if self.torch else ""

    def _digest(self, *words: str) -> hashlib._Hash:
        return hashlib.sha256(" ".join((*FLAGS, *TORCH_FLAGS, *self.flags, *words)).encode())

    def _hash(self) -> str:
        digest = self._digest(*(unit.name for unit in self.units))
        for folder in self.folders:
            for file in sorted(folder.rglob("*")):
                if file.suffix in {".cpp", ".h"}:
                    digest.update(file.name.encode() + b"\0" + file.read_bytes())
        return digest.hexdigest()[:12]

    def _object(self, unit: Path) -> Path:
        """Where a unit's object is kept: by the text of all that it includes of `folders`."""
        digest, reached = self._digest(self._tag()), [unit]
        for file in reached:  # it grows
            text = file.read_bytes()
            digest.update(file.name.encode() + b"\0" + text)
            for name in _INCLUDE.findall(text):
                places = (folder / name.decode() for folder in (file.parent, *self.folders))
                found = next(filter(Path.is_file, places), None)
                if found is not None and found not in reached:
                    reached.append(found)
        return self.path().parent.parent / "objects" / f"{unit.stem}-{digest.hexdigest()[:16]}.o"

    def _compile(self, path: Path, say: Say) -> None:
        start = time.monotonic()
        often = "about a minute, once" if self.torch else "once"
        say(f"building the native part {self.name} ({often}) into {path.parent}")
        compiler = _compiler(self.name)
        command = [compiler, *FLAGS, *self.flags, *(f"-I{folder}" for folder in self.folders)]
        if self.torch:
            command += [*TORCH_FLAGS, *_torch_includes()]
        scratch = path.with_suffix(f".{os.getpid()}.tmp")
        objects = [self._object(unit) for unit in self.units]

        def compile_unit(unit: Path, target: Path) -> None:
            if target.exists():
                return
            begun = time.monotonic()
            half = target.with_suffix(f".{os.getpid()}.tmp")
            try:
                _run(self.name, [*command, "-c", str(unit), "-o", str(half)])
                half.rename(target)
            finally:
                half.unlink(missing_ok=True)
            say(f"  {unit.name}: compiled in {time.monotonic() - begun:.0f} s")

        try:
            objects[0].parent.mkdir(exist_ok=True)
            with ThreadPoolExecutor(_jobs()) as pool:
                list(pool.map(compile_unit, self.units, objects))
            libraries = [*_torch_libraries()] if self.torch else ["-lpthread"]
            link = [compiler, "-shared", *map(str, objects), *libraries, "-o", str(scratch)]
            _link(self.name, link)
            scratch.rename(path)  # a reader never sees half of it
        finally:
            scratch.unlink(missing_ok=True)
        say(f"  {self.name}: ready after {time.monotonic() - start:.0f} s")


def load_extension(package: str, say: Say = lambda line: None) -> ModuleType:
    """The module `<package>._C`; built first when it is not there, loaded once."""
    name = f"{package}._C"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, extension(package).build(say))
        assert spec is not None and spec.loader is not None  # a file path always gives both
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[name] = module
    return sys.modules[name]


def extension(package: str) -> Library:
    """The torch extension in a package's `csrc` folder: every `unit_*.cpp` is a unit, and the words
    of `flags.txt`, where there is one, are for their compiler.
    """
    csrc = folder_of(package) / "csrc"
    headers = (folder_of(other) / "include" for other in HEADERS_OF.get(package, ()))
    units = tuple(sorted(csrc.glob("unit_*.cpp")))
    own = csrc / "flags.txt"
    flags = tuple(own.read_text("utf-8").split()) if own.is_file() else ()
    return Library(package, units, (csrc, *headers), torch=True, flags=flags)


def folder_of(package: str) -> Path:
    """A package's folder, without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise BuildError(f"no package {package!r} is installed.", hint="pip install deeplink.")
    return Path(spec.origin).parent


def _jobs() -> int:
    """How many compilers run at once: as asked, or one per core with two gigabytes for each."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return settings.DIPU_BUILD_JOBS.get() or max(1, min(os.cpu_count() or 1, memory >> 31))


def has_compiler() -> bool:
    """Whether a build could be tried."""
    return shutil.which(settings.CXX.get()) is not None


def compiler_state() -> str:
    """The C++ compiler in use, or that there is none; for reports."""
    name = settings.CXX.get()
    return shutil.which(name) or f"none found (CXX={name})"


def _compiler(what: str) -> str:
    name = settings.CXX.get()
    found = shutil.which(name)
    if found is None:
        raise BuildError(
            f"{what} needs a C++20 compiler for its native part; looked for {name!r}, found none.",
            hint="install g++ (Debian: `apt-get install g++`), or set CXX to your compiler, or "
            "do without the device: DEEPLINK_VENDOR=cpu.",
        )
    return found


def _link(what: str, command: list[str]) -> None:
    """Links against torch's C++ runtime: a compiler set up to link a copy of its own into each
    library would put a second one into the process, and the first exception would crash it."""
    try:
        _run(what, [*command, "-l:libstdc++.so.6"])
    except BuildError:  # no such file on this system: the compiler knows better
        _run(what, command)


def _run(what: str, command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(
            f"the native build of {what} failed:\n{done.stderr.strip()[-4000:]}",
            hint="gcc 12 with torch 2.11 and 2.13 is known to work; `deeplink doctor` shows what "
            "is here.",
        )


def _torch_version() -> str:
    import torch

    return str(torch.__version__)


def _torch_root() -> Path:
    import torch

    return Path(torch.__file__).parent


def _torch_includes() -> list[str]:
    include = _torch_root() / "include"
    folders = (include, include / "torch" / "csrc" / "api" / "include", include / "kineto")
    paths = [*map(str, folders), sysconfig.get_path("include")]
    return [part for path in paths for part in ("-isystem", path)]


def _torch_libraries() -> list[str]:
    return [f"-L{_torch_root() / 'lib'}", *TORCH_LIBRARIES]
