# SPDX-License-Identifier: Apache-2.0
"""Compilers that are Python packages: the installed version, or how to install it."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable

from deeplink.errors import MissingCompilerError
from deeplink.i18n import _


def version_of(extra: str, *packages: str) -> Callable[[], str]:
    """Return a function that returns the versions of packages,
    or raises with the extra to install.
    """

    def version() -> str:
        try:
            return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
        except importlib.metadata.PackageNotFoundError as error:
            raise MissingCompilerError(
                _("{name} is not installed.").format(name=error.name),
                _("pip install 'deeplink[{extra}]'.").format(extra=extra),
            ) from None

    return version
