# SPDX-License-Identifier: Apache-2.0
"""Verdicts on recorded calls, in this process or in others, which leave the interpreter alone.

A verdict takes hundreds of small kernels of the host. In a thread of the program's process each of
them would compete with the program for the interpreter. So a tool that has many calls to judge
starts processes: one job at a time is written to the pipe of a process, by pickle with the values
of tensors beside it, and the items of the verdict come back. Jobs that cannot be pickled, or that
name a function outside of torch, are judged in the program's process.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import pickle
import select
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import IO, Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from deeplink import settings
from deeplink.judge.envelope import prepare
from op_tools.compare import host_verdicts
from op_tools.compare.eligibility import NoReferenceError
from op_tools.compare.host_verdicts import Item, Taken, Tried
from op_tools.compare.rerun import Again
from op_tools.core import lifecycle
from op_tools.core.call import PLAIN
from op_tools.core.gradients import Gradients
from op_tools.core.worker import Background
from op_tools.tensors import host_transfer

MANY = 8  # pending jobs, and
BUSY = 0.5  # seconds of verdicts in the program's process, from which on processes are started
MOST = 8  # processes
SECOND = 1.0
# What a job may name. Modules of the program are not imported a second time.
MODULES = ("torch", "op_tools", "deeplink", "builtins", "collections", "functools", "operator")
HELLO = b"ready"


@dataclass(frozen=True)
class Job:
    """What is to be judged: results and written arguments of a call, or its gradients."""

    taken: Taken
    gradients: Gradients | None
    standard: str
    bitwise: bool  # what is the CPU's own result, bit for bit, needs no other judge
    dtype: torch.dtype = field(default_factory=torch.get_default_dtype)  # the program's

    def items(self, tried: Tried) -> list[Item]:
        """The verdict on each part. NoReferenceError: there is nothing to compare with."""
        taken, flown = self.taken, self.gradients
        if flown is None:
            found = self._same(tried, partial(host_verdicts.bit_for_bit, taken))
            return host_verdicts.forward(taken, self.standard) if found is None else found
        sides = flown.outputs, [host_transfer.dense(gradient) for gradient in flown.inputs]
        found = None
        if taken.run is None:
            found = self._same(tried, partial(host_verdicts.gradients_bit_for_bit, taken, *sides))
        return host_verdicts.backward(taken, *sides, self.standard) if found is None else found

    def _same(self, tried: Tried, check: Callable[[], list[Item] | None]) -> list[Item] | None:
        """What `check` finds, for operators that were not found to differ a short while ago."""
        return tried.found(self.taken.call.name, check) if self.bitwise else None

    @property
    def can_travel(self) -> bool:
        """Whether another process might judge it."""
        call = self.taken.call
        return call.level in ("api", "aten") and call._inside is None and not self.taken.rows


class Judges:
    """Judges jobs of a Background's threads, in processes once there are many jobs."""

    def __init__(self, background: Background, at_once: bool = False) -> None:
        """`at_once`: jobs wait for the processes, so that none is judged in this one."""
        self._background, self._waits = background, at_once
        self._tried = Tried()
        self._lock = threading.Lock()
        self._busy = 0.0  # seconds of verdicts in this process
        self._starting: list[_Judge] = []
        self._free: list[_Judge] = []
        self._ready = 0
        self._stays: set[str] = set()  # operators whose jobs no other process can judge
        self._is_started = self._is_over = False
        lifecycle.register(self, last=True)
        if at_once:
            self._start()

    def items(self, job: Job) -> list[Item]:
        """The verdict on each part of a job."""
        name = job.taken.call.name
        judge = self._one() if job.can_travel and name not in self._stays else None
        if judge is not None:
            try:
                found = judge.items(job)
            except (OSError, EOFError):  # it was killed, as for its memory
                judge.close()
            except (pickle.PicklingError, TypeError, AttributeError, RuntimeError):
                self._stays.add(name)
                self._give_back(judge)
            except NoReferenceError:
                self._give_back(judge)
                raise
            else:
                self._give_back(judge)
                return found
        begun = time.perf_counter()
        try:
            return job.items(self._tried)
        finally:
            self._busy += time.perf_counter() - begun
            if self._busy > BUSY and self._background.pending() > MANY:
                self._start()

    def _one(self) -> _Judge | None:
        """A process that has nothing to do; None: there is none."""
        while self._waits and not self._ready:
            with self._lock:
                outputs = [judge._output for judge in self._starting]
            if not outputs:
                break
            select.select(outputs, [], [], SECOND)
            self._welcome()
        self._welcome()
        with self._lock:
            return self._free.pop() if self._free else None

    def _welcome(self) -> None:
        """Gives processes that are ready a thread each."""
        with self._lock:
            for judge in [one for one in self._starting if one.has_spoken()]:
                self._starting.remove(judge)
                if not judge.is_ready():
                    judge.close()
                    continue
                self._free.append(judge)
                if self._ready:
                    self._background.grow()
                self._ready += 1

    def _give_back(self, judge: _Judge) -> None:
        with self._lock:
            if not self._is_over:
                self._free.append(judge)
                return
        judge.close()

    def _start(self) -> None:
        with self._lock:
            if self._is_started or self._is_over:
                return
            self._is_started = True
            count = max(1, min(MOST, _processors() // 2))
            threads = max(1, _processors() // (2 * count))
            try:
                self._starting = [_Judge(threads) for _ in range(count)]
            except OSError:  # no more processes are allowed: judged here
                return

    def close(self) -> None:
        """Ends the processes."""
        with self._lock:
            self._is_over = True
            left, self._free, self._starting = [*self._free, *self._starting], [], []
        for judge in left:
            judge.close()
        lifecycle.unregister(self)

    def after_fork(self) -> None:
        """In a forked child: the processes are the parent's."""
        self._lock = threading.Lock()
        self._is_started, self._free, self._starting = True, [], []


def _processors() -> int:
    """Processors for this process: ranks of one host share them."""
    return len(os.sched_getaffinity(0)) // settings.local_world_size()


class _Judge:
    """A process that judges one job at a time."""

    def __init__(self, threads: int) -> None:
        own = {
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",  # it needs the CPU alone
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": str(threads),
        }
        without = settings.DITORCH.name, settings.OP_TOOLS_RUN.name
        self._process = subprocess.Popen(
            [sys.executable, "-m", "op_tools.compare.judging", str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=settings.environment(own, without),
            start_new_session=True,  # an interrupt is for the program
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout

    def has_spoken(self) -> bool:
        """Whether it has begun to work, or ended."""
        return bool(select.select([self._output], [], [], 0)[0])

    def is_ready(self) -> bool:
        """Whether what it said is that it works."""
        return self._output.read(len(HELLO)) == HELLO

    def items(self, job: Job) -> list[Item]:
        """Sends a job and waits for its items; the interpreter is free meanwhile."""
        send(self._input, job)
        found = receive(self._output)
        if isinstance(found, NoReferenceError):
            raise found
        if isinstance(found, str):
            raise RuntimeError(found)
        items: list[Item] = found
        return items

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._output.close()
        with contextlib.suppress(OSError):  # a part of a job may be left
            self._input.close()


# Messages: a count of buffers, their sizes and that of the pickle; the pickle; the buffers.


def send(file: IO[bytes], message: object) -> None:
    """Writes a message."""
    buffers: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    _Pickler(stream, protocol=5, buffer_callback=buffers.append).dump(message)
    text, raws = stream.getbuffer(), [buffer.raw() for buffer in buffers]
    file.write(struct.pack(f"<{2 + len(raws)}q", len(raws), len(text), *map(len, raws)))
    for part in (text, *raws):
        file.write(part)
    file.flush()


def receive(file: IO[bytes]) -> Any:
    """Reads a message; EOFError at the end."""
    count, size = struct.unpack("<2q", _read(file, 16))
    sizes = struct.unpack(f"<{count}q", _read(file, 8 * count))
    text = _read(file, size)
    return _Unpickler(io.BytesIO(text), buffers=[_read(file, size) for size in sizes]).load()


def _read(file: IO[bytes], size: int) -> bytearray:
    data, at = bytearray(size), 0
    while at < size:
        count = file.readinto(memoryview(data)[at:])  # type: ignore[attr-defined]
        if not count:
            raise EOFError
        at += count
    return data


class _Pickler(pickle.Pickler):
    """Tensors with the memory that they share, and torch's operators by their names."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._memories: dict[int, _Memory] = {}

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._reduced(value)
        if isinstance(value, torch.device):
            return _device, (value.type, value.index)
        if isinstance(value, OpOverload):
            return _operator, (value._schema.name, value._schema.overload_name)
        if isinstance(value, Job):
            taken = replace(value.taken, run=None, on_device={}, key=None)
            return Job, (taken, value.gradients, value.standard, value.bitwise, value.dtype)
        if isinstance(value, Again):
            places = [at for at, t in enumerate(value.call.given) if id(t) in value.requires]
            return _again, ({**vars(value), "requires": places},)
        return NotImplemented

    def _reduced(self, tensor: Tensor) -> Any:
        if type(tensor) not in PLAIN or tensor.layout != torch.strided or tensor.is_quantized:
            raise pickle.PicklingError(f"a {type(tensor).__name__} of layout {tensor.layout}")
        described = tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
        if tensor.is_meta:
            return _on_meta, described[:3]
        if tensor.device.type != "cpu" or tensor.is_conj() or tensor.is_neg():
            raise pickle.PicklingError(f"a tensor on {tensor.device}")
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        memory = self._memories.get(address) if address else None
        if memory is None:
            memory = self._memories[address] = _Memory(address, storage.nbytes())
        return _on_host, (memory, *described, tensor.requires_grad and tensor.is_leaf)


class _Memory:
    """The bytes of a storage: tensors that share it share it in the other process, too."""

    def __init__(self, address: int, size: int) -> None:
        self.bytes = (ctypes.c_char * size).from_address(address) if size else b""

    def __reduce__(self) -> Any:
        return _storage, (pickle.PickleBuffer(self.bytes),)


def _storage(data: Any) -> torch.UntypedStorage:
    if not len(data):
        return torch.UntypedStorage(0)
    return torch.frombuffer(data, dtype=torch.uint8).untyped_storage()


def _on_host(
    storage: torch.UntypedStorage,
    dtype: torch.dtype,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int,
    requires_grad: bool,
) -> Tensor:
    made = torch.empty(0, dtype=dtype).set_(storage, offset, size, stride)
    found: Tensor = made.requires_grad_(requires_grad)
    return found


def _again(fields: dict[str, Any]) -> Again:
    """With the ids of tensors of this process in place of their places among the arguments."""
    given = fields["call"].given
    return Again(**{**fields, "requires": frozenset(id(given[at]) for at in fields["requires"])})


def _on_meta(dtype: torch.dtype, size: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device="meta")


def _device(kind: str, index: int | None) -> torch.device:
    try:
        return torch.device(kind, index) if index is not None else torch.device(kind)
    except RuntimeError:  # the name of the program's own backend, which the judge does without
        torch.utils.backend_registration.rename_privateuse1_backend(kind)
        return torch.device(kind, index) if index is not None else torch.device(kind)


def _operator(name: str, overload: str) -> OpOverload:
    space, _, word = name.partition("::")
    found: OpOverload = getattr(getattr(getattr(torch.ops, space), word), overload or "default")
    return found


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] not in MODULES:
            raise pickle.UnpicklingError(f"{module}.{name} is not torch's")
        return super().find_class(module, name)


def main() -> None:
    """Judges the jobs of standard input until its end."""
    jobs, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a kernel prints is no answer
    torch.set_num_threads(int(sys.argv[1]))
    tried = Tried()
    prepare()  # takes seconds
    answers.write(HELLO)
    answers.flush()
    while True:
        try:
            job = receive(jobs)
        except EOFError:
            return
        except Exception as error:  # a function that only the program has
            answer: object = f"{type(error).__name__}: {error}"
        else:
            answer = _answer(job, tried)
        send(answers, answer)


def _answer(job: Job, tried: Tried) -> object:
    try:
        torch.set_default_dtype(job.dtype)
        with torch.no_grad():
            return job.items(tried)
    except NoReferenceError as error:
        return error
    except Exception as error:  # the program's process tries, and reports it
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    # as the module that jobs name: its classes are those of the program's process
    from op_tools.compare import judging

    judging.main()
