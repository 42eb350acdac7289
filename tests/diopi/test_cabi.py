"""Libraries over the C ABI: the handshake, the arguments, the runtime's functions, errors."""

import ctypes
import gc
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from deeplink.errors import KernelError, LibraryError, NoKernelError
from diopi import cabi, catalogue, handles, implementation
from tests.diopi.compiled import COMPILER, IMPLEMENTED, library

ROOT = Path(__file__).parents[2]
NEG = """
diopiError_t diopiNeg(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                      diopiConstTensorHandle_t input) {
    (void)ctx;
    void* to; const void* from; int64_t n;
    diopiGetTensorData(out, &to);
    diopiGetTensorDataConst(input, &from);
    diopiGetTensorNumel(input, &n);
    for (int64_t i = 0; i < n; ++i) ((float*)to)[i] = -((const float*)from)[i];
    return diopiSuccess;
}
"""


def kernels(folder: Path, source: str) -> Any:
    return cabi.load(library(folder, IMPLEMENTED + source), "acme").kernels


# --- the handshake --------------------------------------------------------------------------


def test_a_library_has_the_kernels_that_it_has(tmp_path: Path) -> None:
    about = 'const char* diopiGetVendorName(void) { return "acme"; }\n'
    found = cabi.load(library(tmp_path, IMPLEMENTED + NEG + about))
    assert (found.vendor, found.functions, list(found.kernels)) == ("acme", ("diopiNeg",), ["neg"])
    assert found.kernels["neg"](torch.tensor([1.0, -2.0])).tolist() == [-1, 2]


def test_a_file_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with pytest.raises(LibraryError, match=r"libno.so does not load.*\nHint: build it first"):
        cabi.load(tmp_path / "libno.so")


def test_a_file_that_is_no_library_is_reported(tmp_path: Path) -> None:
    (tmp_path / "libbad.so").write_text("text")
    with pytest.raises(LibraryError, match=r"libbad.so does not load: "):
        cabi.load(tmp_path / "libbad.so")


def test_a_library_without_functions_is_reported(tmp_path: Path) -> None:
    path = library(tmp_path, IMPLEMENTED)
    with pytest.raises(LibraryError, match=r"has none of the \d+ functions of diopi.h"):
        cabi.load(path)


def misspelt(name: str) -> str:
    return f"DIOPI_API int {name}(void); int {name}(void) {{ return 0; }}\n"


def test_a_misspelt_function_is_reported_with_a_suggestion(tmp_path: Path) -> None:
    path = library(tmp_path, IMPLEMENTED + NEG + misspelt("diopiSofmax") + misspelt("diopi_acme"))
    with pytest.warns(UserWarning, match=r"diopiSofmax \(did you mean diopiSoftmax\?\), diopi_ac"):
        found = cabi.load(path)
    assert found.unknown == {"diopiSofmax": "diopiSoftmax", "diopi_acme": ""}
    assert found.functions == ("diopiNeg",)


def test_a_library_with_nothing_but_a_misspelt_function_names_it(tmp_path: Path) -> None:
    path = library(tmp_path, IMPLEMENTED + misspelt("diopiSofmax"))
    with pytest.raises(LibraryError, match=r"exports diopiSofmax \(did you mean diopiSoftmax\?\)"):
        cabi.load(path)


def test_a_function_with_the_names_of_cpp_is_reported(tmp_path: Path) -> None:
    path = library(tmp_path, IMPLEMENTED + NEG + misspelt("_Z12diopiSoftmaxPv"))
    with pytest.warns(UserWarning, match=r'did you mean diopiSoftmax, with extern "C"\?'):
        cabi.load(path)


def test_a_library_of_something_else_is_reported(tmp_path: Path) -> None:
    path = library(tmp_path, "int answer(void); int answer(void) { return 42; }")
    with pytest.raises(LibraryError, match=r"it exports no diopiAbiVersion.\nHint: .*IMPLEMENTATI"):
        cabi.load(path)


