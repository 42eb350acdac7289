"""The device's registration with Dynamo and inductor."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch._dynamo import device_interface
from torch._dynamo.device_interface import DeviceInterface, get_interface_for_device

from tests.torch_dipu.interpreter import output_of

INTERFACE = get_interface_for_device("dipu")
PUBLIC = [n for n, _ in inspect.getmembers(DeviceInterface, callable) if n[0] != "_"]
ARGUMENTS = {
    "set_device": (0,),
    "exchange_device": (0,),
    "maybe_exchange_device": (0,),
    "set_stream": (torch.Stream("dipu"),),
    "stream": (torch.Stream("dipu"),),
    "device": (0,),
    "get_raw_stream": (0,),
    "is_dtype_supported": (torch.float32,),
    "get_cpp_device_options": (False, False),
    "Stream": (0,),
}


def test_it_is_found_by_name_by_device_and_by_index() -> None:
    for device in (torch.device("dipu"), torch.device("dipu", 1), "dipu:1"):
        assert get_interface_for_device(device) is INTERFACE
    assert "dipu" in dict(device_interface.get_registered_device_interfaces())


@pytest.mark.parametrize("name", PUBLIC)
def test_each_method_of_the_interface_works(name: str) -> None:
    if name == "raise_if_triton_unavailable":
        with pytest.raises(RuntimeError, match="Triton has no backend for dipu"):
            INTERFACE.raise_if_triton_unavailable()
    elif name != "Worker":
        before = torch.accelerator.current_stream()
        getattr(INTERFACE, name)(*ARGUMENTS.get(name, ()))
        torch.accelerator.set_stream(before)


def test_a_worker_reads_properties_without_the_device() -> None:
    source = """
from torch._dynamo.device_interface import get_interface_for_device
import torch, torch_dipu
worker = get_interface_for_device("dipu").Worker
worker.set_device(1)
same = worker.get_device_properties(0) == worker.get_device_properties()
print(worker.current_device(), torch.dipu.current_device(), same)
"""
    assert output_of(source) == "1 0 True"


def test_the_streams_of_the_interface_are_the_devices() -> None:
    stream = INTERFACE.Stream(0)
    with INTERFACE.stream(stream):
        assert INTERFACE.current_stream() == stream
        assert INTERFACE.get_raw_stream(0) == stream.stream_id
    INTERFACE._set_stream_by_id(0, 0, torch.accelerator.current_stream().device_type)
    assert INTERFACE.current_stream() == torch.dipu.default_stream()


def test_importing_the_device_does_not_import_dynamo() -> None:
    source = "import sys, torch, torch_dipu; print('torch._dynamo' in sys.modules)"
    assert output_of(source) == "False"
