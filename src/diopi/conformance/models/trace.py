# SPDX-License-Identifier: Apache-2.0
"""Trace the calls of full-size models, without weights and without a device.

    python -m diopi.conformance.models.trace bert resnet …

A model is built from its configuration on torch's meta device and run forward and backward. Each
distinct call of an ATen overload that computes is stored once: shapes, types and layout.
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import json
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

FOLDER = Path(__file__).parent
LAYERS = 2  # of repeated layers: more of them have equal shapes
# The value of a condition or a number: no layer is dropped, no mask is uniform.
ANSWERS = {torch.bool: False, torch.float32: 1.0, torch.bfloat16: 1.0, torch.float16: 1.0}
SKIPPED = ("detach", "alias", "lift_fresh", "empty", "_local_scalar_dense", "set_", "copy_")


class Recorder(TorchDispatchMode):
    """Records each distinct call, and returns values that meta tensors lack."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if str(func) == "aten._local_scalar_dense.default":
            return ANSWERS.get(args[0].dtype, 1)  # any value
        out = func(*args, **kwargs)
        if _computes(func):
            try:
                call = {"op": str(func), "args": _spec(args), "kwargs": _spec_of(kwargs)}
            except TypeError:  # an argument that is no data: a generator
                return out
            self.calls[json.dumps(call, separators=(",", ":"))] += 1
        return out


def _computes(func: Any) -> bool:
    """Whether an overload computes: it is no view and does not only manage memory."""
    if func.namespace != "aten" or func._schema.name.split("::")[1].startswith(SKIPPED):
        return False
    return not func.is_view


def _spec_of(kwargs: dict[str, Any]) -> dict[str, Any]:
    left_out = ("device", "layout", "pin_memory", "memory_format")
    return {k: _spec(v) for k, v in kwargs.items() if k not in left_out}


def _spec(value: Any) -> Any:
    if isinstance(value, Tensor):
        return {"t": list(value.shape), "d": str(value.dtype)[6:]} | _order(value)
    if isinstance(value, (list, tuple)):
        return [_spec(item) for item in value]
    if isinstance(value, torch.dtype):
        return {"dtype": str(value)[6:]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(type(value).__name__)


def _order(tensor: Tensor) -> dict[str, Any]:
    """Describe a non-contiguous layout: the dimensions from the slowest to the fastest."""
    if tensor.is_contiguous():
        return {}
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        return {"s": "cl"}
    order = sorted(range(tensor.dim()), key=lambda i: -tensor.stride()[i])
    return {"s": order}


# The models: the inputs of each kind.


def _ids(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64, device="meta")


def _image(size: int = 224, batch: int = 8) -> Tensor:
    return torch.zeros(batch, 3, size, size, device="meta")


TEXT: Callable[[], dict[str, Tensor]] = lambda: {"input_ids": _ids(8, 512)}  # noqa: E731
LONG: Callable[[], dict[str, Tensor]] = lambda: {"input_ids": _ids(1, 2048)}  # noqa: E731
IMAGE: Callable[[], dict[str, Tensor]] = lambda: {"pixel_values": _image()}  # noqa: E731
PAIR: Callable[[], dict[str, Tensor]] = lambda: {  # noqa: E731
    "input_ids": _ids(8, 512), "decoder_input_ids": _ids(8, 128),
}  # fmt: skip
SPECTRUM: Callable[[], dict[str, Tensor]] = lambda: {  # noqa: E731
    "input_features": torch.zeros(2, 80, 3000, device="meta"), "decoder_input_ids": _ids(2, 64),
}  # fmt: skip
BOTH: Callable[[], dict[str, Tensor]] = lambda: {  # noqa: E731
    "input_ids": _ids(8, 64), "pixel_values": _image(),
}  # fmt: skip

TRANSFORMERS: dict[str, Callable[[], dict[str, Tensor]]] = {
    **dict.fromkeys(
        """
        bert roberta distilbert albert electra deberta deberta-v2 xlm-roberta mpnet camembert
        ernie layoutlm squeezebert convbert fnet mobilebert
        rembert megatron-bert big_bird roformer
        """.split(),
        TEXT,
    ),
    **dict.fromkeys(
        """
        gpt2 gpt_neo gpt_neox gptj opt bloom falcon llama mistral qwen2 qwen3 gemma gemma2 phi phi3
        stablelm starcoder2 olmo cohere granite codegen mpt
        """.split(),
        LONG,
    ),
    **dict.fromkeys("t5 bart mbart pegasus m2m_100 marian blenderbot".split(), PAIR),
    **dict.fromkeys(
        """
        vit deit beit swin swinv2 convnext convnextv2 resnet regnet mobilenet_v1 mobilenet_v2
        efficientnet dinov2 segformer poolformer levit cvt mobilevit pvt focalnet bit
        data2vec-vision vit_mae yolos glpn dpt
        """.split(),
        IMAGE,
    ),
    "whisper": SPECTRUM,
    **dict.fromkeys("clip siglip".split(), BOTH),
}
HALF = (
    "llama mistral qwen2 qwen3 gemma gemma2 phi phi3 gpt_neox gptj falcon opt bloom stablelm "
    "starcoder2 olmo cohere granite codegen mpt"
).split()
TIMM = """
    resnet18 resnet50 resnet101 resnext50_32x4d wide_resnet50_2 vgg16 vgg19_bn densenet121
    inception_v3 inception_v4 mobilenetv3_large_100 efficientnet_b0 seresnet50 regnetx_032
    hrnet_w18 dla34 mixer_b16_224 xception41 ghostnet_100 darknet53
    cspdarknet53 mnasnet_100 res2net50_26w_4s
    """.split()


def build(name: str) -> tuple[Any, dict[str, Tensor]]:
    """Build a model on the meta device, with its inputs."""
    if name in TIMM:
        _declare_torchvisions_operators()
        timm = importlib.import_module("timm")
        size = 299 if "inception" in name or "xception" in name else 224
        with torch.device("meta"):
            return timm.create_model(name), {"x": _image(size)}
    transformers = importlib.import_module("transformers")
    config = transformers.AutoConfig.for_model(name)
    for word in ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers",
                 "decoder_layers"):  # fmt: skip
        if isinstance(getattr(config, word, None), int):
            setattr(config, word, min(LAYERS, getattr(config, word)))
    with torch.device("meta"):
        model = transformers.AutoModel.from_config(config)
    return (model.to(torch.bfloat16) if name in HALF else model), TRANSFORMERS[name]()


