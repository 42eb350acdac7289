# SPDX-License-Identifier: Apache-2.0
"""convert_config.yaml: types and layouts that a vendor's kernels lack, and their replacements.

    - common_config:
        dtype: (int64) -> int32, (float64) -> float32
    - diopiConvolution2d:
        dtype: (float64, bfloat16) -> float32
        tensor_dtype:
            bias: (float64) -> float32
        layout: NCHW, input(NHWC)

The innermost level with a value decides: tensor, op, common_config.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import torch
import yaml  # type: ignore[import-untyped]  # it brings no types

from deeplink.errors import ConfigError
from deeplink.i18n import _

COMMON = "common_config"
# supportComposite is a key of older files; here routes decide, so it has no effect
KEYS = ("dtype", "tensor_dtype", "layout", "supportComposite")

DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex32 "
    "complex64 complex128 uint16 uint32 uint64 float8_e4m3fn float8_e5m2".split()
}


@dataclass(frozen=True)
class Layout:
    """The layout of a tensor of one rank in memory; rank None: of any rank."""

    rank: int | None
    format: torch.memory_format | None  # None: any


LAYOUTS: dict[str, Layout] = {
    "NCL": Layout(3, torch.contiguous_format),
    "NCHW": Layout(4, torch.contiguous_format),
    "NCDHW": Layout(5, torch.contiguous_format),
    "NHWC": Layout(4, torch.channels_last),
    "NDHWC": Layout(5, torch.channels_last_3d),
    "contiguous": Layout(None, torch.contiguous_format),
    "ND": Layout(None, None),
}

Casts = Mapping[torch.dtype, torch.dtype]


@dataclass(frozen=True)
class Rule:
    """The rule of one level; None: not specified. A tensor in any of the layouts is unchanged."""

    casts: Casts | None = None
    layouts: tuple[Layout, ...] | None = None

    def over(self, outer: Rule) -> Rule:
        """Return this rule, completed by the outer rule."""
        return Rule(
            outer.casts if self.casts is None else self.casts,
            outer.layouts if self.layouts is None else self.layouts,
        )


@dataclass(frozen=True)
class OpRule:
    """The entry of one op: for all its tensors, and for single ones by name."""

    name: str  # as it is written
    line: int
    every: Rule = Rule()
    tensors: Mapping[str, Rule] = field(default_factory=dict)

    def says(self) -> tuple[object, ...]:
        """The content of the entry, without its position and spelling."""
        return (self.every, dict(self.tensors))


@dataclass(frozen=True)
class Config:
    """A whole file. `ops` is keyed by the op's name, whichever name the file uses."""

    file: str
    common: Rule = Rule()
    ops: Mapping[str, OpRule] = field(default_factory=dict)

    def rule(self, op: str, tensor: str) -> Rule:
        """Return the rule of one tensor of one op."""
        own = self.ops.get(op)
        if own is None:
            return self.common
        return own.tensors.get(tensor, Rule()).over(own.every).over(self.common)


Names = Callable[[str], tuple[str, Mapping[str, str]] | None]
"""A name in the file -> the op's name, and the op's tensors by what they may be called there;
None: no such op."""


def read(path: Path, ops: Names, known: Iterable[str] = ()) -> Config:
    """Read the rules of a file; ConfigError with file and line for an invalid entry."""
    return parse(path.read_text("utf-8"), ops, known, file=path.name)


def parse(text: str, ops: Names, known: Iterable[str] = (), file: str = "yaml") -> Config:
    """Parse a text; `known` are the names from which suggestions are chosen."""
    return _Reader(file, ops, tuple(known)).config(text)


