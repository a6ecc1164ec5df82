"""Image patches, pixel by pixel."""

import torch
from torch import Tensor


def cut(values_BL: Tensor, width: int, channels: int, patch: int) -> Tensor:
    """Return every patch's values: row by row, column by column, channel by channel, 0 beyond the image."""
    n = values_BL.shape[1]
    rows = (n + width * channels - 1) // (width * channels)
    examples = []
    for values_L in values_BL:
        patches = []
        for top in range(0, rows, patch):
            for left in range(0, width, patch):
                found = []
                for row in range(top, top + patch):
                    for column in range(left, left + patch):
                        for channel in range(channels):
                            at = (row * width + column) * channels + channel
                            found.append(values_L[at] if column < width and at < n else values_L.new_zeros(()))
                patches.append(torch.stack(found))
        examples.append(torch.stack(patches))
    return torch.stack(examples)
