"""What our mapping counts on is in the vendors' packages; what is not there is a listed gap."""

import csv
from collections.abc import Iterator

import pytest
import torch

from tests.contracts.contract import (
    FIRST,
    RELEASE,
    SRC,
    Contract,
    Shape,
    accepts,
    cuda_names,
    different,
    listed,
    missing,
    of_module,
    pinned,
    read_gaps,
    release,
)

TABLE = SRC / "ditorch" / "cuda_names.csv"
XPU = of_module("xpu", torch.xpu, torch.__version__)  # comes with torch: no pin is needed
CONTRACTS = [*pinned(), XPU]

each_contract = pytest.mark.parametrize("contract", CONTRACTS, ids=lambda c: c.title)


def of_this_release(contract: Contract) -> None:
    """Skip a contract of another torch release, where torch.cuda has other names."""
    if release(contract.version) != RELEASE or RELEASE < FIRST:
        pytest.skip(f"{contract.title} is not for torch {torch.__version__}, or that is too old")


@each_contract
def test_every_name_that_is_missing_is_a_listed_gap(contract: Contract) -> None:
    of_this_release(contract)
    assert missing(contract, cuda_names()) == listed(contract.vendor, "name")


@each_contract
def test_every_other_argument_list_is_a_listed_gap(contract: Contract) -> None:
    of_this_release(contract)
    assert different(contract, cuda_names()) == listed(contract.vendor, "arguments")


@each_contract
def test_what_behaves_otherwise_is_there(contract: Contract) -> None:
    names = listed(contract.vendor, "behaviour")
    assert names <= set(cuda_names())
    assert missing(contract, names) == set()


@each_contract
def test_a_name_is_listed_once(contract: Contract) -> None:
    names = [name for gap in read_gaps(contract.vendor) for name in gap.cuda]
    assert sorted(names) == sorted(set(names))


def direct_rows() -> Iterator[dict[str, str]]:
    """The rows of our table that hand a name of torch.cuda straight to the vendor."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            name = row["name"].removeprefix("torch.cuda.")
            if row["rule"] == "direct" and name in torch.cuda.__all__:
                yield {**row, "name": name}


def unserved(contract: Contract, rows: Iterator[dict[str, str]]) -> list[str]:
    """The direct names that the vendor does not have, and neither a fallback nor a reason."""
    return [
        row["name"]
        for row in rows
        if not {row["name"], _last(row["target"])} & set(contract.names)
        if not row["fallback"] and not row["reason"]
    ]


def _last(target: str) -> str:
    return target.rpartition(".")[2]


@pytest.mark.skipif(not TABLE.exists(), reason="ditorch has no cuda_names.csv yet")
@each_contract
def test_what_the_mapping_calls_direct_is_there_or_has_an_answer(contract: Contract) -> None:
    assert unserved(contract, direct_rows()) == []


def test_a_name_that_disappears_is_reported_by_its_name() -> None:
    names = {"synchronize": ["device"]}
    rows = [
        {"name": "synchronize", "target": "", "fallback": "", "reason": ""},
        {"name": "empty_cache", "target": "", "fallback": "", "reason": ""},
        {"name": "ipc_collect", "target": "", "fallback": "nothing", "reason": ""},
        {"name": "temperature", "target": "", "fallback": "", "reason": "no such gauge"},
    ]
    gone = unserved(Contract("acme", "acme 1", "1", names), iter(rows))
    assert gone == ["empty_cache"]


@pytest.mark.parametrize(
    ("offered", "wanted", "fits"),
    [
        (["device"], ["device"], True),
        (["device", "extra"], ["device"], True),
        (["device_id"], ["device"], False),
        ([], ["device"], False),
        (["b", "a"], ["a", "b"], False),
        (["device", "**kwargs"], ["device", "priority"], True),
        (["*args", "dtype"], ["*args", "dtype"], True),
        ("module", "module", True),
        ("value", ["device"], False),
        (None, ["device"], True),
    ],
)
def test_which_arguments_fit(offered: Shape, wanted: Shape, fits: bool) -> None:
    assert accepts(offered, wanted) is fits
