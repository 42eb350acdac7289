"""One call of every op: recorded from torch's op_db, or defined here where it has none."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from diopi import catalogue, op, schema

Arguments = dict[str, Any]


def copied(arguments: Arguments) -> Arguments:
    """Arguments that a call may write."""
    return dict(tree_map(lambda v: v.clone() if isinstance(v, Tensor) else v, arguments))


def sample(name: str) -> Arguments:
    """The arguments of one call of an op, anew."""
    return copied(all_samples()[name])


@cache
def all_samples() -> Mapping[str, Arguments]:
    """The arguments of one call, by the name of the op."""
    torch.manual_seed(0)
    written = {name: make() for name, make in HAND.items()}
    return {**recorded(), **written}


@cache
def recorded() -> Mapping[str, Arguments]:
    """Return the dispatcher's calls of op_db's samples and their backward."""
    entries, recorder = op_db(), Recorder()
    for name in sorted({name for each in op.all_ops().values() for name in each.opinfo}):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecations of torch's own samples
            _play(entries[name], recorder)
    return recorder.found


@cache
def op_db() -> Mapping[str, Any]:
    """Return torch's entries, by the names that ops use for them: sum, max.reduction_no_dim."""
    from torch.testing._internal import common_methods_invocations as lists

    names = [
        "op_db",
        *(f"foreach_{k}_op_db" for k in "unary binary pointwise reduce other".split()),
    ]
    found: dict[str, Any] = {}
    for entry in itertools.chain.from_iterable(getattr(lists, name) for name in names):
        variant = f".{entry.variant_test_name}" if entry.variant_test_name else ""
        found.setdefault(entry.name + variant, entry)
    return found


def _play(entry: Any, recorder: Recorder) -> None:
    dtype = torch.float32 if torch.float32 in entry.dtypes else min(entry.dtypes, key=str)
    grad = dtype.is_floating_point and entry.supports_autograd
    try:
        for sample in itertools.islice(entry.sample_inputs("cpu", dtype, requires_grad=grad), 4):
            with recorder:
                result = entry(sample.input, *sample.args, **sample.kwargs)
                leaves = [t for t in tree_leaves(result) if isinstance(t, Tensor)]
                leaves = [t for t in leaves if t.requires_grad]
                if leaves:
                    torch.autograd.backward(leaves, [torch.randn_like(t) for t in leaves])
    except (RuntimeError, IndexError):  # a foreach entry is not made to be called like this
        return