def test_another_abi_is_reported_with_both_numbers(tmp_path: Path) -> None:
    header = (cabi.include() / "diopi_runtime.h").read_text()
    (tmp_path / "diopi_runtime.h").write_text(header.replace("ABI_VERSION 1u", "ABI_VERSION 99u"))
    source = '#define DIOPI_IMPLEMENTATION\n#include "diopi_runtime.h"\n' + NEG.replace(
        "diopiError_t diopiNeg", "DIOPI_API diopiError_t diopiNeg(diopiContextHandle_t, "
        "diopiTensorHandle_t, diopiConstTensorHandle_t);\ndiopiError_t diopiNeg", 1
    )  # fmt: skip
    path = library(tmp_path, source)
    with pytest.raises(LibraryError, match="speaks ABI 99; this diopi speaks ABI 1"):
        cabi.load(path)


def test_a_library_without_the_implementation_error_names_what_to_define(tmp_path: Path) -> None:
    path = library(tmp_path, "#include <diopi.h>\n" + NEG)
    with pytest.raises(LibraryError, match="#define DIOPI_IMPLEMENTATION"):
        cabi.load(path)


def test_the_structs_are_those_of_the_header(tmp_path: Path) -> None:
    structs = {
        "struct diopiTensor": handles.CTensor,
        "struct diopiContext": handles.CContext,
        "diopiRuntime_t": handles.CRuntime,
        "diopiSize_t": handles.CSize,
        "diopiScalar_t": handles.CScalar,
    }
    lines = [
        f'printf("%zu\\n", offsetof({name}, {field[0]}));'
        for name, struct in structs.items()
        for field in struct._fields_
        if field[0] != "value"
    ]
    lines += [f'printf("%zu\\n", sizeof({name}));' for name in structs]
    source = IMPLEMENTED + "#include <stdio.h>\nint main(void) {" + "\n".join(lines) + "}"
    (tmp_path / "main.c").write_text(source)
    command = [COMPILER, "-std=c11", f"-I{cabi.include()}", "main.c", "-o", "main"]
    subprocess.run(command, cwd=tmp_path, check=True)
    printed = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True)
    expected = [
        getattr(struct, field[0]).offset
        for struct in structs.values()
        for field in struct._fields_
        if field[0] != "value"
    ] + [ctypes.sizeof(struct) for struct in structs.values()]
    assert list(map(int, printed.stdout.split())) == expected


def test_the_numbers_are_those_of_the_header() -> None:
    text = (cabi.include() / "diopi_runtime.h").read_text()
    dtypes = dict(re.findall(r"diopi_dtype_(\w+) = (\d+)", text))
    ours = {str(dtype)[6:]: str(code) for dtype, code in handles.CODES.items()}
    assert ours == {k: v for k, v in dtypes.items() if k not in ("tfloat32", "unsupported")}
    names = dict(re.findall(r"(diopi\w+) = (\d+),?", text))
    assert {name: int(names[name]) for name in cabi.STATUS.values()} == {
        name: code for code, name in cabi.STATUS.items()
    }


