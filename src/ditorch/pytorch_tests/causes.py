# SPDX-License-Identifier: Apache-2.0
"""The cause of a failure: the chip (values, kernels) or the shim (the mapping of CUDA's names)."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """Patterns for a failure's message and place; `{device}` is the device type of the chip."""

    cause: str
    reason: str
    message: str = ""
    where: str = ""


# The first match decides. A message about a missing kernel lists every backend, CUDA's too, so it
# precedes the rules that search for names of devices.
RULES = (
    Rule("chip", "crash", r"^the process died"),
    Rule("chip", "hang", r"^no result within"),
    Rule("shim", "no equivalent", r"^Unsupported: |has no equivalent here"),
    # a RuntimeError there was raised by the chip's own functions, called through a mapped name
    Rule(
        "shim",
        "raised in ditorch",
        r"^(Attribute|Type|Name|Key|Index|Import|ModuleNotFound|UnboundLocal|Recursion)Error",
        where=r"^ditorch/(?!pytorch_tests/)|^<ditorch ",
    ),
    Rule(
        "chip",
        "missing kernel",
        r"Could not run '[\w:.]+' with arguments|not implemented for '|no kernel for"
        r"|^NotImplementedError: .*aten::|not currently supported on the .* backend"
        r"|not supported by this device|does not support (b?float|u?int|complex|bool)",
    ),
    Rule(
        "shim",
        "missing torch.cuda name",
        r"(module|object|attribute) '?torch\.cuda[\w.]*'? has no attribute"
        r"|cannot import name '\w+' from 'torch\.cuda",
    ),
    Rule(
        "shim",
        "missing torch._C name",
        r"'torch\._C[\w.]*' has no attribute|cannot import name '\w*' from 'torch\._C"
        r"|'_C' .*has no attribute '_?[cC]uda",
    ),
    Rule("shim", "not compiled with CUDA", r"not compiled with CUDA|not linked with .*cuda"),
    Rule(
        "shim",
        "jit.script",
        r"torch\.jit\.frontend|UnsupportedNodeError|NotSupportedError|TorchScript (class|type|comp)"
        r"|Could not get name of python class|Can't get source for|could not find.*'def '",
    ),
    Rule(
        "shim",
        "jit.script",
        where=r"^torch/jit/(_script|frontend|_recursive|_builtins|annotations|_check)\.py",
    ),
    Rule(
        "shim",
        "device identity",
        r"\bcuda(:\d+)?\b.*(?<!\w)({device}|privateuse(one|1))(:\d+)?\b"
        r"|(?<!\w)({device}|privateuse(one|1))(:\d+)?\b.*\bcuda(:\d+)?\b"
        r"|Invalid device string|don't know how to restore data location",
    ),
    Rule(
        "shim",
        "device identity",
        r"[Tt]ensors? .* same device|is_cuda\b|type 'cuda'|for attribute 'device' do not match",
    ),
    Rule("chip", "out of memory", r"out of memory|OutOfMemoryError"),
    Rule("chip", "values", r"(Tensor-likes|Scalars|Booleans) are not (close|equal)|not close"),
    Rule("chip", "values", r"^AssertionError: "),
)
OTHER = Rule("chip", "other")


def classify(message: str, where: str, device: str) -> Rule:
    """Return the rule that matches a failure;
    `device` is the device type of the chip, e.g. "dipu".
    """
    for rule in RULES:
        # a chip that torch itself calls cuda has no mapped names that could be confused
        if rule.reason == "device identity" and device == "cuda":
            continue
        text = rule.message.replace("{device}", re.escape(device))
        if re.search(text, message, re.DOTALL) and re.search(rule.where, where):
            return rule
    return OTHER