def _declare_torchvisions_operators() -> None:
    """Declare two operators of torchvision, which timm's import requires and no one calls.

    timm needs torchvision's Python alone, whose library may be built for another torch.
    """
    try:
        importlib.import_module("torchvision")
    except RuntimeError:  # operator torchvision::nms does not exist
        for name in ("nms", "qnms"):
            schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{name}", schema)


def trace(name: str) -> Counter[str]:
    """Return the distinct calls of a model, forward and backward, with their counts."""
    model, inputs = build(name)
    model.train()
    recorder = Recorder()
    with recorder:
        found = model(**inputs) if "x" not in inputs else model(inputs["x"])
        result = next(t for t in _tensors(found) if t.is_floating_point() and t.requires_grad)
        result.backward(torch.ones_like(result))
    return recorder.calls


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def save(name: str, calls: Counter[str], folder: Path) -> None:
    """Write one line for each call; the bytes do not depend on the time."""
    text = "".join(f"{call}\n" for call in sorted(calls))
    (folder / f"{name}.jsonl.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def main(line: Sequence[str] | None = None) -> int:
    """Trace models; return the number of failures."""
    parser = argparse.ArgumentParser(prog="python -m diopi.conformance.models.trace")
    parser.add_argument("models", nargs="*", help="all that are known, if none is given")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    given = parser.parse_args(line)
    failed = 0
    for name in given.models or (*TRANSFORMERS, *TIMM):
        started = time.monotonic()
        try:
            with _quiet():
                calls = trace(name)
            save(name, calls, given.folder)
            text = f"{len(calls)} cases of {sum(calls.values())} calls"
        except Exception as error:  # whatever a model's code raises: the next one is tried
            failed += 1
            text = f"not traced: {type(error).__name__}: {' '.join(str(error).split())[:120]}"
        sys.stdout.write(f"{name}: {text}, {time.monotonic() - started:.1f} s\n")
        sys.stdout.flush()
    return failed


if __name__ == "__main__":
    sys.exit(main())
