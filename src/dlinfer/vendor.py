# SPDX-License-Identifier: Apache-2.0
"""The published name of the vendor: frameworks read it where one vendor needs another weight
layout.

dlinfer's ops accept plain weights on every device, so the name matches no vendor.
"""

vendor_name = "dlinfer"
