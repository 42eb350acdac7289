"""torchvision where its compiled part is for another build of torch: its Python part alone.

It fails to import there, because it describes two of its compiled operators to torch. With their
names known to torch it imports; timm calls neither.
"""

import sys

import torch

SCHEMAS = ("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",)
SCHEMAS += tuple(schema.replace("nms", "qnms") for schema in SCHEMAS)

try:
    import torchvision
except RuntimeError as error:
    if "torchvision::nms does not exist" not in str(error):
        raise
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in SCHEMAS:
        library.define(schema)
    import torchvision  # noqa: F401
