"""The table between a chip and torch_dipu: its Python interface mirrors dipu_runtime.h."""

from __future__ import annotations

import ctypes
import re
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deeplink import native, settings
from tests.torch_dipu.interpreter import run_python
from torch_dipu import runtime
from torch_dipu.runtime import Copy, DeviceInfo

HEADER = native.folder_of("torch_dipu") / "csrc" / "include" / "dipu_runtime.h"
TEXT = HEADER.read_text("utf-8")


def members(struct: str) -> list[str]:
    """The members of a struct of the header, in their order."""
    (body,) = re.findall(rf"typedef struct {struct} {{(.*?)}} {struct};", TEXT, re.DOTALL)
    plain = re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL)
    names: list[str] = []
    for declaration in filter(None, map(str.strip, plain.split(";"))):
        pointer = re.search(r"\(\*(\w+)\)", declaration)
        names += (
            [pointer[1]] if pointer else re.findall(r"(\w+)(?:\[\d+\])?(?=\s*(?:,|$))", declaration)
        )
    return names


def fields(struct: type[ctypes.Structure]) -> list[str]:
    return [field[0] for field in struct._fields_]


def test_the_table_has_the_functions_of_the_header_in_their_order() -> None:
    assert members("DipuRuntime") == ["abi", "size", "last_error", *runtime.FUNCTIONS]
    assert members("DipuRuntime") == fields(runtime._Table)


def test_the_records_have_the_members_of_the_header() -> None:
    assert members("DipuDeviceInfo") == fields(runtime._CInfo)
    assert members("DipuCollective") == fields(runtime._CCollective)
    assert re.findall(r"char bytes\[(\d+)\]", TEXT) == [str(runtime.GROUP_ID)]
    assert members("DipuCopy") == [n.replace("nbytes", "bytes") for n in fields(runtime._CCopy)]


@pytest.mark.parametrize("name", runtime.FUNCTIONS)
def test_a_function_takes_what_the_header_says(name: str) -> None:
    (parameters,) = re.findall(rf"int \(\*{name}\)\((.*?)\);", TEXT)
    kinds = [_kind(parameter) for parameter in parameters.split(",")]
    assert kinds == [_KINDS.get(argument, "pointer") for argument in runtime.FUNCTIONS[name]]


def _kind(parameter: str) -> str:
    words = {"int": "int", "size_t": "64 bits", "uint64_t": "64 bits"}
    return "pointer" if "*" in parameter else words[parameter.split()[0]]


_KINDS = {ctypes.c_int: "int", ctypes.c_size_t: "64 bits", ctypes.c_uint64: "64 bits"}


def test_the_codes_are_those_of_the_header() -> None:
    codes = dict(re.findall(r"DIPU_(\w+) = (\d),", TEXT))
    assert codes == {
        "OK": str(runtime.OK),
        "ERROR": str(runtime.ERROR),
        "OUT_OF_MEMORY": str(runtime.OUT_OF_MEMORY),
        "NOT_READY": str(runtime.NOT_READY),
    }
    (reductions,) = re.findall(r"enum DipuReduction {(.*?)}", TEXT, re.DOTALL)
    assert re.findall(r"DIPU_(\w+)", reductions) == [n.upper() for n in runtime.REDUCTIONS]
    assert re.findall(r"#define DIPU_RUNTIME_ABI (\d+)", TEXT) == [str(runtime.ABI)]
    assert re.findall(r"#define DIPU_HOST \((-\d)\)", TEXT) == [str(runtime.HOST)]


def test_the_optional_functions_are_marked_in_the_header() -> None:
    marked = re.findall(r"\(\*(\w+)\)[^;]*;\s*/\* optional \*/", TEXT)
    assert tuple(marked) == runtime.OPTIONAL


def test_the_protocol_has_every_function_that_is_not_optional() -> None:
    methods = {name for name in vars(runtime.Runtime) if not name.startswith("_")}
    assert methods == set(runtime.FUNCTIONS) - set(runtime.OPTIONAL)


def chip(**methods: Any) -> Any:
    """A Python runtime whose methods do nothing, but for those given."""
    nothing = {name: lambda *arguments: None for name in runtime.FUNCTIONS}
    return SimpleNamespace(**{**nothing, **methods})


def table_of(python: Any) -> Any:
    return runtime._Table.from_address(runtime.table_address(python))


def last_error(table: Any) -> bytes:
    return ctypes.string_at(table.last_error())


