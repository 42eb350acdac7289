"""The vendors in the tree, as records: found, consistent, and honest about their absence."""

import importlib
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from deeplink import plugin
from deeplink import vendor as vendors
from deeplink.errors import VendorUnavailable
from deeplink.plugin import Marks
from deeplink.vendor import Vendor, choose, discover, find

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
FOLDERS = sorted(path.parent.name for path in SRC.glob("deeplink_vendors/*/__init__.py"))

# What torch and the vendors' packages call them: device, collective, what brings the device.
KNOWN = {
    "ascend": ("npu", "hccl", "torch_npu"),
    "biren": ("supa", "bccl", "torch_supa"),
    "camb": ("mlu", "cncl", "torch_mlu"),
    "cpu": ("cpu", "gloo", ""),
    "cuda": ("cuda", "nccl", "torch.cuda"),
    "enflame": ("gcu", "eccl", "torch_gcu"),
    "hygon": ("cuda", "nccl", "torch.cuda"),
    "iluvatar": ("cuda", "nccl", "torch.cuda"),
    "kunlunxin": ("cuda", "nccl", "torch_xmlir"),
    "metax": ("cuda", "nccl", "torch.cuda"),
    "moore": ("musa", "mccl", "torch_musa"),
    "reference": ("dipu", "dicl", "torch_dipu"),
    "thead": ("cuda", "nccl", "torch.cuda"),
    "xpu": ("xpu", "xccl", "torch.xpu"),
}
PLUGINS = ["ascend", "biren", "camb", "enflame", "kunlunxin", "moore"]
CUDA_BUILDS = ["hygon", "iluvatar", "metax", "thead"]


def record(name: str) -> Vendor:
    """The record in a vendor's folder."""
    vendor = importlib.import_module(f"deeplink_vendors.{name}").vendor
    assert isinstance(vendor, Vendor)
    return vendor


# The records.


def test_every_folder_is_an_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    points = {name: f"deeplink_vendors.{name}:vendor" for name in FOLDERS}
    assert project["entry-points"][vendors.GROUP] == points
    assert set(KNOWN) == set(FOLDERS)


def test_every_vendor_is_found_and_the_absent_ones_say_why() -> None:
    rows = {row.name: row for row in discover()}
    assert set(FOLDERS) <= set(rows)
    for name in FOLDERS:
        row = rows[name]
        assert row.vendor is not None and row.vendor.name == name
        assert row.status != "broken", row.reason
        assert bool(row.reason) == (row.status == "unavailable")
        assert "without a reason" not in row.reason


@pytest.mark.parametrize("name", FOLDERS)
def test_the_fields_of_a_record(name: str) -> None:
    vendor = record(name)
    assert (vendor.device, vendor.collective, vendor.device_module) == KNOWN[name]
    assert vendor.native_cuda == (vendor.device == "cuda" and name != "cuda")
    assert vendor.accelerator == (name not in ("cpu", "reference"))
    assert bool(vendor.visible_devices) == vendor.accelerator
    assert not vendor.gaps or (SRC / vendor.gaps).is_file()


def test_a_transfer_tool_belongs_to_one_vendor() -> None:
    tools = [tool for name in FOLDERS for tool in record(name).transfer_tools]
    assert len(tools) == len(set(tools)) > 0


# A package of a vendor, as a stub.


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on sys.path for fake packages; they and their changes of torch are removed."""
    before, attributes = set(sys.modules), set(vars(torch))
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and "torch" in name:
            del sys.modules[name]
    for name in set(vars(torch)) - attributes:
        delattr(torch, name)


def write(folder: Path, package: str, source: str) -> None:
    """Create one fake package."""
    (folder / package).mkdir()
    (folder / package / "__init__.py").write_text(source)
    importlib.invalidate_caches()


def state(name: str) -> tuple[str, str]:
    """Return a vendor's current state."""
    row = find(name)
    assert row is not None
    return row.status, row.reason


@pytest.mark.parametrize("name", PLUGINS)
def test_a_package_that_does_not_import_is_broken_with_its_own_error(name: str, stub: Path) -> None:
    write(stub, record(name).device_module, "raise ImportError('libdriver.so is missing')")
    assert state(name) == ("broken", "ImportError: libdriver.so is missing")


def fake(device: str, count: int) -> str:
    """The source of a package that brings a device with so many devices."""
    return f"""
import types, torch
torch.{device} = types.SimpleNamespace(device_count=lambda: {count})
"""


@pytest.mark.parametrize("name", sorted(set(PLUGINS) - {"kunlunxin"}))
@pytest.mark.parametrize("count", [0, 2])
def test_a_package_is_available_when_it_sees_a_device(name: str, count: int, stub: Path) -> None:
    vendor = record(name)
    write(stub, vendor.device_module, fake(vendor.device, count))
    if count:
        assert state(name) == ("available", "")
    else:
        package, variable = vendor.device_module, vendor.visible_devices
        reason = f"{package} is installed and sees no device; check its driver, and {variable}"
        assert state(name) == ("unavailable", reason)


