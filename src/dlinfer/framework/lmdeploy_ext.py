# SPDX-License-Identifier: Apache-2.0
"""The module that LMDeploy imports to serve its device types "ascend", "maca" and "camb".

The vendor is the chip of one of them, or the one that DEEPLINK_VENDOR names: `reference` for the
reference device, `cpu` for the CPU. LMDeploy prints an error of the import and exits.
"""

from dlinfer.framework.lmdeploy import register_chips

register_chips()
