"""Pixels are rescaled and normalised channel by channel."""

from __future__ import annotations

import torch

from runner.kernels.encoder import normalise_pixels

MEAN, STD = (0.5, 0.25, 0.0), (0.5, 1.0, 2.0)


def test_each_pixel_is_rescaled_and_normalised_by_its_channel() -> None:
    pixels = torch.tensor([[[[0, 51, 255], [255, 0, 102]]]], dtype=torch.uint8)  # one image, 1 x 2 pixels
    result = normalise_pixels(pixels, MEAN, STD)
    wanted = torch.tensor([[[-1.0, 1.0]], [[0.2 - 0.25, -0.25]], [[0.5, 0.2]]])
    torch.testing.assert_close(result, wanted[None], rtol=0, atol=1e-6)


def test_the_image_keeps_its_height_and_width() -> None:
    pixels = torch.zeros(2, 3, 5, 3, dtype=torch.uint8)
    pixels[1, 2, 4, 0] = 255
    result = normalise_pixels(pixels, MEAN, STD)
    assert result.shape == (2, 3, 3, 5)
    assert result.dtype == torch.float32
    assert float(result[1, 0, 2, 4]) == 1.0
    assert int((result[:, 0] == 1.0).sum()) == 1
