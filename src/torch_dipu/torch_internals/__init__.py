# SPDX-License-Identifier: Apache-2.0
"""Every interface of torch below the device's Python module that torch does not document.

Each part registers at the import of the module of torch that it needs, because `import torch` is
twice as slow with Dynamo.
"""

from torch_dipu.torch_internals import device_interface, dlpack, flex_attention, inductor


def register() -> None:
    """Register what torch calls on this device."""
    device_interface.register()
    inductor.register()
    flex_attention.register()
    dlpack.register()