class Recorder(TorchDispatchMode):
    """Keeps the largest small call of each op, in the op's own argument names."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, Arguments] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        name += f".{func._schema.overload_name}" if func._schema.overload_name else ""
        stored = catalogue.overloads().get(name)
        if stored and stored.form == "functional":
            self._keep(name, func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def _keep(self, name: str, func: Any, args: Any, kwargs: Any) -> None:
        owner = op.by_aten(name)
        names = [argument.name for argument in func._schema.arguments]
        given = dict(zip(names, args, strict=False)) | kwargs
        renamed = {schema.own_name(name, n): v for n, v in given.items()}
        taken = {argument.name for argument in owner.arguments}
        kept = {n: v for n, v in renamed.items() if n in taken}
        size = sum(t.numel() for t in tree_leaves(kept) if isinstance(t, Tensor))
        before = self.found.get(owner.name, {})
        if not before or size > sum(t.numel() for t in tree_leaves(before) if _is_tensor(t)):
            self.found[owner.name] = copied(tree_map(_detached, kept))


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


# --- written by hand ---------------------------------------------------------------------------


def f(*shape: int) -> Tensor:
    return torch.randn(shape)


def positive(*shape: int) -> Tensor:
    return torch.rand(shape) + 0.5


def ints(high: int, *shape: int) -> Tensor:
    return torch.randint(high, shape)


def window(n: int, **more: Any) -> Arguments:
    return {"kernel_size": [2] * n, "stride": [2] * n, "padding": [0] * n, **more}


def pool_input(n: int) -> Tensor:
    return f(2, 3, *[6] * n)


def adam() -> Arguments:
    return {
        "param": f(5), "grad": f(5), "exp_avg": f(5), "exp_avg_sq": positive(5),
        "max_exp_avg_sq": positive(5), "lr": 0.01, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8,
        "weight_decay": 0.1, "step": 3, "amsgrad": True,
    }  # fmt: skip


def fused(*states: str, **more: Any) -> Arguments:
    lists = {name: [positive(5), positive(3)] for name in ("input", "grads", *states)}
    return {**lists, "state_steps": [torch.tensor(2.0), torch.tensor(2.0)], **more}


MOMENTS = {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-8}


def qkv() -> Arguments:
    return {"q": f(2, 5, 4, 8), "k": f(2, 6, 2, 8), "v": f(2, 6, 2, 8)}


def packed() -> Arguments:
    return {"q": f(7, 4, 8), "k": f(7, 2, 8), "v": f(7, 2, 8)}


HOW = {
    "p_dropout": 0.0, "softmax_scale": 0.3, "is_causal": True, "window_size_left": -1,
    "window_size_right": -1,
}  # fmt: skip
BOUNDS = torch.tensor([0, 3, 7], dtype=torch.int32)
VAR = {"max_seqlen_q": 4, "max_seqlen_kv": 4}
SAVED = dict.fromkeys("dropout_mask softmax_max softmax_sum softmax_out".split())
LAYOUT = {"head_num": 4, "input_layout": "BSND"}
MHA = {"dropout_p": 0.0, "is_causal": True, "scale": 0.3, "gen": None}
MHA_VAR = {"cum_seq_q": BOUNDS, "cum_seq_k": BOUNDS, "max_q": 4, "max_k": 4}
PLACES = {
    "b_loc": torch.tensor([[0, 0, 3, 4], [5, 6, 7, 8]]), "b_start_loc": torch.tensor([0, 2]),
    "b_seq_len": torch.tensor([2, 4]), "max_input_len": 4,
}  # fmt: skip
STATS = {"mean": f(3), "invstd": positive(3)}
POOL = {"stride": [2, 2], "padding": [0, 0], "dilation": [1, 1], "ceil_mode": False}
CTC = {
    "targets": torch.tensor([[1, 2], [2, 1]]), "input_lengths": torch.tensor([5, 5]),
    "target_lengths": torch.tensor([2, 2]), "blank": 0,
}  # fmt: skip
ROIS = torch.tensor([[0.0, 0.5, 0.5, 4.0, 5.0], [1.0, 1.0, 0.0, 5.0, 3.0]])
ROI = {"spatial_scale": 1.0, "pooled_height": 2, "pooled_width": 3}


def lists(*names: str) -> Arguments:
    return {name: [positive(3), positive(2, 2)] for name in names}


def pooling(n: int) -> dict[str, Callable[[], Arguments]]:
    sizes = {k: v * n if isinstance(v, list) else v for k, v in POOL.items()}
    sizes |= {"stride": [2] * n, "padding": [0] * n, "dilation": [1] * n}
    generic = {"mode": "avg", "ksize": [2] * n, **sizes, "exclusive": True, "adaptive": False}
    return {
        f"pool{n}d": lambda: {"input": pool_input(n), **generic, "output_size": []},
        f"pool{n}d_backward": lambda: {
            "grad_output": f(2, 3, *[3] * n), "input": pool_input(n), **generic, "indices": None,
        },
        f"max_pool{n}d": lambda: {"input": pool_input(n), **window(n, dilation=[1] * n)},
        f"adaptive_max_pool{n}d": lambda: {"input": pool_input(n), "output_size": [3] * n},
        f"adaptive_avg_pool{n}d": lambda: {"input": pool_input(n), "output_size": [3] * n},
    }  # fmt: skip


def padding(n: int) -> dict[str, Callable[[], Arguments]]:
    made: dict[str, Callable[[], Arguments]] = {}
    for mode in ("reflection", "replication"):
        made[f"{mode}_pad{n}d"] = lambda: {"input": pool_input(n), "padding": [1, 2] * n}
        made[f"{mode}_pad{n}d_backward"] = lambda: {
            "grad_output": f(2, 3, *[9] * n), "input": pool_input(n), "padding": [1, 2] * n,
        }  # fmt: skip
    return made


HAND: dict[str, Callable[[], Arguments]] = {
    **pooling(1), **pooling(2), **pooling(3), **padding(1), **padding(2), **padding(3),
    # elementwise and shape
    "clamp_min": lambda: {"input": f(3, 4), "min": f(4)},
    "clamp_max": lambda: {"input": f(3, 4), "max": f(4)},
    "conj": lambda: {"input": torch.complex(f(3), f(3))},
    "conj_physical": lambda: {"input": torch.complex(f(3), f(3))},
    "imag": lambda: {"input": torch.complex(f(3), f(3))},
    "real": lambda: {"input": torch.complex(f(3), f(3))},
    "isfinite": lambda: {"input": f(3, 4)},
    "positive": lambda: {"input": f(3, 4)},
    "square": lambda: {"input": f(3, 4)},
    "relu6": lambda: {"input": f(3, 4) * 5},
    "selu": lambda: {"input": f(3, 4)},
    "kron": lambda: {"input": f(2, 3), "other": f(3, 2)},
    "outer": lambda: {"input": f(3), "vec2": f(4)},
    "chunk": lambda: {"input": f(5, 4), "chunks": 2, "dim": 0},
    "diag": lambda: {"input": f(4), "diagonal": 1},
    "meshgrid": lambda: {"tensors": [f(3), f(2)]},
    "pad": lambda: {"input": f(2, 3), "pad": [1, 1], "mode": "constant", "value": 2.0},
    "repeat_interleave": lambda: {"input": f(2, 3), "repeats": 2, "dim": 1},
    "tile": lambda: {"input": f(2, 3), "dims": [2, 1]},
    "take_along_dim": lambda: {"input": f(3, 4), "indices": ints(3, 2, 4), "dim": 0},
    "copy": lambda: {"input": f(3, 4), "src": f(4)},
    "zero": lambda: {"input": f(3)},
    # matmul
    "linear": lambda: {"input": f(2, 3, 4), "weight": f(5, 4), "bias": f(5)},
    "linear_backward": lambda: {
        "input": f(2, 3, 4), "grad_output": f(2, 3, 5), "weight": f(5, 4),
        "output_mask": [True] * 3,
    },
    "matmul": lambda: {"input": f(2, 3, 4), "other": f(4, 5)},
    "matmul_backward": lambda: {
        "grad": f(2, 3, 5), "input": f(2, 3, 4), "other": f(4, 5), "mask": [True, True],
    },
    "scaled_dot_product_attention": lambda: {
        "query": f(2, 4, 5, 8), "key": f(2, 4, 5, 8), "value": f(2, 4, 5, 8),
    },
    "convolution_backward_overrideable": lambda: {
        "grad_output": f(2, 4, 4, 4), "input": f(2, 3, 6, 6), "weight": f(4, 3, 3, 3),
        "stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "transposed": False,
        "output_padding": [0, 0], "groups": 1, "output_mask": [True] * 3,
    },
    "matmul_all_reduce": lambda: {
        "x1": f(3, 4), "x2": f(4, 5), "bias": f(5), "group": "", "reduce_op": "sum",
        "comm_turn": 0, "stream_mode": 1,
    },
    # reductions and order
    "cumsum_backward": lambda: {"grad_output": f(3, 4), "dim": 1},
    "norm": lambda: {"input": f(3, 4), "p": 2, "dim": [1], "keepdim": False},
    "norm_backward": lambda: {
        "grad_output": f(3), "input": f(3, 4), "norm": positive(3), "dim": [1], "p": 2,
    },
    "argsort": lambda: {"input": f(3, 4), "stable": True, "dim": 1, "descending": False},
    "sort_backward": lambda: {
        "grad": f(3, 4), "dim": 1, "indices": f(3, 4).argsort(1), "sizes": [3, 4],
        "keepdim": True,
    },
    "unique": lambda: {"input": ints(4, 9), "dim": None, "sorted": True, "return_counts": True},
    "unique_dim": lambda: {"input": ints(2, 5, 2), "dim": 0},
    "triangular_solve": lambda: {
        "input": f(4, 2), "A": f(4, 4).triu() + 4 * torch.eye(4), "upper": True,
        "transpose": False, "unitriangular": False,
    },
    "triangular_solve_backward": lambda: {
        "grad_x": f(4, 2), "grad_cloned_mat": None, "x": f(4, 2), "b": f(4, 2),
        "mat": f(4, 4).triu() + 4 * torch.eye(4), "upper": True, "transpose": False,
        "unitriangular": False,
    },
    "cholesky": lambda: {"input": torch.eye(3) * 2, "upper": False, "check_errors": False},
    "cholesky_backward": lambda: {
        "grad_output": f(3, 3).tril(), "L": f(3, 3).tril() * 0.1 + 2 * torch.eye(3),
        "upper": False,
    },
    # indexing
    "embedding_renorm": lambda: {
        "input": f(5, 3), "indices": ints(5, 4), "max_norm": 1.0, "norm_type": 2.0,
    },
    "gather_backward": lambda: {
        "grad": f(2, 4), "input": f(3, 4), "dim": 0, "index": ints(3, 2, 4), "sparse_grad": False,
    },
    "index_backward": lambda: {
        "grad_output": f(4, 3), "zeros_like_input": torch.zeros(5, 3), "indices": [ints(5, 4)],
    },
    "index_select_backward": lambda: {
        "grad": f(4, 3), "self_sizes": [5, 3], "dim": 0, "index": ints(5, 4),
    },
    "masked_select_backward": lambda: {
        "grad": f(2), "input": f(4), "mask": torch.tensor([True, False, True, False]),
    },
    "one_hot": lambda: {"input": ints(4, 5), "num_classes": 4},
    # losses
    "binary_cross_entropy_with_logits_backward": lambda: {
        "grad_output": f(4, 3), "input": f(4, 3), "target": positive(4, 3) / 2, "weight": f(3),
        "pos_weight": None, "reduction": 0,
    },
    "cosine_similarity": lambda: {"x1": f(3, 4), "x2": f(3, 4)},
    "cross_entropy_loss": lambda: {
        "input": f(4, 3), "target": ints(3, 4), "weight": positive(3), "reduction": 1,
        "ignore_index": -100, "label_smoothing": 0.1,
    },
    "cross_entropy_loss_backward": lambda: {
        "grad_output": f(), "input": f(4, 3), "target": ints(3, 4), "weight": positive(3),
        "reduction": 1, "ignore_index": -100, "label_smoothing": 0.1,
    },
    "ctc_loss": lambda: {
        "log_probs": f(5, 2, 3).log_softmax(2), **CTC, "reduction": 1, "zero_infinity": False,
    },
    "ctc_loss_backward": lambda: {
        "grad_output": f(), "log_probs": f(5, 2, 3).log_softmax(2), **CTC, "reduction": 1,
        "zero_infinity": False, "neg_log_likelihood": f(2), "log_alpha": f(2, 5, 5),
    },
    "ctc_loss_lists": lambda: {
        "log_probs": f(5, 2, 3).log_softmax(2), "targets": CTC["targets"],
        "input_lengths": [5, 5], "target_lengths": [2, 1],
    },
    "ctc_loss_lists_backward": lambda: {
        "grad": f(2), "log_probs": f(5, 2, 3).log_softmax(2), "targets": CTC["targets"],
        "input_lengths": [5, 5], "target_lengths": [2, 1], "blank": 0,
        "neg_log_likelihood": positive(2), "log_alpha": f(2, 5, 5),
    },
    "hinge_embedding_loss": lambda: {"input": f(4), "target": f(4).sign()},
    "kl_div": lambda: {"input": f(4), "target": positive(4)},
    "l1_loss": lambda: {"input": f(4), "target": f(4)},
    "margin_ranking_loss": lambda: {"input1": f(4), "input2": f(4), "target": f(4).sign()},
    "sigmoid_focal_loss": lambda: {
        "inputs": f(4, 3), "targets": ints(2, 4, 3).float(), "alpha": 0.25, "gamma": 2.0,
        "reduction": 1,
    },
    "sigmoid_focal_loss_backward": lambda: {
        "grad_output": f(4, 3), "input": f(4, 3), "target": ints(2, 4, 3).float(), "gamma": 2.0,
        "alpha": 0.25, "reduction": 0,
    },
    # normalization
    "batch_norm_legit": lambda: {
        "input": f(4, 3, 5), "weight": f(3), "bias": f(3), "running_mean": f(3),
        "running_var": positive(3), "training": True, "momentum": 0.1, "eps": 1e-5,
    },
    "batch_norm_legit_no_stats": lambda: {
        "input": f(4, 3, 5), "weight": f(3), "bias": f(3), "training": True, "momentum": 0.1,
        "eps": 1e-5,
    },
    "batch_norm_stats": lambda: {"input": f(4, 3, 5), "eps": 1e-5},
    "batch_norm_elemt": lambda: {
        "input": f(4, 3, 5), "weight": f(3), "bias": f(3), **STATS, "eps": 1e-5,
    },
    "batch_norm_gather_stats_with_counts": lambda: {
        "input": f(4, 3, 5), "mean": f(2, 3), "invstd": positive(2, 3), "running_mean": f(3),
        "running_var": positive(3), "momentum": 0.1, "eps": 1e-5,
        "counts": torch.tensor([20.0, 30.0]),
    },
    "batch_norm_backward_reduce": lambda: {
        "grad_out": f(4, 3, 5), "input": f(4, 3, 5), **STATS, "weight": f(3), "input_g": True,
        "weight_g": True, "bias_g": True,
    },
    "batch_norm_backward_elemt": lambda: {
        "grad_out": f(4, 3, 5), "input": f(4, 3, 5), **STATS, "weight": f(3), "sum_dy": f(3),
        "sum_dy_xmu": f(3), "count": torch.tensor([20], dtype=torch.int32),
    },
    "fused_rms_norm": lambda: {
        "input": f(4, 3), "normalized_shape": [3], "weight": f(3), "eps": 1e-5,
    },
    "fused_rms_norm_backward": lambda: {
        "grad_out": f(4, 3), "input": f(4, 3), "normalized_shape": [3], "rstd": positive(4, 1),
        "weight": f(3), "output_mask": [True, True],
    },
    "instance_norm": lambda: {
        "input": f(2, 3, 4, 4), "scale": f(3), "bias": f(3), "axis": 1, "eps": 1e-5,
    },
    "instance_norm_backward": lambda: {
        "grad_output": f(2, 3, 4, 4), "input": f(2, 3, 4, 4), "scale": f(3), "bias": f(3),
        "axis": 1, "eps": 1e-5,
    },
    "layer_norm_gb": lambda: {
        "input": f(2, 3, 4), "weight": f(3, 4), "bias": f(3, 4), "eps": 1e-5,
        "begin_norm_axis": 1,
    },
    "layer_norm_gb_backward": lambda: {
        "grad_output": f(2, 3, 4), "input": f(2, 3, 4), "weight": f(3, 4), "bias": f(3, 4),
        "mean": f(2, 1, 1), "rstd": positive(2, 1, 1), "begin_norm_axis": 1,
    },
    "normalize": lambda: {"input": f(3, 4), "p": 2.0, "axis": 1, "eps": 1e-12},
    "normalize_backward": lambda: {
        "grad_output": f(3, 4), "input": f(3, 4), "p": 2.0, "axis": 1, "eps": 1e-12,
    },
    "rms_norm": lambda: {
        "input": f(4, 3), "normalized_shape": [3], "weight": f(3), "bias": f(3), "eps": 1e-5,
    },
    "rms_norm_backward": lambda: {
        "grad_output": f(4, 3), "input": f(4, 3), "weight": f(3), "bias": f(3),
        "inv_rms": positive(4), "normalized_shape": [3], "eps": 1e-5,
    },
    "weight_norm": lambda: {"v": f(3, 4), "g": f(3, 1)},
    "weight_norm_backward": lambda: {
        "grad_w": f(3, 4), "saved_v": f(3, 4), "saved_g": f(3, 1), "saved_norms": positive(3, 1),
        "dim": 0,
    },
    # pooling
    "max_pool1d_with_indices": lambda: {"input": pool_input(1), **window(1)},
    "max_pool1d_backward": lambda: {
        "grad_output": f(2, 3, 3), "input": pool_input(1), **window(1), "dilation": [1],
        "ceil_mode": False, "indices": ints(6, 2, 3, 3),
    },
    "avg_pool1d": lambda: {"input": pool_input(1), **window(1)},
    "avg_pool1d_backward": lambda: {
        "grad_output": f(2, 3, 3), "input": pool_input(1), **window(1), "ceil_mode": False,
        "count_include_pad": True,
    },
    "adaptive_max_pool1d_backward": lambda: {
        "grad_output": f(2, 3, 3), "input": pool_input(1), "indices": ints(6, 2, 3, 3),
    },
    "adaptive_avg_pool1d_backward": lambda: {
        "grad_output": f(2, 3, 3), "input": pool_input(1),
    },
    # random and creation
    "dropout": lambda: {"input": f(4, 5), "p": 0.5, "train": True, "generator": None},
    "normal": lambda: {"input": f(4), "mean": 1.0, "std": 2.0, "generator": None},
    "normal_float_tensor": lambda: {"mean": 1.0, "std": positive(4), "generator": None},
    "uniform": lambda: {"input": f(4), "low": -1.0, "high": 2.0, "generator": None},
    "bernoulli_p": lambda: {"input": f(4), "p": 0.3, "generator": None},
    "exponential": lambda: {"input": f(4)},
    "geometric": lambda: {"input": f(4), "p": 0.3},
    "cauchy": lambda: {"input": f(4)},
    "log_normal": lambda: {"input": f(4)},
    "arange_end": lambda: {"end": 5, "dtype": torch.float32},
    "item": lambda: {"input": torch.tensor(2.5)},
    "scalar_tensor": lambda: {"s": 2.5},
    "poisson": lambda: {"input": positive(4)},
    "rand": lambda: {"size": [3]},
    "random": lambda: {"input": f(4), "low": 2, "high": 9, "generator": None},
    "randperm": lambda: {"n": 5, "generator": None, "dtype": torch.int64},
    "native_memory_format_cast": lambda: {"input": f(3), "format": 2},
    "get_native_memory_format": lambda: {"input": f(3)},
    "tensor_destruction_hook": lambda: {"ptr": 0},
    # vision
    "grid_sample": lambda: {
        "input": f(2, 3, 4, 4), "grid": torch.rand(2, 5, 5, 2), "mode": "bilinear",
    },
    "grid_sampler_3d": lambda: {
        "input": f(1, 2, 3, 3, 3), "grid": torch.rand(1, 2, 2, 2, 3), "interpolation_mode": 0,
        "padding_mode": 0, "align_corners": False,
    },
    "grid_sampler_3d_backward": lambda: {
        "grad_output": f(1, 2, 2, 2, 2), "input": f(1, 2, 3, 3, 3),
        "grid": torch.rand(1, 2, 2, 2, 3), "interpolation_mode": 0, "padding_mode": 0,
        "align_corners": False, "output_mask": [True, True],
    },
    "nms": lambda: {
        "boxes": torch.tensor([[0.0, 0, 2, 2], [0, 0, 2, 1.9], [3, 3, 4, 4]]),
        "confidence": torch.tensor([0.5, 0.9, 0.3]), "iou_threshold": 0.5,
    },
    "roi_align": lambda: {
        "input": f(2, 3, 6, 6), "rois": ROIS, **ROI, "sampling_ratio": 2, "aligned": True,
    },
    "roi_align_backward": lambda: {
        "grad": f(2, 3, 2, 3), "rois": ROIS, **ROI, "batch_size": 2, "channels": 3, "height": 6,
        "width": 6, "sampling_ratio": 2, "aligned": True,
    },
    "upsample_nearest": lambda: {"input": f(2, 3, 4, 4), "size": [8, 8]},
    "upsample_nearest_backward": lambda: {
        "grad_output": f(2, 3, 8, 8), "out_size": [8, 8], "in_size": [2, 3, 4, 4],
    },
    "upsample_linear": lambda: {
        "input": f(2, 3, 4, 4), "size": [8, 8], "align_corners": False, "mode": "bilinear",
    },
    "upsample_linear_backward": lambda: {
        "grad_output": f(2, 3, 8, 8), "out_size": [8, 8], "in_size": [2, 3, 4, 4],
        "align_corners": False, "mode": "bilinear",
    },
    "upsample_nearest2d": lambda: {"input": f(2, 3, 4, 4), "output_size": [8, 8]},
    "upsample_nearest2d_backward": lambda: {
        "grad_output": f(2, 3, 8, 8), "output_size": [8, 8], "input_size": [2, 3, 4, 4],
    },
    "upsample_nearest3d": lambda: {"input": f(1, 2, 3, 3, 3), "output_size": [6, 6, 6]},
    "upsample_nearest3d_backward": lambda: {
        "grad_output": f(1, 2, 6, 6, 6), "output_size": [6, 6, 6], "input_size": [1, 2, 3, 3, 3],
    },
    # optimizers, lists
    "sgd": lambda: {
        "param": f(5), "grad": f(5), "buf": f(5), "lr": 0.1, "momentum": 0.9, "dampening": 0.1,
        "weight_decay": 0.01, "nesterov": False,
    },
    "adam": adam,
    "adamw": adam,
    "adadelta": lambda: {
        "param": f(5), "grad": f(5), "square_avg": positive(5), "acc_delta": positive(5),
        "lr": 0.1, "rho": 0.9, "eps": 1e-6, "weight_decay": 0.01,
    },
    "rmsprop": lambda: {
        "param": f(5), "grad": f(5), "square_avg": positive(5) + 9, "grad_avg": f(5),
        "momentum_buf": f(5), "lr": 0.1, "alpha": 0.9, "eps": 1e-8, "weight_decay": 0.01,
        "momentum": 0.9, "centered": True,
    },
    "clip_grad_norm": lambda: {
        "grads": [f(3), f(2)], "max_norm": 0.5, "norm_type": 2.0, "error_if_nonfinite": False,
    },
    "fused_adam": lambda: fused("exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs", **MOMENTS,
                                amsgrad=True, maximize=False),
    "fused_adamw": lambda: fused("exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs", **MOMENTS,
                                 amsgrad=True, maximize=False),
    "fused_adagrad": lambda: fused("state_sums", lr=0.1, lr_decay=0.0, weight_decay=0.0,
                                   eps=1e-8, maximize=False),
    "fused_sgd": lambda: {
        **lists("input", "grads", "momentum_buffer_list"), "weight_decay": 0.0, "momentum": 0.9,
        "lr": 0.1, "dampening": 0.0, "nesterov": False, "maximize": False,
        "is_first_step": False,
    },
    "amp_foreach_non_finite_check_and_unscale": lambda: {
        **lists("input"), "found_inf": torch.zeros(1), "inv_scale": torch.full((1,), 0.5),
    },
    "amp_update_scale": lambda: {
        "input": torch.full((1,), 8.0), "growth_tracker": torch.zeros(1, dtype=torch.int32),
        "found_inf": torch.ones(1), "scale_growth_factor": 2.0, "scale_backoff_factor": 0.5,
        "growth_interval": 2,
    },
    **{
        f"foreach_{name}_scalars": lambda: {**lists("input"), "scalars": [2.0, 3.0]}
        for name in "add sub mul div".split()
    },
    **{
        f"foreach_{name}_tensor": lambda: {**lists("input"), "other": torch.tensor(2.0)}
        for name in "add mul div".split()
    },
    **{
        f"foreach_{name}_scalar": lambda: {**lists("input"), "scalar": 2.0}
        for name in "add sub mul div".split()
    },
    **{
        f"foreach_{name}_{end}": lambda value=value: {  # type: ignore[misc]
            **lists("input", "tensor1", "tensor2"), **value,
        }
        for name in "addcmul addcdiv".split()
        for end, value in {
            "scalar": {"value": 0.5}, "scalars": {"scalars": [0.5, 2.0]},
            "tensor": {"scalars": torch.tensor([0.5, 2.0])},
        }.items()
    },
    # attention
    "rotary_embedding": lambda: {
        "x": f(2, 5, 4, 8), "cos": f(5, 1, 4), "sin": f(5, 1, 4), "conj": False,
        "interleaved": True,
    },
    "rotary_embedding_v2": lambda: {
        "query": f(5, 4, 8), "key": f(5, 2, 8), "cos": f(5, 1, 8), "sin": f(5, 1, 8), "dim": 8,
    },
    "flash_attention": lambda: {"gen": None, **qkv(), "alibi_slopes": None, **HOW},
    "flash_attention_backward": lambda: {
        "grad_output": f(2, 5, 4, 8), "gen": None, **qkv(), "alibi_slopes": None,
        "attention_out": f(2, 5, 4, 8), "softmax_lse": f(2, 4, 5), **HOW,
    },
    "flash_attention_var_len": lambda: {
        "gen": None, **packed(), "cum_seq_q": BOUNDS, "cum_seq_kv": BOUNDS, "alibi_slopes": None,
        **VAR, **HOW,
    },
    "flash_attention_var_len_backward": lambda: {
        "grad_output": f(7, 4, 8), "gen": None, **packed(), "cum_seq_q": BOUNDS,
        "cum_seq_kv": BOUNDS, "alibi_slopes": None, "attention_out": f(7, 4, 8),
        "softmax_lse": f(4, 7), **VAR, **HOW,
    },
    "customized_flash_attention": lambda: {
        "gen": None, "q": f(2, 5, 4, 8), "k": f(2, 5, 4, 8), "v": f(2, 5, 4, 8),
        "alibi_slopes": None, "attention_mask": torch.ones(5, 5).triu(1), **HOW, **LAYOUT,
    },
    "customized_flash_attention_backward": lambda: {
        "grad_output": f(2, 5, 4, 8), "q": f(2, 5, 4, 8), "k": f(2, 5, 4, 8),
        "v": f(2, 5, 4, 8), "alibi_slopes": None, "attention_out": f(2, 5, 4, 8),
        "attention_mask": None, **SAVED, **HOW, **LAYOUT,
    },
    "customized_flash_attention_var_len": lambda: {
        "gen": None, **packed(), "cum_seq_q": [3, 7], "cum_seq_kv": [3, 7], "alibi_slopes": None,
        "attention_mask": None, **VAR, **HOW,
    },
    "customized_flash_attention_var_len_backward": lambda: {
        "grad_output": f(7, 4, 8), **packed(), "cum_seq_q": [3, 7], "cum_seq_kv": [3, 7],
        "alibi_slopes": None, "attention_out": f(7, 4, 8), "attention_mask": None, **SAVED,
        **VAR, **HOW,
    },
    "multi_head_attention": lambda: {**qkv(), **MHA, "return_debug_mask": True},
    "multi_head_attention_backward": lambda: {
        "grad_out": f(2, 5, 4, 8), **qkv(), "out": f(2, 5, 4, 8), "softmax_lse": f(2, 4, 5),
        **MHA,
    },
    "multi_head_attention_var_len": lambda: {
        **packed(), **MHA_VAR, **MHA, "return_debug_mask": False,
    },
    "multi_head_attention_var_len_backward": lambda: {
        "grad_out": f(7, 4, 8), **packed(), "out": f(7, 4, 8), "softmax_lse": f(4, 7), **MHA_VAR,
        **MHA,
    },
    "scaled_masked_softmax": lambda: {
        "input": f(2, 4, 5, 5), "mask": ints(2, 2, 1, 5, 5).bool(), "scale": 0.5,
        "fixed_triu_mask": False,
    },
    "scaled_masked_softmax_backward": lambda: {
        "grad_output": f(2, 4, 5, 5), "output": f(2, 4, 5, 5).softmax(-1),
        "mask": ints(2, 2, 1, 5, 5).bool(), "scale": 0.5, "fixed_triu_mask": False,
    },
    # serving
    "apply_penalty": lambda: {
        "logits": f(2, 6), "presence_penalty": f(2), "frequency_penalty": f(2),
        "p_token_ids": torch.tensor([0, 3, 1]), "p_token_counts": torch.tensor([1, 2, 1]),
        "p_cumsum_seq_len": torch.tensor([0, 2, 3]), "p_max_len_in_batch": 2,
    },
    "apply_penalty_v2": lambda: {
        "logits": f(2, 6), "presence_penalty": f(3), "frequency_penalty": f(3),
        "repetition_penalty": positive(3), "p_token_ids": torch.tensor([0, 3, 7]),
        "p_token_counts": torch.tensor([1, 2, 1]),
    },
    "dest_index_copy_kv": lambda: {
        "out": f(9, 2, 8), "k": f(3, 2, 8), "dest_loc": torch.tensor([7, 0, 4]),
    },
    "token_attention_inference": lambda: {"q": f(2, 4, 8), "k": f(9, 4, 8), **PLACES},
    "token_softmax_reduce_v_inference": lambda: {
        "logics": f(4, 6), "v": f(9, 4, 8), **PLACES, "other_kv_index": 0,
    },
    "context_attention_inference": lambda: {
        "q": f(6, 4, 8), "k": f(6, 4, 8), "v": f(6, 4, 8),
        "b_start_loc": torch.tensor([0, 2]), "b_seq_len": torch.tensor([2, 4]),
        "max_input_len": 4,
    },
    "paged_attention": lambda: {
        "q": f(2, 32), "k": f(4, 4, 16), "v": f(4, 4, 16), "atten_mask": None,
        "actual_seq_lengths": [3, 6], "num_heads": 4, "num_kv_heads": 2, "dim": 8,
        "block_table": torch.tensor([[1, 0], [2, 3]]), "block_size": 4,
    },
    "prompt_flash_attention": lambda: {
        "query": f(7, 32), "key": f(7, 16), "value": f(7, 16), "atten_mask": None,
        "actual_seq_lengths": [3, 4], "max_input_len": 4, "num_heads": 4, "num_kv_heads": 2,
        "dim": 8,
    },
}  # fmt: skip
