# SPDX-License-Identifier: Apache-2.0
"""A short self-test of a vendor's device: each check compares values with the CPU's.

The device is used only through torch and the vendor's device module. The checks seed torch's
generators, so they belong in a separate process (`deeplink doctor`), not in a training.
"""

import importlib
import io
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import IO, Any

import torch

from deeplink.compare import all_close, compare, worst
from deeplink.errors import DeeplinkError
from deeplink.i18n import _
from deeplink.vendor import Vendor

RANKS = 2
TIMEOUT_SECONDS = 60.0
MARK = "deeplink-selftest: "  # prefix of the error that a process of the collective check prints


@dataclass(frozen=True)
class Check:
    """The outcome of one check; a skipped check is ok, and `detail` has the reason for skipping."""

    name: str
    ok: bool
    seconds: float
    detail: str
    skipped: bool = False

    @property
    def status(self) -> str:
        """One word for a table."""
        return "skipped" if self.skipped else "ok" if self.ok else "FAILED"


class _Skip(Exception):
    """Raised by a check that does not apply to this device; the text is the reason."""


def run(vendor: Vendor) -> Iterator[Check]:
    """Yield each check as it ends. Never raises: a failure is a Check with its error."""
    for name, check in CHECKS.items():
        start = time.perf_counter()
        ok, skipped = True, False
        try:
            _load(vendor.device_module)
            detail = check(vendor)
        except _Skip as reason:
            detail, skipped = str(reason), True
        # a vendor's code may raise anything; the error is the result of the check
        except Exception as error:
            detail, ok = f"{type(error).__name__}: {error}", False
        yield Check(name, ok, time.perf_counter() - start, detail, skipped)


def _load(device_module: str) -> None:
    if device_module:
        importlib.import_module(device_module)


def _api(vendor: Vendor) -> Any:
    """Return the device's module in torch (torch.cuda or an equivalent)."""
    return torch.get_device_module(vendor.device)


def _same(what: str, result: object, expected: object, **tolerances: float) -> None:
    rows = compare(result, expected, **tolerances)  # type: ignore[arg-type]
    bad = worst(rows)
    if bad is not None and not all_close(rows):
        raise DeeplinkError(
            f"{what}{bad.path}: {bad.message}", _("the device computes an incorrect result here.")
        )


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise DeeplinkError(message, _("see the vendor's documentation for this feature."))


def _copy(vendor: Vendor) -> str:
    base = torch.arange(24).reshape(4, 6)
    dtypes = (torch.float32, torch.bfloat16, torch.int64, torch.bool)
    samples = {str(dtype): base.to(dtype) for dtype in dtypes}
    samples |= {"transposed": base.t(), "strided": base[::2, 1::3]}
    samples |= {"zero-size": base[:0], "0-dim": base[1, 2]}
    there = {name: sample.to(vendor.device) for name, sample in samples.items()}
    kinds = {tensor.device.type for tensor in there.values()}
    _require(
        kinds == {vendor.device},
        _("copied to {device}, found on {kinds}").format(device=vendor.device, kinds=sorted(kinds)),
    )
    _same(_("to the device and back"), {n: t.cpu() for n, t in there.items()}, samples)
    _same(_("on the device"), {n: t.clone().cpu() for n, t in there.items()}, samples)
    return _("{count} {count:sample|samples} there and back").format(count=len(samples))


