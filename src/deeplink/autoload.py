# SPDX-License-Identifier: Apache-2.0
"""The entry point that `import torch` calls; it does nothing unless the environment requests it.

Every `import torch` imports this module, so it imports no other module of the project until
DITORCH or OP_TOOLS_RUN is set.
"""

import os


def start() -> None:
    """Start what DITORCH or OP_TOOLS_RUN requests. Never raises."""
    if os.environ.get("DITORCH") or os.environ.get("OP_TOOLS_RUN"):
        from deeplink import autoload_hooks

        autoload_hooks.start()