def test_a_communicator_in_python_gets_the_bytes_and_the_records() -> None:
    seen: list[Any] = []

    def create(device: int, rank: int, size: int, group: bytes) -> int:
        seen.append((device, rank, size, group.rstrip(b"\0")))
        return 77

    table = table_of(chip(comm_id=lambda: b"here", comm_create=create, comm_all_reduce=seen.append))
    group, made = runtime._CGroupId(), ctypes.c_void_p()
    assert table.comm_id(group) == runtime.OK
    given = ctypes.cast(ctypes.pointer(group), ctypes.POINTER(runtime._CGivenId))
    assert table.comm_create(0, 1, 2, given, made) == runtime.OK
    call = runtime._CCollective(communicator=made.value, src=1, dst=2, count=3, dtype=9, peer=0)
    assert table.comm_all_reduce(call) == runtime.OK
    assert seen == [(0, 1, 2, b"here"), runtime.Collective(77, 1, 2, 3, 9, 0, 0, 0)]


def test_results_are_written_where_c_wants_them() -> None:
    table = table_of(
        chip(
            device_count=lambda: 3,
            memory_info=lambda device: (device + 1, device + 2),
            device_info=lambda device: DeviceInfo("chip", 1 << 40, 2, 3, 4),
        )
    )
    count, free, total, info = (
        ctypes.c_int(),
        ctypes.c_size_t(),
        ctypes.c_size_t(),
        runtime._CInfo(),
    )
    assert table.device_count(count) == runtime.OK
    assert table.memory_info(7, free, total) == runtime.OK
    assert table.device_info(0, info) == runtime.OK
    assert (count.value, free.value, total.value) == (3, 8, 9)
    assert (info.name, info.total_memory, info.major, info.minor) == (b"chip", 1 << 40, 2, 3)


def test_a_copy_arrives_as_a_record() -> None:
    seen: list[Copy] = []
    table = table_of(chip(memory_copy=seen.append))
    table.memory_copy(runtime._CCopy(0x1000, None, 16, 0, runtime.HOST, 0, 1, None))
    assert seen == [Copy(0x1000, 0, 16, 0, runtime.HOST, 0, 0, True)]


@pytest.mark.parametrize(("done", "code"), [(True, runtime.OK), (False, runtime.NOT_READY)])
def test_a_query_says_ready_or_not(done: bool, code: int) -> None:
    table = table_of(chip(event_query=lambda event: done))
    assert table.event_query(1) == code


def raising(error: Exception) -> Any:
    def method(*arguments: Any) -> None:
        raise error

    return method


def test_exceptions_become_codes_and_their_text() -> None:
    table = table_of(
        chip(memory_allocate=raising(MemoryError("full")), memory_free=raising(KeyError("who?")))
    )
    assert table.memory_allocate(0, 1, ctypes.c_void_p()) == runtime.OUT_OF_MEMORY
    assert last_error(table) == b"full"
    assert table.memory_free(0, 1) == runtime.ERROR
    assert last_error(table) == b"KeyError: 'who?'"


def test_a_method_that_returns_nothing_is_an_error() -> None:
    table = table_of(chip())
    assert table.memory_allocate(0, 1, ctypes.c_void_p()) == runtime.ERROR
    assert last_error(table) == b"TypeError: it returned None"


def test_each_thread_has_its_own_last_error() -> None:
    table = table_of(chip(device_synchronize=lambda device: [][device]))
    assert table.device_synchronize(0) == runtime.ERROR
    others: list[int] = []
    thread = threading.Thread(target=lambda: others.append(table.last_error() or 0))
    thread.start()
    thread.join()
    assert others == [0]
    assert last_error(table) == b"IndexError: list index out of range"


def test_a_window_is_not_taken_from_python() -> None:
    table = table_of(chip())
    assert not table.memory_window
    assert table.device_synchronize


def test_a_runtime_that_lacks_functions_is_refused() -> None:
    with pytest.raises(TypeError, match=r"object is not a .* it lacks device_count, device_info"):
        runtime.table_address(object())  # type: ignore[arg-type]


WRONG = """
#include <dipu_runtime.h>
extern "C" const DipuRuntime* dipu_runtime() {
  static DipuRuntime table{};
  table.abi = 99;
  table.size = 16;
  return &table;
}
"""
LOAD = """
import ctypes
from deeplink_vendors.reference import runtime
runtime.runtime = lambda: ctypes.CDLL({library!r})
import torch_dipu
"""


def test_a_library_of_another_abi_is_refused(tmp_path: Path) -> None:
    source, library = tmp_path / "wrong.cpp", tmp_path / "wrong.so"
    source.write_text(WRONG)
    compiler = settings.CXX.get().split()
    flags = ["-shared", "-fPIC", f"-I{HEADER.parent}", str(source), "-o", str(library)]
    subprocess.run([*compiler, *flags], check=True)
    done = run_python(LOAD.format(library=str(library)))
    assert done.returncode != 0
    assert (
        f"the vendor's runtime speaks ABI 99 (16 bytes); this torch_dipu speaks ABI {runtime.ABI}"
    ) in done.stderr
    assert "Rebuild the vendor's library against dipu_runtime.h" in done.stderr
