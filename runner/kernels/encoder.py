"""Images to rows: pixel normalisation and the model's own vision tower (torch)."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def normalise_pixels(pixels: torch.Tensor, mean: Sequence[float], std: Sequence[float]) -> torch.Tensor:
    """uint8 [images, height, width, 3] -> float32 [images, 3, height, width], as the processor does.

    Rescales by 1/255, then normalises each channel: (pixel / 255 - mean) / std.
    """
    scaled = pixels.permute(0, 3, 1, 2).to(torch.float32) * (1 / 255)
    shape = (1, len(mean), 1, 1)
    return (scaled - torch.tensor(mean).view(shape)) / torch.tensor(std).view(shape)
