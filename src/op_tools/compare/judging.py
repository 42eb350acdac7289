# SPDX-License-Identifier: Apache-2.0
"""Verdicts on recorded calls, in this process or in others, which leave the interpreter alone.

A verdict takes hundreds of small kernels of the host. In a thread of the program's process each of
them would compete with the program for the interpreter. So a tool that has many calls to judge
starts processes: one job at a time is written to the pipe of a process, by pickle with the values
of tensors, and the items of the verdict come back. Jobs that cannot be pickled, or that
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
from op_tools.compare.host_verdicts import Differed, Item, RecordedCall
from op_tools.compare.rerun import Rerun
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
    """A recorded call to judge: its results and written arguments, or its gradients."""

    recorded: RecordedCall
    gradients: Gradients | None
    standard: str
    bitwise: bool  # a result that is the CPU's own, bit for bit, needs no other judge
    dtype: torch.dtype = field(default_factory=torch.get_default_dtype)  # the program's

    def items(self, differed: Differed) -> list[Item]:
        """The verdict on each part. NoReferenceError: there is nothing to compare with."""
        recorded, gradients, items = self.recorded, self.gradients, None
        if gradients is not None:
            inputs = [host_transfer.dense(gradient) for gradient in gradients.inputs]
            gradients = replace(gradients, inputs=inputs)
        if self.bitwise and (gradients is None or recorded.run is None):
            check = partial(host_verdicts.bit_for_bit, recorded, gradients)
            items = differed.unless(recorded.call.name, check)
        if items is not None:
            return items
        if gradients is None:
            return host_verdicts.forward(recorded, self.standard)
        sides = gradients.outputs, gradients.inputs
        return host_verdicts.backward(recorded, *sides, self.standard)

    @property
    def is_portable(self) -> bool:
        """Whether another process might judge it."""
        call = self.recorded.call
        return call.level in ("api", "aten") and call._inside is None and not self.recorded.rows


class Judges:
    """Judges jobs of a Background's threads, in processes once there are many jobs."""

    def __init__(self, background: Background, at_once: bool = False) -> None:
        """`at_once`: jobs wait for the processes, so that none is judged in this one."""
        self._background, self._waits = background, at_once
        self._differed = Differed()
        self._lock = threading.Lock()
        self._busy = 0.0  # seconds of verdicts in this process
        self._starting: list[_Judge] = []
        self._free: list[_Judge] = []
        self._ready = 0
        self._local: set[str] = set()  # operators whose jobs no other process can judge
        self._is_started = self._is_over = False
        lifecycle.register(self, last=True)
        if at_once:
            self._start()

    def items(self, job: Job) -> list[Item]:
        """The verdict on each part of a job."""
        name = job.recorded.call.name
        judge = self._idle() if job.is_portable and name not in self._local else None
        if judge is not None:
            try:
                return judge.items(job)
            except (OSError, EOFError):  # it was killed, as for its memory
                judge.close()
                judge = None
            except (pickle.PicklingError, TypeError, AttributeError, RuntimeError):
                self._local.add(name)
            finally:
                if judge is not None:
                    self._release(judge)
        begun = time.perf_counter()
        try:
            return job.items(self._differed)
        finally:
            self._busy += time.perf_counter() - begun
            if self._busy > BUSY and self._background.pending() > MANY:
                self._start()

    def _idle(self) -> _Judge | None:
        """An idle process; None: there is none."""
        self._accept()
        while self._waits and not self._ready and self._starting:
            with self._lock:
                outputs = [judge.output for judge in self._starting]
            select.select(outputs, [], [], SECOND)
            self._accept()
        with self._lock:
            return self._free.pop() if self._free else None

    def _accept(self) -> None:
        """Start a thread for each process that is ready."""
        with self._lock:
            for judge in [one for one in self._starting if one.has_output()]:
                self._starting.remove(judge)
                if judge.output.read(len(HELLO)) != HELLO:
                    judge.close()
                    continue
                self._free.append(judge)
                if self._ready:
                    self._background.grow()
                self._ready += 1

    def _release(self, judge: _Judge) -> None:
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
            # where no more processes are allowed, jobs are judged here
            with contextlib.suppress(OSError):
                self._starting = [_Judge(threads) for _ in range(count)]

    def close(self) -> None:
        """End the processes."""
        with self._lock:
            self._is_over = True
            judges, self._free, self._starting = [*self._free, *self._starting], [], []
        for judge in judges:
            judge.close()
        lifecycle.unregister(self)

    def after_fork(self) -> None:
        """In a forked child, leave the processes to the parent."""
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
        self._input, self.output = self._process.stdin, self._process.stdout

    def has_output(self) -> bool:
        """Whether the process is ready to work, or ended."""
        return bool(select.select([self.output], [], [], 0)[0])

    def items(self, job: Job) -> list[Item]:
        """Send a job and wait for its items; the interpreter is free meanwhile."""
        send(self._input, job)
        answer = receive(self.output)
        if isinstance(answer, NoReferenceError):
            raise answer
        if isinstance(answer, str):
            raise RuntimeError(answer)
        items: list[Item] = answer
        return items

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self.output.close()
        with contextlib.suppress(OSError):  # a part of a job may be in the buffer
            self._input.close()


