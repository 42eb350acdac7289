"""The adaptor: what convert_config.yaml may say, and what kernels then get and give."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from deeplink.errors import ConfigError, KernelError
from diopi import adaptor, get

SEED = """
- common_config:
    dtype: (int64) -> int32, (float64) -> float32
    layout: NCHW
- diopiAdd:
    dtype: (bfloat16，float16) -> float32
    tensor_dtype:
        other: (int64) -> int16
    layout: NHWC, input(NCHW)
- diopiSoftmax:
  dtype: (float64)->float32
"""


class Seen:
    """A kernel that notes what it got."""

    def __init__(self, result: Any = None) -> None:
        self.args: tuple[Any, ...] = ()
        self._result = result

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.args = args
        return torch.add(*args, **kwargs) if self._result is None else self._result(*args, **kwargs)

    @property
    def dtypes(self) -> list[torch.dtype]:
        return [a.dtype for a in self.args if isinstance(a, Tensor)]


def adapted(text: str, name: str = "add", result: Any = None) -> tuple[Any, Seen]:
    seen = Seen(result)
    return adaptor.adapt(get(name), seen, adaptor.parse(text)), seen


# --- the file -------------------------------------------------------------------------------


def test_the_innermost_level_counts() -> None:
    config = adaptor.parse(SEED)
    assert config.rule("mul", "input").casts == {
        torch.int64: torch.int32,
        torch.float64: torch.float32,
    }
    assert config.rule("add", "input").casts == {
        torch.bfloat16: torch.float32,
        torch.float16: torch.float32,
    }
    assert config.rule("add", "other").casts == {torch.int64: torch.int16}
    assert config.rule("softmax", "input").casts == {torch.float64: torch.float32}


def test_layouts_of_an_op_and_of_one_tensor() -> None:
    config = adaptor.parse(SEED)
    formats = {
        name: [layout.format for layout in config.rule(op, name).layouts or ()]
        for op, name in (("add", "input"), ("add", "other"))
    }
    assert formats == {"input": [torch.contiguous_format], "other": [torch.channels_last]}
    assert config.rule("mul", "input").layouts is not None


def test_an_op_may_be_called_by_its_own_name_and_tensors_by_either() -> None:
    config = adaptor.parse("conv: {}".replace("conv: {}", "- embedding: {tensor_dtype: "
                           "{indices: (int64) -> int32}}"))  # fmt: skip
    assert config.rule("embedding", "indices").casts == {torch.int64: torch.int32}
    published = adaptor.parse("- diopiAmax: {tensor_dtype: {self: (float64) -> float32}}")
    assert published.rule("amax", "input").casts == {torch.float64: torch.float32}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- diopiAd:\n    dtype: (int64) -> int32", "f.yaml:1: no op 'diopiAd'.\nHint: did you "
         "mean 'diopiAdd'?"),
        ("- add:\n    dtype: (int46) -> int32", "f.yaml:2: no dtype 'int46'.\nHint: did you mean "
         "'int64'?"),
        ("- add:\n    dtypes: (int64) -> int32", "f.yaml:2: no key 'dtypes'.\nHint: did you mean "
         "'dtype'?"),
        ("- add:\n    layout: NHCW", "f.yaml:2: no layout 'NHCW'.\nHint: did you mean 'NHWC'?"),
        ("- add:\n    tensor_dtype:\n        inptu: (int64) -> int32",
         "f.yaml:3: no tensor of add 'inptu'.\nHint: did you mean 'input'?"),
        ("- add:\n    layout: weight(NHWC)", "f.yaml:2: no tensor 'weight'.\nHint: known: input"),
        ("- add:\n    dtype: int64 to int32", "f.yaml:2: 'int64 to int32' is no conversion."),
        ("- add:\n    dtype: (int64) -> int32, (int64) -> int16",
         "f.yaml:2: int64 is converted twice."),
        ("- add:\n    dtype: [int64]", "f.yaml:2: expected a text such as"),
        ("- add: [1\n- mul", "f.yaml:2: not yaml: "),
        ("text", "f.yaml:1: expected a list of entries, found scalar 'text'."),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_reported_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        adaptor.parse(text, "f.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "- add:\n    dtype: (int64) -> int32\n- mul:\n- add:\n    dtype: (float64) -> float32",
            "f.yaml:4: add twice, on lines 1 and 4.",
        ),
        ("add:\n  layout: ND\n  layout: NCHW", "f.yaml:3: layout twice, on lines 2 and 3."),
        (
            "- diopiAdd:\n    layout: NHWC\n- diopiAddInp:\n    layout: NCHW",
            "f.yaml:3: diopiAdd and diopiAddInp are one op with different rules, on lines 1 and 3.",
        ),
        ("- common_config:\n- common_config:", "f.yaml:2: common_config twice, on lines 1 and 2."),
    ],
)
def test_duplicates_are_an_error_with_both_lines(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        adaptor.parse(text, "f.yaml")


def test_two_names_of_one_op_may_say_the_same() -> None:
    rule = "{dtype: (float64) -> float32}"
    config = adaptor.parse(f"- diopiAdd: {rule}\n- diopiAddInp: {rule}")
    assert list(config.ops) == ["add"]


def test_an_empty_file_converts_nothing(tmp_path: Path) -> None:
    path = tmp_path / adaptor.FILE
    path.write_text("# nothing yet\n")
    kernel = Seen()
    assert adaptor.adapt(get("add"), kernel, adaptor.read(path)) is kernel


# --- the calls ------------------------------------------------------------------------------


def test_an_op_without_a_rule_keeps_its_kernel() -> None:
    kernel = Seen()
    config = adaptor.parse("- mul:\n    dtype: (int64) -> int32\n- add:\n    layout: ND")
    assert adaptor.adapt(get("add"), kernel, config) is kernel


def test_arguments_are_converted_and_the_result_is_as_without() -> None:
    call, seen = adapted("- common_config: {dtype: '(int64) -> int32, (float64) -> float32'}")
    x = torch.arange(6).reshape(2, 3)
    result = call(x, x[:1], alpha=2)
    assert seen.dtypes == [torch.int32, torch.int32]
    assert torch.equal(result, x + 2 * x[:1])
    assert call(x.double(), x).dtype == torch.float64
    assert call(x.float(), x).dtype == torch.float32


def test_bfloat16_can_be_named() -> None:
    call, seen = adapted("- add: {dtype: (bfloat16) -> float32}")
    x = torch.ones(3, dtype=torch.bfloat16)
    assert call(x, x).dtype == torch.bfloat16
    assert seen.dtypes == [torch.float32, torch.float32]


def test_positions_come_back_as_int64_though_no_argument_was_one() -> None:
    config = "- common_config: {dtype: (int64) -> int32}"
    call, _ = adapted(config, "argmax", lambda x, dim=None, keepdim=False: x.argmax(dim).int())
    result = call(torch.tensor([[1.0, 3.0, 2.0]]), 1)
    assert result.dtype == torch.int64
    assert result.tolist() == [1]


def test_a_value_that_does_not_fit_is_reported() -> None:
    call, seen = adapted("- add: {dtype: (int64) -> int32}")
    with pytest.raises(KernelError, match=r"the value 1099511627776 of 'other' \(int64\) does not"):
        call(torch.tensor([1]), torch.tensor([2**40]))
    with pytest.raises(KernelError, match="the value -9223372036854775808 of 'input'"):
        call(torch.tensor([-(2**63)]), torch.tensor([1]))
    assert seen.args == ()
    assert call(torch.tensor([-(2**31)]), torch.tensor([0])).tolist() == [-(2**31)]
    assert call(torch.empty(0, dtype=torch.int64), torch.tensor([0])).numel() == 0


def test_one_tensor_may_be_left_out() -> None:
    call, seen = adapted(
        "- add: {dtype: (int64) -> int32, tensor_dtype: {other: ''}}",
    )
    call(torch.tensor([1]), torch.tensor([2]))
    assert seen.dtypes == [torch.int32, torch.int64]


def test_a_layout_converts_tensors_of_its_rank_and_strides_come_back() -> None:
    def kernel(input: Tensor, other: Tensor, *, alpha: float = 1) -> Tensor:
        if input.dim() == 4:
            assert input.is_contiguous(memory_format=torch.channels_last)
        return torch.add(input, other, alpha=alpha)

    call, _ = adapted("- add: {layout: NHWC}", result=kernel)
    x = torch.randn(2, 3, 4, 5)
    result = call(x, x)
    assert result.stride() == x.stride()
    assert torch.equal(result, x + x)
    y = torch.randn(3, 2).t()
    assert call(y, y).stride() == (y + y).stride()


def test_a_tensor_that_has_one_of_the_layouts_is_not_copied() -> None:
    call, seen = adapted("- add: {layout: 'NCHW, NHWC'}")
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    call(x, x)
    assert seen.args[0] is x


def test_the_elements_of_a_list_are_converted() -> None:
    call, seen = adapted(
        "- cat: {dtype: (float64) -> float32}", "cat", lambda tensors, dim=0: torch.cat(tensors)
    )
    x = torch.ones(2, dtype=torch.float64)
    result = call([x, x.float(), x])
    assert [t.dtype for t in seen.args[0]] == [torch.float32] * 3
    assert result.dtype == torch.float64


def written_op() -> Any:
    """A kernel of batch_norm that changes its running statistics, in float32."""

    def kernel(input: Tensor, weight: Any, bias: Any, mean: Any, var: Any, *rest: Any) -> Any:
        assert mean.dtype == torch.float32
        return torch.native_batch_norm(input, weight, bias, mean, var, *rest)

    return kernel


def test_a_written_argument_gets_its_values_back() -> None:
    op = get("batch_norm")
    call = adaptor.adapt(
        op, written_op(), adaptor.parse("- batch_norm: {dtype: (float64) -> float32}")
    )
    x, mean, var = torch.randn(4, 3).double(), torch.zeros(3).double(), torch.ones(3).double()
    expected = mean.clone(), var.clone()
    torch.native_batch_norm(x, None, None, *expected, True, 0.1, 1e-5)
    call(x, None, None, mean, var, True, 0.1, 1e-5)
    torch.testing.assert_close(mean, expected[0], atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(var, expected[1], atol=1e-6, rtol=1e-6)


def test_nothing_is_written_back_when_the_kernel_fails() -> None:
    def failing(input: Tensor, weight: Any, bias: Any, mean: Tensor, *rest: Any) -> Any:
        mean.fill_(7)
        raise RuntimeError("the chip is on fire")

    config = adaptor.parse("- batch_norm: {dtype: (float64) -> float32}")
    call = adaptor.adapt(get("batch_norm"), failing, config)
    mean = torch.zeros(3).double()
    with pytest.raises(RuntimeError, match="on fire"):
        call(torch.randn(4, 3).double(), None, None, mean, mean.clone(), True, 0.1, 1e-5)
    assert mean.tolist() == [0, 0, 0]


def test_a_kernel_that_writes_to_results_gets_some_that_it_can_write() -> None:
    class Into:
        def into(self, results: Any, *args: Any, **kwargs: Any) -> None:
            assert [r.dtype for r in results] == [torch.float32]
            torch.add(*args, **kwargs, out=results[0])

        def __call__(self, *args: Any) -> Any:
            raise AssertionError

    call = adaptor.adapt(get("add"), Into(), adaptor.parse("- add: {dtype: (float64) -> float32}"))
    x = torch.ones(2, dtype=torch.float64)
    assert torch.equal(call(x, x), x + x)