def _fit(device: str, dtype: torch.dtype, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the weight after some steps of linear regression."""
    x, y = x.to(device, dtype), y.to(device, dtype)
    weight = torch.zeros(x.shape[1], 1, device=device, dtype=dtype, requires_grad=True)
    for _step in range(50):
        loss = (x @ weight - y).pow(2).mean()
        (gradient,) = torch.autograd.grad(loss, weight)
        with torch.no_grad():
            weight -= 0.1 * gradient
    return weight.detach().cpu()


def _autograd(vendor: Vendor) -> str:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 8, generator=generator)
    y = x @ torch.randn(8, 1, generator=generator)
    expected = _fit("cpu", torch.float64, x, y)
    result = _fit(vendor.device, torch.float32, x, y).double()
    # float32 against float64 over 50 steps: a few times float32's own tolerance
    _same(_("regression weight"), result, expected, rtol=1e-4, atol=1e-5)
    return _("50 steps of regression agree with CPU float64")


def _rng(vendor: Vendor) -> str:
    def draw(generator: torch.Generator | None = None) -> torch.Tensor:
        return torch.rand(1024, device=vendor.device, generator=generator).cpu()

    torch.manual_seed(7)
    first, second = draw(), draw()
    torch.manual_seed(7)
    _same(_("after manual_seed"), draw(), first)
    _require(not torch.equal(first, second), _("two draws in a row are the same"))
    inside = bool(((first >= 0) & (first < 1)).all()) and 0.4 < float(first.mean()) < 0.6
    _require(inside, _("torch.rand is not uniform in [0, 1)"))

    generator = torch.Generator(device=vendor.device)
    generator.manual_seed(11)
    draw(generator)
    state = generator.get_state()
    drawn = draw(generator)
    generator.set_state(state)
    _same(_("after set_state"), draw(generator), drawn)
    return _("seed and state reproduce")


def _streams(vendor: Vendor) -> str:
    if not vendor.device_module:
        raise _Skip(_("{device} has no streams").format(device=vendor.device))
    api = _api(vendor)
    missing = [name for name in ("Stream", "Event", "stream") if not hasattr(api, name)]
    if missing:
        raise _Skip(
            _("{device} has no {names}").format(device=vendor.device, names=", ".join(missing))
        )
    host = torch.arange(64.0 * 64).reshape(64, 64) % 7  # small integers: sums are exact
    x = host.to(vendor.device)
    side = api.Stream()
    start, end = api.Event(enable_timing=True), api.Event(enable_timing=True)
    side.wait_stream(api.current_stream())
    with api.stream(side):
        start.record(side)
        product = x @ x
        end.record(side)
    api.current_stream().wait_event(end)
    total = product + x
    _same(_("across two streams"), total.cpu(), host @ host + host)
    api.synchronize()
    _require(end.query() and start.query(), _("an event is not done after synchronize()"))
    elapsed = float(start.elapsed_time(end))
    _require(elapsed >= 0, _("elapsed_time is negative: {elapsed} ms").format(elapsed=elapsed))
    return _("event order holds, {elapsed:.2f} ms between two events").format(elapsed=elapsed)


def _save_load(vendor: Vendor) -> str:
    generator = torch.Generator().manual_seed(3)
    expected = {
        "weight": torch.randn(5, 3, generator=generator),
        "steps": torch.arange(4),
        "half": torch.randn(6, generator=generator).bfloat16(),
    }
    buffer = io.BytesIO()
    torch.save({name: value.to(vendor.device) for name, value in expected.items()}, buffer)
    for target in ("cpu", vendor.device):
        buffer.seek(0)
        loaded = torch.load(buffer, map_location=target, weights_only=True)
        kinds = {value.device.type for value in loaded.values()}
        _require(
            kinds == {target},
            _("loaded to {target}, found on {kinds}").format(target=target, kinds=sorted(kinds)),
        )
        _same(
            _("loaded to {target}").format(target=target),
            {n: v.cpu() for n, v in loaded.items()},
            expected,
        )
    return _("saved, loaded to cpu and to {device}").format(device=vendor.device)


def _collective(vendor: Vendor) -> str:
    if not vendor.collective:
        raise _Skip(_("the vendor names no collective"))
    if vendor.device_module and _api(vendor).device_count() < RANKS:
        raise _Skip(
            _("{ranks} devices are needed, {device_count} is visible").format(
                ranks=RANKS, device_count=_api(vendor).device_count()
            )
        )
    # Created here with port 0: the store selects a free port and holds it for the ranks.
    store = _store(0, is_master=True)
    names = [vendor.device, vendor.device_module, vendor.collective]
    with ExitStack() as stack:
        ranks = []
        for rank in range(RANKS):
            errors = stack.enter_context(tempfile.TemporaryFile("w+"))
            command = [sys.executable, "-m", __name__, str(store.port), str(rank), *names]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
            stack.callback(process.wait)
            stack.callback(process.kill)  # the stack runs in reverse: kill, then wait
            ranks.append((process, errors))
        _wait(vendor, ranks)
    return _("all_reduce of {ranks} processes over {collective}").format(
        ranks=RANKS, collective=vendor.collective
    )


def _wait(vendor: Vendor, ranks: Sequence[tuple["subprocess.Popen[bytes]", IO[str]]]) -> None:
    """Wait until every process has exited with 0; raise at once for the first that fails."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        codes = [process.poll() for process, _ in ranks]
        for rank, code in enumerate(codes):
            if code:
                errors = ranks[rank][1]
                errors.seek(0)
                raise DeeplinkError(
                    _("rank {rank} of {ranks} failed: {last_error}").format(
                        rank=rank, ranks=RANKS, last_error=_last_error(errors.read())
                    ),
                    _("check that the back end {collective!r} works on this machine.").format(
                        collective=vendor.collective
                    ),
                )
        if all(code == 0 for code in codes):
            return
        if time.monotonic() > deadline:
            raise DeeplinkError(
                _("all_reduce over {collective!r} did not end in {timeout_seconds:.0f} s").format(
                    collective=vendor.collective, timeout_seconds=TIMEOUT_SECONDS
                ),
                _("check that processes on this machine can connect to each other."),
            )
        time.sleep(0.02)


def _last_error(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()] or [_("it left no message")]
    marked = [line.removeprefix(MARK) for line in lines if line.startswith(MARK)]
    return (marked or lines)[-1]


def _store(port: int, is_master: bool) -> Any:
    distributed: Any = torch.distributed  # TCPStore is public, but not in its type stubs
    limit = timedelta(seconds=TIMEOUT_SECONDS)
    return distributed.TCPStore(
        "127.0.0.1", port, is_master=is_master, wait_for_workers=False, timeout=limit
    )


def _rank_main(port: int, rank: int, device: str, device_module: str, collective: str) -> None:
    """Run one process of the collective check."""
    torch.set_num_threads(1)
    _load(device_module)
    index = f":{rank}" if device_module else ""
    if device_module:
        torch.get_device_module(device).set_device(rank)
    limit = timedelta(seconds=TIMEOUT_SECONDS)
    torch.distributed.init_process_group(
        collective,
        store=_store(port, is_master=False),
        rank=rank,
        world_size=RANKS,
        timeout=limit,
    )
    tensor = torch.arange(8.0, device=device + index) * (rank + 1)
    torch.distributed.all_reduce(tensor)
    _same("all_reduce", tensor.cpu(), torch.arange(8.0) * sum(range(1, RANKS + 1)))
    torch.distributed.destroy_process_group()


CHECKS: dict[str, Callable[[Vendor], str]] = {
    "copy": _copy,
    "autograd": _autograd,
    "rng": _rng,
    "streams": _streams,
    "save/load": _save_load,
    "collective": _collective,
}

if __name__ == "__main__":
    try:
        _rank_main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
    except Exception as error:  # the text goes to the process that started this one
        sys.exit(f"{MARK}{type(error).__name__}: {error}".replace("\n", " "))
