"""Images to what a vision tower takes: pixel normalisation and patches (torch)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from runner.models import VisionSpec


def normalise_pixels(pixels: torch.Tensor, mean: Sequence[float], std: Sequence[float]) -> torch.Tensor:
    """uint8 [images, height, width, 3] -> float32 [images, 3, height, width], as the processor does.

    Rescales by 1/255, then normalises each channel: (pixel / 255 - mean) / std.
    """
    scaled = pixels.permute(0, 3, 1, 2).to(torch.float32) * (1 / 255)
    shape = (1, len(mean), 1, 1)
    centre = torch.tensor(mean, device=pixels.device).view(shape)
    return (scaled - centre) / torch.tensor(std, device=pixels.device).view(shape)


def to_patches(image: torch.Tensor, vision: VisionSpec) -> torch.Tensor:
    """One normalised image [3, height, width] -> patches [patches, 3 * 2 * patch_size ** 2].

    Qwen2-VL's order: the patches of one merged row of output lie together, and a still image is two equal
    frames.
    """
    patch, merge = vision.patch_size, vision.merge_size
    blocks = image.view(3, vision.grid_height, merge, patch, vision.grid_width, merge, patch)
    ordered = blocks.permute(1, 4, 2, 5, 0, 3, 6)  # grid row, grid column, merge row, merge column, pixels
    frames = ordered.unsqueeze(5).expand(*ordered.shape[:5], 2, patch, patch)
    return frames.reshape(vision.rows_per_image * merge * merge, -1)
