# SPDX-License-Identifier: Apache-2.0
"""Import of openvino without its converter of other formats, which takes half of the import time
and
is loaded on first use.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

CONVERTER = "openvino.tools.ovc"


def imported() -> Any:
    """Import openvino."""
    if "openvino" in sys.modules:
        return sys.modules["openvino"]
    modules: dict[str, Any] = sys.modules
    modules[CONVERTER] = None  # cannot be imported for now, which the package allows
    try:
        package: Any = importlib.import_module("openvino")
    finally:
        if modules[CONVERTER] is None:
            del modules[CONVERTER]
    if not hasattr(package, "convert_model") and not hasattr(package, "__getattr__"):
        package.__getattr__ = _load_attribute
    return package


def _load_attribute(name: str) -> Any:
    if name not in ("convert_model", "tools"):
        raise AttributeError(f"module 'openvino' has no attribute {name!r}")
    converter = importlib.import_module(CONVERTER)
    sys.modules["openvino"].convert_model = converter.convert_model  # type: ignore[attr-defined]
    return converter.convert_model if name == "convert_model" else sys.modules["openvino.tools"]
