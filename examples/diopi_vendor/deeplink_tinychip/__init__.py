"""The vendor record of tinychip, a made-up chip whose kernels are in C, on the host's memory."""

from deeplink.vendor import Vendor

vendor = Vendor(
    "tinychip",
    "cpu",
    lambda: True,
    kernels="deeplink_tinychip.kernels",
    accelerator=False,  # asked for by name only
    note="tinychip (made up)",
)