def test_a_package_that_brings_no_device_is_broken(stub: Path) -> None:
    write(stub, "torch_npu", "")
    assert state("ascend") == (
        "broken",
        "AttributeError: torch_npu is imported, yet there is no torch.npu",
    )


def test_checking_for_a_package_that_is_absent_imports_nothing() -> None:
    assert state("ascend") == ("unavailable", "torch_npu is not installed")
    assert "torch_npu" not in sys.modules


def test_the_installed_one_of_two_names_is_used(stub: Path) -> None:
    write(stub, "torch_br", fake("supa", 1))
    vendor = plugin.from_package(
        "biren", "supa", "torch_supa", "torch_br", collective="bccl", visible_devices="S"
    )
    assert vendor.device_module == "torch_br"
    assert vendor.is_available()


def test_asking_for_one_vendor_runs_no_code_of_another(stub: Path) -> None:
    write(stub, "torch_npu", "raise SystemExit('imported')")
    assert choose("cpu").vendor.name == "cpu"


# Chips that present themselves as cuda: distinguished from NVIDIA's by evidence, never by a guess.


def cuda_build(
    monkeypatch: pytest.MonkeyPatch, version: str, *, count: int = 2, hip: str | None = None
) -> None:
    """Make torch appear as a build with CUDA."""
    monkeypatch.setattr(torch, "__version__", version)
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)


def name_devices(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Make CUDA appear initialised, with devices of this name."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)


def claims() -> list[str]:
    """The vendors of chips that present themselves as cuda that say that they are here."""
    return [name for name in CUDA_BUILDS if state(name)[0] == "available"]


def test_no_vendor_claims_nvidias_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda_build(monkeypatch, "2.13.0+cu130")
    assert claims() == []
    name_devices(monkeypatch, "NVIDIA H200")
    assert claims() == []
    assert state("metax")[1] == (
        "no sign shows that the chips are MetaX's: torch's version does not contain +metax, no "
        "device is known to be named MetaX; DEEPLINK_VENDOR=cuda serves them as they are"
    )


def test_no_vendor_claims_amds_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda_build(monkeypatch, "2.13.0+rocm7.0", hip="7.0")
    name_devices(monkeypatch, "AMD Instinct MI300X")
    assert claims() == []


@pytest.mark.parametrize(
    ("name", "version", "hip"),
    [
        ("metax", "2.8.0+metax3.5.3.9", None),
        ("iluvatar", "2.4.1+corex.4.3.0", None),
        ("hygon", "2.4.1+das.opt1.dtk2504", "6.1"),
    ],
)
def test_a_build_of_torch_says_whose_it_is(
    name: str, version: str, hip: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda_build(monkeypatch, version, hip=hip)
    assert claims() == [name]
    cuda_build(monkeypatch, version, hip=hip, count=0)
    assert claims() == []
    assert "sees no device; check its driver" in state(name)[1]


@pytest.mark.parametrize(
    ("name", "device", "hip"),
    [
        ("metax", "MetaX C500", None),
        ("iluvatar", "Iluvatar BI-V150", None),
        ("thead", "PPU-ZW810E", None),
        ("hygon", "K100_AI", "6.3"),
    ],
)
def test_a_device_says_whose_it_is_once_cuda_is_initialised(
    name: str, device: str, hip: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda_build(monkeypatch, "2.9.0", hip=hip)
    assert claims() == []  # reading a name would create a context
    name_devices(monkeypatch, device)
    assert claims() == [name]


def test_hygon_needs_a_hip_build(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda_build(monkeypatch, "2.9.0")
    name_devices(monkeypatch, "K100_AI")
    assert state("hygon") == ("unavailable", "this torch build (2.9.0) is not a HIP build")


def test_an_attribute_or_a_device_node_says_whose_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda_build(monkeypatch, "2.9.0")
    by_node = plugin.presenting_as_cuda("acme", "Acme", Marks(node=str(tmp_path / "acme0")))
    with pytest.raises(VendorUnavailable, match=r"there is no .*acme0"):
        by_node.is_available()
    (tmp_path / "acme0").touch()
    assert by_node.is_available()
    monkeypatch.setattr(torch, "corex", True, raising=False)
    assert claims() == ["iluvatar"]


def test_the_chips_own_vendor_goes_before_plain_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda_build(monkeypatch, "2.8.0+metax3.5.3.9")
    monkeypatch.delenv("DEEPLINK_VENDOR", raising=False)
    rows = [row for row in discover() if row.name in ("cuda", "metax")]
    assert [row.status for row in rows] == ["available", "available"]
    assert choose().vendor.name == "metax"
    cuda_build(monkeypatch, "2.13.0+cu130")
    assert choose().vendor.name == "cuda"
