"""Parts of torchvision's detectors that ask how many boxes there are, or go over them one by one.

Each is as torchvision's where it is not asked of boxes whose number data decide.
"""

import torch

from ...patches import runs_instead_of
from ...values.lengths import is_traced_number


@runs_instead_of("torchvision.models.detection._utils:BoxCoder.decode", with_original=True)
def decode(original, self, rel_codes, boxes):
    """Without the question whether there are boxes: also none have a shape here."""
    if not any(is_traced_number(x.shape[0]) for x in boxes):
        return original(self, rel_codes, boxes)
    count = sum(x.shape[0] for x in boxes)
    decoded = self.decode_single(rel_codes.reshape(count, -1), torch.cat(boxes, dim=0))
    return decoded.reshape(count, -1, 4)
