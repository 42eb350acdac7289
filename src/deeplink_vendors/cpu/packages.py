# SPDX-License-Identifier: Apache-2.0
"""Compilers that are Python packages: which version is here, or how to get it."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable

from deeplink.errors import MissingCompilerError


def version_of(extra: str, *packages: str) -> Callable[[], str]:
    """A function that gives the versions of packages, or says which extra brings them."""

    def version() -> str:
        try:
            return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
        except importlib.metadata.PackageNotFoundError as error:
            raise MissingCompilerError(
                f"{error.name} is not installed.", f"pip install 'deeplink[{extra}]'."
            ) from None

    return version
