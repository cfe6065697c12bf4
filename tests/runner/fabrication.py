"""Prompts, images, requests and arrivals made up for the runner's tests. Seeded; holds no assertion."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache

from runner.config import RunnerConfig
from runner.core import Image, Prompt, Request, SamplingParams
from runner.device.base import Device
from runner.models import TINY_GEMMA3_VL, ModelSpec, VisionSpec

SharedDevice = Callable[[str, ModelSpec, RunnerConfig], Device]

assert TINY_GEMMA3_VL.vision is not None
VISION: VisionSpec = TINY_GEMMA3_VL.vision

# The same rules of images on a scale that planning tests can enumerate: 2x2 pixels, three rows an image.
SMALL_VISION = replace(VISION, image_height=2, image_width=2, grid_height=1, grid_width=3)
SMALL_VL = replace(TINY_GEMMA3_VL, name="small-vl", vision=SMALL_VISION)
BOTH_WAYS_VL = replace(SMALL_VL, name="both-ways-vl", hidden_size=2, image_attention="bidirectional")


def vision_of(model: ModelSpec) -> VisionSpec:
    assert model.vision is not None
    return model.vision


@cache
def _text_vocabulary(first_id: int, vocab_size: int, reserved: frozenset[int]) -> tuple[int, ...]:
    return tuple(token for token in range(first_id, vocab_size) if token not in reserved)


def text(model: ModelSpec, count: int, seed: int) -> tuple[int, ...]:
    """`count` seeded ids that stand for text."""
    ids = _text_vocabulary(3, model.vocab_size, model.reserved_ids)
    return tuple(random.Random(seed).choices(ids, k=count))


@cache
def image(seed: int, shape: tuple[int, int, int] = VISION.image_shape) -> Image:
    return Image(random.Random(seed).randbytes(shape[0] * shape[1] * shape[2]), shape)


def prompt_of(model: ModelSpec, pieces: Sequence[int | tuple[str, int]], seed: int) -> Prompt:
    """A prompt of pieces: a number is that many text ids, ("image", n) is image number n."""
    ids: list[int] = []
    images: list[Image] = []
    for place, piece in enumerate(pieces):
        if isinstance(piece, int):
            ids += text(model, piece, seed * 101 + place)
            continue
        vision = vision_of(model)
        ids += vision.placeholder_ids()
        images.append(image(piece[1], vision.image_shape))
    return Prompt(tuple(ids), tuple(images))


def request(
    name: str,
    prompt: Prompt,
    max_tokens: int = 8,
    ignore_eos: bool = True,
) -> Request:
    return Request(name, prompt, SamplingParams(max_tokens, ignore_eos))


def text_request(model: ModelSpec, name: str, length: int, max_tokens: int = 8, seed: int = 0) -> Request:
    return request(name, prompt_of(model, [length], seed or sum(name.encode())), max_tokens)


class Staggered:
    """Arrivals for an engine: every request has the number of `due` calls that must come before it."""

    def __init__(self, arrivals: Iterable[tuple[int, Request]]) -> None:
        self._left = sorted(arrivals, key=lambda arrival: arrival[0])
        self._calls = 0

    def due(self) -> list[Request]:
        ready = [request for after, request in self._left if after <= self._calls]
        self._left = [arrival for arrival in self._left if arrival[0] > self._calls]
        self._calls += 1
        return ready

    def wait(self) -> bool:
        if not self._left:
            return False
        self._calls = max(self._calls, self._left[0][0])
        return True


def together(requests: Iterable[Request]) -> Staggered:
    """All requests are there from the beginning."""
    return Staggered((0, request) for request in requests)
