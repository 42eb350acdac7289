# SPDX-License-Identifier: Apache-2.0
"""What `import torch` runs for us: nothing, unless the environment asks for it.

Every `import torch` imports this module, so it imports no other of ours until DITORCH or
OP_TOOLS_RUN is set.
"""

import os


def start() -> None:
    """Start what DITORCH or OP_TOOLS_RUN asks for. Never raises."""
    if os.environ.get("DITORCH") or os.environ.get("OP_TOOLS_RUN"):
        from deeplink import autoload_hooks

        autoload_hooks.start()