@pytest.mark.parametrize("compiler", ["gcc -std=c11 -x c", "g++ -std=c++17 -x c++"])
def test_the_headers_are_clean_in_c_and_cpp(compiler: str, tmp_path: Path) -> None:
    (tmp_path / "unit.c").write_text(IMPLEMENTED)
    command = [*compiler.split(), "-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only"]
    done = subprocess.run(
        [*command, f"-I{cabi.include()}", str(tmp_path / "unit.c")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


# --- arguments ------------------------------------------------------------------------------

SHOW = """
#include <stdio.h>
static char text[512];
const char* shown(void);
DIOPI_API const char* shown(void) { return text; }
"""


@pytest.mark.parametrize("language", ["c", "c++"])
def test_the_published_includes_compile(language: str, tmp_path: Path) -> None:
    """<diopi/diopirt.h> and <diopi/functions.h>, as published vendor sources include them."""
    if not COMPILER:
        pytest.skip("no C compiler")
    source = tmp_path / "unit.txt"
    source.write_text("#include <diopi/diopirt.h>\n#include <diopi/functions.h>\n" + NEG)
    done = subprocess.run(
        [
            COMPILER,
            "-x",
            language,
            "-Wall",
            "-Werror",
            "-fsyntax-only",
            f"-I{cabi.include()}",
            source,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_published_includes_are_in_the_wheel() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["scikit-build"]["wheel"]
    packaged = [ROOT / folder for folder in wheel["packages"]]  # with all their files
    headers = {path.relative_to(cabi.include().parent) for path in cabi.include().rglob("*.h")}
    assert {Path("include/diopi/functions.h"), Path("include/diopi/diopirt.h")} <= headers
    assert any(cabi.include().is_relative_to(folder) for folder in packaged)


# A kernel that keeps where its result lies.
WHERE = """
static void* last;
DIOPI_API void* where(void);
void* where(void) { return last; }
diopiError_t diopiNeg(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                      diopiConstTensorHandle_t input) {
    (void)ctx, (void)input;
    return diopiGetTensorData(out, &last);
}
"""


@pytest.mark.filterwarnings("ignore:.*exports what is no function")
def test_out_and_in_place_forms_hand_the_function_the_given_tensor(tmp_path: Path) -> None:
    path = library(tmp_path, IMPLEMENTED + WHERE)
    found = implementation.Implementation("acme", cabi.load(path, "acme").kernels).resolve()["neg"]
    where = ctypes.CDLL(str(path)).where
    where.restype = ctypes.c_void_p

    turned = torch.empty(4, 3).t()
    assert found.out(torch.ones(3, 4), out=turned) is turned and where() == turned.data_ptr()
    small = torch.empty(0)
    found.out(torch.ones(3, 4), out=small)
    assert small.shape == (3, 4) and where() == small.data_ptr()
    mine = torch.ones(3, 4)
    assert found.inplace(mine) is mine and where() == mine.data_ptr()


@pytest.mark.filterwarnings("ignore:.*exports what is no function")
def test_an_out_that_does_not_fit_gets_a_copy(tmp_path: Path) -> None:
    path = library(tmp_path, IMPLEMENTED + WHERE)
    found = implementation.Implementation("acme", cabi.load(path, "acme").kernels).resolve()["neg"]
    where = ctypes.CDLL(str(path)).where
    where.restype = ctypes.c_void_p
    gaps, wide = torch.empty(3, 8)[:, ::2], torch.empty(3, 4, dtype=torch.float64)
    memory = torch.ones(13)
    for out, given in (
        (gaps, torch.ones(3, 4)),
        (wide, torch.ones(3, 4)),
        (memory[1:], memory[:12]),
    ):
        found.out(given, out=out)
        assert where() != out.data_ptr()


def test_an_ops_own_function_gets_every_argument(tmp_path: Path) -> None:
    source = """
    diopiError_t diopi_topk(diopiContextHandle_t ctx, diopiTensorHandle_t values,
                            diopiTensorHandle_t indices, diopiConstTensorHandle_t input, int64_t k,
                            int64_t dim, bool largest, bool sorted) {
        (void)ctx, (void)values, (void)indices;
        diopiSize_t shape, stride; diopiDtype_t dtype; diopiDevice_t device; int64_t size;
        diopiGetTensorShape(input, &shape);
        diopiGetTensorStride(input, &stride);
        diopiGetTensorDtype(input, &dtype);
        diopiGetTensorDevice(input, &device);
        diopiGetTensorElemSize(input, &size);
        snprintf(text, sizeof text, "%d %d|%d %d|%d %d %d|%d %d %d %d", (int)shape.data[0],
                 (int)shape.data[1], (int)stride.data[0], (int)stride.data[1], dtype, device,
                 (int)size, (int)k, (int)dim, largest, sorted);
        return diopiSuccess;
    }
    """
    path = library(tmp_path, IMPLEMENTED + SHOW + source)
    kernel = cabi.load(path).kernels["topk"]
    values, indices = kernel(torch.zeros(5, 4).t(), 2, largest=False)
    entry = ctypes.CDLL(str(path)).shown
    entry.restype = ctypes.c_char_p
    assert entry() == b"4 5|1 4|9 0 4|2 -1 0 1"
    assert (values.shape, indices.dtype) == ((4, 2), torch.int64)


SCALAR_FORMS = """
static diopiError_t fill(diopiTensorHandle_t out, float value) {
    void* to;
    diopiGetTensorData(out, &to);
    *(float*)to = value;
    return diopiSuccess;
}
diopiError_t diopiMul(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                      diopiConstTensorHandle_t input, diopiConstTensorHandle_t other) {
    (void)ctx, (void)input, (void)other;
    return fill(out, 1);
}
"""
MUL_SCALAR = """
diopiError_t diopiMulScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                            diopiConstTensorHandle_t input, const diopiScalar_t* other) {
    (void)ctx, (void)input;
    return fill(out, other->stype == diopi_dtype_float64 ? (float)other->fval : 2);
}
"""


def test_a_number_goes_to_the_function_for_numbers(tmp_path: Path) -> None:
    mul = kernels(tmp_path, SCALAR_FORMS + MUL_SCALAR)["mul"]
    assert mul(torch.ones(1), torch.ones(1)).tolist() == [1]
    assert mul(torch.ones(1), 0.5).tolist() == [0.5]
    assert mul(torch.ones(1), 7).tolist() == [2]


def test_without_one_a_number_becomes_a_tensor(tmp_path: Path) -> None:
    mul = kernels(tmp_path, SCALAR_FORMS)["mul"]
    assert mul(torch.ones(1), 0.5).tolist() == [1]


def test_an_in_place_function_alone_makes_the_op(tmp_path: Path) -> None:
    relu = kernels(tmp_path, """
    diopiError_t diopiReluInp(diopiContextHandle_t ctx, diopiTensorHandle_t input) {
        (void)ctx;
        void* data; int64_t n;
        diopiGetTensorData(input, &data);
        diopiGetTensorNumel(input, &n);
        for (float* x = data; x < (float*)data + n; ++x) *x = *x > 0 ? *x : 0;
        return diopiSuccess;
    }""")["relu"]  # fmt: skip
    x = torch.tensor([-1.0, 3.0])
    assert relu(x).tolist() == [0, 3]
    assert x.tolist() == [-1, 3]


def test_an_argument_that_the_function_lacks_is_refused(tmp_path: Path) -> None:
    softmax = kernels(tmp_path, """
    diopiError_t diopiSoftmax(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                              diopiConstTensorHandle_t input, int64_t dim) {
        (void)ctx, (void)out, (void)input, (void)dim;
        return diopiSuccess;
    }""")["softmax"]  # fmt: skip
    softmax(torch.ones(2), 0)
    with pytest.raises(NoKernelError, match="no argument 'half_to_float', which is True"):
        softmax(torch.ones(2).half(), 0, True)


def test_lists_of_tensors_and_their_number(tmp_path: Path) -> None:
    cat = kernels(tmp_path, """
    diopiError_t diopiCat(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                          diopiConstTensorHandle_t* tensors, int64_t num_inputs, int64_t dim) {
        (void)ctx, (void)dim;
        void* to; const void* from;
        diopiGetTensorData(out, &to);
        for (int64_t i = 0; i < num_inputs; ++i) {
            diopiGetTensorDataConst(tensors[i], &from);
            ((float*)to)[i] = *(const float*)from;
        }
        return diopiSuccess;
    }""")["cat"]  # fmt: skip
    assert cat([torch.ones(1), torch.zeros(1), torch.ones(1)]).tolist() == [1, 0, 1]


def test_missing_and_unknown_arguments_are_reported(tmp_path: Path) -> None:
    neg = kernels(tmp_path, NEG)["neg"]
    with pytest.raises(TypeError, match="neg lacks its argument 'input'"):
        neg()
    with pytest.raises(TypeError, match="neg has no argument inplace"):
        neg(torch.ones(1), inplace=True)


# --- the runtime's functions ----------------------------------------------------------------

NONZERO = """
diopiError_t diopiNonzero(diopiContextHandle_t ctx, diopiTensorHandle_t* out,
                          diopiConstTensorHandle_t input) {
    (void)input;
    int64_t shape[2] = {3, 1};
    diopiSize_t size = {shape, 2};
    diopiTensorHandle_t scratch;
    diopiError_t status = diopiRequireBuffer(ctx, &scratch, 1 << 20, diopi_host);
    if (status) return status;
    status = diopiRequireTensor(ctx, out, &size, NULL, (diopiDtype_t)DTYPE, diopi_host);
    if (status) return status;
    void* data;
    diopiGetTensorData(*out, &data);
    for (int i = 0; i < 3; ++i) ((int64_t*)data)[i] = i;
    return diopiSuccess;
}
"""


def test_a_library_makes_results_of_its_own_and_scratch_is_freed(tmp_path: Path) -> None:
    nonzero = kernels(tmp_path, NONZERO.replace("DTYPE", "diopi_dtype_int64"))["nonzero"]
    before = _live_tensors()  # held, so that none of them goes meanwhile
    result = nonzero(torch.ones(3))
    assert result.tolist() == [[0], [1], [2]]
    known = {id(tensor) for tensor in before}
    assert [tensor for tensor in _live_tensors() if id(tensor) not in known] == [result]
    assert handles.Context._open == {}


def _live_tensors() -> list[torch.Tensor]:
    gc.collect()
    return [found for found in gc.get_objects() if issubclass(type(found), torch.Tensor)]


def test_why_memory_was_refused_is_reported(tmp_path: Path) -> None:
    nonzero = kernels(tmp_path, NONZERO.replace("DTYPE", "99"))["nonzero"]
    with pytest.raises(KernelError, match=r"diopiInvalidArgument: ValueError: .* 99 is no dtype"):
        nonzero(torch.ones(3))


def test_random_numbers_follow_the_generator(tmp_path: Path) -> None:
    dropout = kernels(tmp_path, """
    diopiError_t diopi_bernoulli(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                                 diopiConstTensorHandle_t input, diopiGeneratorHandle_t generator) {
        (void)input;
        uint64_t seed, offset; void* data;
        diopiError_t status = diopiGeneratorGetSeedAndOffset(ctx, generator, &seed, &offset);
        if (status) return status;
        diopiGetTensorData(out, &data);
        *(float*)data = (float)(seed % 1000003);
        return diopiGeneratorSetSeedAndOffset(ctx, generator, seed, offset + 4);
    }""")["bernoulli"]  # fmt: skip
    generator = torch.Generator().manual_seed(5)
    drawn = [dropout(torch.ones(1), generator=generator).item() for _ in range(2)]
    generator.manual_seed(5)
    assert dropout(torch.ones(1), generator=generator).item() == drawn[0] != drawn[1]
    torch.manual_seed(3)
    first = dropout(torch.ones(1)).item()
    torch.manual_seed(3)
    assert dropout(torch.ones(1)).item() == first


DEVICE = """
diopiError_t diopiRelu(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                       diopiConstTensorHandle_t input) {
    diopiDevice_t of_input, of_out, of_scratch;
    const void* data;
    diopiStreamHandle_t stream;
    diopiTensorHandle_t scratch;
    diopiSize_t shape;
    diopiGetTensorDevice(input, &of_input);
    diopiGetTensorDevice(out, &of_out);
    diopiGetTensorDataConst(input, &data);
    diopiGetTensorShape(input, &shape);
    if (diopiGetStream(ctx, &stream)) return diopiErrorOccurred;
    if (diopiRequireTensor(ctx, &scratch, &shape, NULL, diopi_dtype_float32, diopi_device)) {
        return diopiErrorOccurred;
    }
    diopiGetTensorDevice(scratch, &of_scratch);
    return diopiSetLastError(diopiErrorOccurred, "%d %d %d %llu %d", of_input, of_out, of_scratch,
                             (unsigned long long)(uintptr_t)data, stream != NULL);
}
"""
ON_DIPU = """
import sys, torch, torch_dipu
from pathlib import Path
from diopi import cabi
relu = cabi.load(Path(sys.argv[1]), "acme").kernels["relu"]
x = torch.ones(2, 3).to("dipu")
with torch.dipu.stream(torch.dipu.Stream()):
    try:
        relu(x)
    except RuntimeError as error:
        print(str(error).partition(": ")[2] == f"1 1 1 {x.data_ptr()} 1.")
"""


def test_handles_of_device_tensors_and_the_current_stream(tmp_path: Path) -> None:
    path = library(tmp_path, IMPLEMENTED + DEVICE)
    done = subprocess.run(
        [sys.executable, "-c", ON_DIPU, str(path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "DEEPLINK_VENDOR": "reference"},
    )
    assert done.stdout == "True\n", done.stderr


# --- errors ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "error", "message"),
    [
        ("diopiErrorOccurred", KernelError, "failed with diopiErrorOccurred: the cable is out"),
        ("diopiInvalidArgument", KernelError, "failed with diopiInvalidArgument: the cable"),
        ("diopiNoImplement", NoKernelError, "failed with diopiNoImplement: the cable"),
        ("diopiDtypeNotSupported", NoKernelError, "failed with diopiDtypeNotSupported: the"),
        ("diopiOutOfMemory", torch.OutOfMemoryError, "failed with diopiOutOfMemory"),
        ("(diopiError_t)77", KernelError, "failed with status 77: the cable"),
    ],
)
def test_a_status_becomes_an_error_with_the_librarys_words(
    tmp_path: Path, status: str, error: type[Exception], message: str
) -> None:
    neg = kernels(tmp_path, f"""
    diopiError_t diopiNeg(diopiContextHandle_t ctx, diopiTensorHandle_t out,
                          diopiConstTensorHandle_t input) {{
        (void)ctx, (void)out, (void)input;
        return diopiSetLastError({status}, "the cable is %s", "out");
    }}""")["neg"]  # fmt: skip
    with pytest.raises(error, match=f"acme's diopiNeg {re.escape(message)}"):
        neg(torch.ones(1))
    assert handles.Context._open == {}


def test_a_tensor_without_memory_never_reaches_the_library(tmp_path: Path) -> None:
    neg = kernels(tmp_path, NEG)["neg"]
    with pytest.raises(KernelError, match="has no memory to hand to a library"):
        neg(torch.ones(2, device="meta"))


def test_wrong_arguments_are_reported_before_the_library_is_called(tmp_path: Path) -> None:
    mul = kernels(tmp_path, SCALAR_FORMS)["mul"]
    with pytest.raises(RuntimeError, match="broadcast"):
        mul(torch.ones(2), torch.ones(3))


def test_every_published_function_can_be_bound() -> None:
    from diopi.cfunction import Bound, functions
    from diopi.op import all_ops

    class Entry:
        restype: Any = None
        argtypes: Any = None

    bound = [Bound(f, all_ops()[f.op], Entry()) for f in functions()]
    assert len(bound) == len(catalogue.functions()) + len(all_ops())