@dataclass(frozen=True)
class _Reader:
    """Walks the nodes of the file, because they have line numbers, unlike yaml's dicts."""

    file: str
    ops: Names
    known: tuple[str, ...]

    def config(self, text: str) -> Config:
        try:
            root = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = mark.line + 1 if mark else 1
            raise ConfigError(
                _("{file}:{line}: not yaml: {problem}.").format(
                    file=self.file, line=line, problem=error.problem or error.context
                ),
                _("an entry is `- diopiAdd:`, its keys are below it, indented by the same spaces."),
            ) from error
        common: Rule | None = None
        common_line = 0
        ops: dict[str, OpRule] = {}
        for key, value in self._entries(root):
            line = key.start_mark.line + 1
            if key.value == COMMON:
                if common is not None:
                    self._twice(COMMON, common_line, line)
                common, common_line = self._op(key, value, {}).every, line
                continue
            name, tensors = self._named(key)
            entry = self._op(key, value, tensors)
            first = ops.setdefault(name, entry)
            if first is not entry and (first.name == entry.name or first.says() != entry.says()):
                self._twice(key.value, first.line, line, first.name)
        return Config(self.file, common or Rule(), ops)

    def _entries(self, root: yaml.Node | None) -> Iterator[tuple[yaml.Node, yaml.Node]]:
        """Yield the name and the content of each entry, of a list of entries or of one mapping."""
        if root is None:
            return
        if isinstance(root, yaml.MappingNode):
            yield from root.value
            return
        for item in self._expect(root, yaml.SequenceNode, "a list of entries").value:
            pairs = self._expect(item, yaml.MappingNode, "an op's name and its rules").value
            key, value = pairs[0]
            if len(pairs) > 1 and not isinstance(value, yaml.MappingNode) and not value.value:
                # `- diopiAdd:` with its keys not indented below it: yaml makes them its siblings
                value = yaml.MappingNode(value.tag, pairs[1:], value.start_mark, value.end_mark)
                pairs = [(key, value)]
            yield from pairs

    def _named(self, key: yaml.Node) -> tuple[str, Mapping[str, str]]:
        found = self.ops(key.value)
        if found is None:
            self._unknown(key, "op", self.known)
        return found

    def _op(self, key: yaml.Node, value: yaml.Node, tensors: Mapping[str, str]) -> OpRule:
        keys = self._keys(value, f"the rules of {key.value}")
        for name, (at, _value) in keys.items():
            if name not in KEYS:
                self._unknown(at, "key", KEYS)
        casts: Casts | None = None
        layouts: tuple[Layout, ...] | None = None
        per_tensor: dict[str, Rule] = {}
        if "dtype" in keys:
            casts = self._casts(keys["dtype"][1])
        if "layout" in keys:
            layouts, named = self._layouts(keys["layout"][1], tensors)
            per_tensor = {name: Rule(layouts=one) for name, one in named.items()}
        if "tensor_dtype" in keys:
            for name, (at, node) in self._keys(keys["tensor_dtype"][1], "tensor_dtype").items():
                if name not in tensors:
                    self._unknown(at, f"tensor of {key.value}", tensors)
                rule = Rule(casts=self._casts(node))
                name = tensors[name]
                per_tensor[name] = rule.over(per_tensor.get(name, Rule()))
        return OpRule(key.value, key.start_mark.line + 1, Rule(casts, layouts), per_tensor)

    def _keys(self, node: yaml.Node, what: str) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        if isinstance(node, yaml.ScalarNode) and not node.value:
            return {}
        found: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key, value in self._expect(node, yaml.MappingNode, f"{what} as `key: value`").value:
            if key.value in found:
                first = found[key.value][0]
                self._twice(key.value, first.start_mark.line + 1, key.start_mark.line + 1)
            found[key.value] = (key, value)
        return found

    def _casts(self, node: yaml.Node) -> Casts:
        """Parse `(int64, uint64) -> int32, (float64) -> float32`;
        brackets around one are optional.
        """
        text = self._expect(node, yaml.ScalarNode, "a text such as `(int64) -> int32`").value
        text = text.replace("，", ",")
        casts: dict[torch.dtype, torch.dtype] = {}
        pattern = r"\s*(?:\(([^()]*)\)|(\w+))\s*->\s*(\w+)\s*(?:,|$)"
        end = 0
        while end < len(text.rstrip()):
            match = re.compile(pattern).match(text, end)
            if match is None:
                self._fail(
                    node,
                    f"{text[end:].strip()!r} is no conversion",
                    "write `(int64, uint64) -> int32, (float64) -> float32`.",
                )
            target = self._dtype(node, match[3])
            for name in (match[1] or match[2]).split(","):
                source = self._dtype(node, name)
                if source in casts:
                    self._fail(node, f"{name.strip()} is converted twice", "keep one of the two.")
                casts[source] = target
            end = match.end()
        return casts

    def _dtype(self, node: yaml.Node, name: str) -> torch.dtype:
        dtype = DTYPES.get(name.strip().lower())
        if dtype is None:
            self._unknown(node, "dtype", DTYPES, name.strip())
        return dtype

    def _layouts(
        self, node: yaml.Node, tensors: Mapping[str, str]
    ) -> tuple[tuple[Layout, ...] | None, dict[str, tuple[Layout, ...]]]:
        """Parse `NCHW, input(NHWC)`: the layouts of all tensors (None: unspecified),
        and of single ones.
        """
        text = self._expect(node, yaml.ScalarNode, "a text such as `NCHW, input(NHWC)`").value
        every: list[Layout] = []
        named: dict[str, tuple[Layout, ...]] = {}
        for part in filter(None, re.split(r"\s*[,，]\s*(?![^()]*\))", text.strip())):
            match = re.fullmatch(r"(\w+)\s*\(([^()]*)\)", part)
            if match is None:
                every.append(self._layout(node, part))
                continue
            if match[1] not in tensors:
                self._unknown(node, "tensor", tensors, match[1])
            found = tuple(self._layout(node, name.strip()) for name in match[2].split(","))
            name = tensors[match[1]]
            named[name] = named.get(name, ()) + found
        return tuple(every) or None, named

    def _layout(self, node: yaml.Node, name: str) -> Layout:
        if name not in LAYOUTS:
            self._unknown(node, "layout", LAYOUTS, name)
        return LAYOUTS[name]

    def _expect(self, node: yaml.Node, kind: type[yaml.Node], what: str) -> yaml.Node:
        if not isinstance(node, kind):
            self._fail(node, f"expected {what}, found {node.id} {_short(node)}")
        return node

    def _twice(self, name: str, first: int, second: int, as_name: str = "") -> NoReturn:
        two = as_name not in ("", name)
        what = f"{as_name} and {name} are one op with different rules" if two else f"{name} twice"
        raise ConfigError(
            _("{file}:{second}: {what}, on lines {first} and {second}.").format(
                file=self.file, second=second, what=what, first=first
            ),
            _("keep one of them, with all the rules that you mean."),
        )

    def _unknown(
        self, node: yaml.Node, kind: str, known: Iterable[str], name: str | None = None
    ) -> NoReturn:
        name = node.value if name is None else name
        names = list(known)
        close = difflib.get_close_matches(name, names, n=1)
        shown = ", ".join(names) if len(names) <= 20 else f"{len(names)} are known"
        hint = f"did you mean {close[0]!r}?" if close else f"known: {shown or 'none'}."
        self._fail(node, f"no {kind} {name!r}", hint)

    def _fail(self, node: yaml.Node, what: str, hint: str = "") -> NoReturn:
        raise ConfigError(
            _("{file}:{value}: {what}.").format(
                file=self.file, value=node.start_mark.line + 1, what=what
            ),
            hint,
        )


def _short(node: yaml.Node) -> str:
    value = node.value
    return repr(value)[:60] if isinstance(value, str) else f"of {len(value)}"
