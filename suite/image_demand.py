"""Which requests bring images, and how many, where no trace says it."""

from __future__ import annotations

from runner.models import ModelSpec
from suite.errors import KeyedError
from suite.need import exact_share
from suite.seeding import seeded
from suite.traffic import Traffic


def draw_images(traffic: Traffic, model: ModelSpec, num_requests: int, seed: int) -> list[int]:
    """Images of each request: the ratio met exactly, the requests that have some drawn by the seed."""
    if traffic.multimodal_ratio > 0 and model.vision is None:
        raise KeyedError(
            "traffic.multimodal_ratio",
            f"{model.name} takes no images: set it to 0, or choose a multimodal model",
        )
    with_images = exact_share(num_requests, traffic.multimodal_ratio)
    order = seeded(seed, "multimodal").permutation(num_requests)
    counts = traffic.images_per_request.draw(seeded(seed, "images_per_request"), with_images)
    images = [0] * num_requests
    for index, count in zip(order[:with_images], counts, strict=True):
        images[index] = count
    return images