def send(file: IO[bytes], message: object) -> None:
    """Write the size of a message and the message; nothing of one that cannot be pickled."""
    stream = io.BytesIO()
    _Pickler(stream, protocol=5).dump(message)
    file.write(struct.pack("<q", stream.tell()))
    file.write(stream.getbuffer())
    file.flush()


def receive(file: IO[bytes]) -> Any:
    """Read a message; EOFError at the end."""
    return _Unpickler(io.BytesIO(_read(file, struct.unpack("<q", _read(file, 8))[0]))).load()


def _read(file: IO[bytes], size: int) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise EOFError
    return data


class _Pickler(pickle.Pickler):
    """Tensors with the memory that they share, and torch's operators by their names."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return _reduced(value)
        if isinstance(value, torch.UntypedStorage):
            size = value.nbytes()
            data = (ctypes.c_char * size).from_address(value.data_ptr()) if size else b""
            return _storage, (pickle.PickleBuffer(data),)
        if isinstance(value, torch.device):
            return _device, (value.type, value.index)
        if isinstance(value, OpOverload):
            return _operator, (value._schema.name, value._schema.overload_name)
        if isinstance(value, Job):
            recorded = replace(value.recorded, run=None, on_device={}, key=None)
            return Job, (recorded, value.gradients, value.standard, value.bitwise, value.dtype)
        if isinstance(value, Rerun):
            places = [at for at, t in enumerate(value.call.inputs) if id(t) in value.requires]
            return _rerun, ({**vars(value), "requires": places},)
        return NotImplemented


def _reduced(tensor: Tensor) -> Any:
    if type(tensor) not in PLAIN or tensor.layout != torch.strided or tensor.is_quantized:
        raise pickle.PicklingError(f"a {type(tensor).__name__} of layout {tensor.layout}")
    described = tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
    if tensor.is_meta:
        return _on_meta, described[:3]
    if tensor.device.type != "cpu" or tensor.is_conj() or tensor.is_neg():
        raise pickle.PicklingError(f"a tensor on {tensor.device}")
    requires_grad = tensor.requires_grad and tensor.is_leaf
    return _on_host, (tensor.untyped_storage(), *described, requires_grad)


def _storage(data: bytearray) -> torch.UntypedStorage:
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
    tensor = torch.empty(0, dtype=dtype).set_(storage, offset, size, stride)
    return tensor.requires_grad_(requires_grad)


def _rerun(fields: dict[str, Any]) -> Rerun:
    """A rerun with the ids of tensors of this process instead of their places among arguments."""
    given = fields["call"].inputs
    return Rerun(**{**fields, "requires": frozenset(id(given[at]) for at in fields["requires"])})


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
    """Judge the jobs of standard input until its end."""
    jobs, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a kernel may print, which is no answer
    torch.set_num_threads(int(sys.argv[1]))
    differed = Differed()
    prepare()  # takes seconds
    answers.write(HELLO)
    answers.flush()
    while True:
        try:
            send(answers, _answer(jobs, differed))
        except EOFError:
            return


def _answer(jobs: IO[bytes], differed: Differed) -> object:
    try:
        job: Job = receive(jobs)
        torch.set_default_dtype(job.dtype)
        with torch.no_grad():
            return job.items(differed)
    except EOFError:
        raise
    except NoReferenceError as error:
        return error
    except Exception as error:  # the program's process judges the call itself, and reports it
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    # by the module's name in jobs, so that its classes are those of the program's process
    from op_tools.compare import judging

    judging.main()
