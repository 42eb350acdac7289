"""The vendor in C: PyTorch on its runtime and its kernels, by one folder and one entry point."""

import textwrap
from pathlib import Path

import pytest

from tests.droplet.conftest import Python


def test_a_cnn_and_a_transformer_train_as_on_the_cpu(site: Path, python: Python) -> None:
    done = python(str(site.parent / "droplet" / "train.py"))  # next to the library that was built
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines[:2]] == [
        "CNN on droplet (made up, on the CPU)",
        "transformer on droplet (made up, on the CPU)",
    ]


@pytest.mark.slow  # it starts processes for a collective
def test_the_doctor_tests_it(python: Python) -> None:
    done = python("-m", "deeplink", "doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Self-test: droplet (made up, on the CPU)" in done.stdout
    assert "skipped" not in done.stdout


KERNELS = """
    import torch, torch_dipu
    from torch_dipu import _C

    torch.manual_seed(0)
    x = torch.randn(3, 4, device="dipu", requires_grad=True)
    weight = torch.randn(5, 4, device="dipu", requires_grad=True)
    loss = torch.nn.functional.cross_entropy(x @ weight.t(), torch.tensor([0, 2, 4]).to("dipu"))
    loss.backward()
    torch.topk(x, 2)
    torch.zeros(2, dtype=torch.complex64, device="dipu")
    torch.nn.functional.gelu(x, approximate="tanh")
    x.detach().double().exp()
    torch.dipu.synchronize()

    ran = {row[0]: [route[:2] for route in row[2] if route[2]] for row in _C.operator_records()}
    for name in ("mm", "_log_softmax", "nll_loss_backward", "topk", "gelu", "exp"):
        print(name, ran["aten::" + name])
    print(torch.dipu.device_count(), torch.dipu.get_device_name())
    try:
        torch.nn.functional.embedding(torch.tensor([9]).to("dipu"), x.detach())
    except RuntimeError as error:
        print(error)
"""


def test_who_runs_what(python: Python) -> None:
    done = python("-c", textwrap.dedent(KERNELS))
    assert done.stdout.splitlines() == [
        "mm [('kernel', 'diopiMm')]",
        "_log_softmax [('kernel', 'diopiLogSoftmax')]",
        "nll_loss_backward [('kernel', 'diopi_nll_loss_backward')]",
        "topk []",  # the host
        "gelu [('kernel', 'diopiGelu')]",  # by its decomposition, behind the same kernel
        "exp [('kernel', 'diopiExp')]",
        "2 droplet (made up, on the CPU)",
        "droplet's diopiEmbedding failed with diopiInvalidArgument: row 9 of a table of 3. "
        "(in embedding)",
    ], done.stdout + done.stderr


def test_host_code_cannot_read_the_chips_memory(python: Python) -> None:
    script = """
        import ctypes, torch, torch_dipu
        ctypes.string_at(torch.ones(4, device="dipu").data_ptr(), 4)
    """
    assert python("-c", textwrap.dedent(script)).returncode == -11  # SIGSEGV


def test_faults_of_kernels_in_their_memory_are_named(python: Python) -> None:
    script = """
        import torch, torch_dipu
        x = torch.ones(4, device="dipu")
        torch.asin(x), torch.acos(x), torch.acos(x), torch.atan(x)
        del x
    """
    done = python("-c", textwrap.dedent(script), DIPU_MEM_CHECK="2")
    found = done.stderr.split("[torch_dipu] memory check: ")[1:]
    assert [text.partition(":")[0] for text in found[:3]] == [
        "asin (diopiAsin) wrote past the end of a block of 16 bytes on dipu",
        "acos (diopiAcos) left 4096 bytes of dipu",
        "atan (diopiAtan) gave back 69206016 bytes of dipu",
    ], done.stderr
    assert "outside the allocator: a kernel that allocates and does not free?" in found[1]
    assert "that the allocator holds: freed twice, or by code that does not own it?" in found[2]
    assert "  acos (diopiAcos): 2 calls left 8192 bytes outside the allocator\n" in found[3]
