# SPDX-License-Identifier: Apache-2.0
"""The published name of the vendor: frameworks ask for it where one vendor wants other weights.

dlinfer's ops take weights as they are, on every device, so no vendor's own way is asked for.
"""

vendor_name = "dlinfer"
