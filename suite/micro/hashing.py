"""Hashes for the prefix cache, of ids, supplied rows and images. Work of the host; no torch."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from runner.block_hashes import BlockHashes
from runner.core import Image, Prompt, Request, RequestState, SamplingParams, SuppliedRows
from suite.micro.case import Case, Prepared
from suite.micro.timing import HostTimer

BLOCK_SIZE = 16
NUM_TOKENS = (256, 4096)
NUM_ROWS = (64, 512)
IMAGE_SHAPES = ((112, 112, 3), (896, 896, 3))

_ID_BYTES = 8  # as it is hashed


def hashing(hidden: Sequence[int]) -> Iterator[Case]:
    for count in NUM_TOKENS:
        yield _case("hash.ids", f"{count} ids", count * _ID_BYTES, partial(_ids, count))
    for width in hidden:
        for rows in NUM_ROWS:
            yield _case("hash.rows", f"{rows} x {width}", rows * width * 4, partial(_rows, rows, width))
    for shape in IMAGE_SHAPES:
        height, width, channels = shape
        size = height * width * channels
        yield _case("hash.image", f"{height} x {width} pixels", size, partial(_image, shape))


def _case(name: str, size: str, num_bytes: int, make: Callable[[], Callable[[], object]]) -> Case:
    def prepare() -> Prepared:
        return Prepared([make()], is_cold=False)

    return Case("hash", name, size, num_bytes, prepare, HostTimer())


def _ids(count: int) -> Callable[[], object]:
    draw = random.Random(1)
    return _blocks(Prompt(tuple(draw.randrange(3, 4000) for _ in range(count))))


def _rows(count: int, width: int) -> Callable[[], object]:
    data = random.Random(1).randbytes(count * width * 4)
    return _blocks(Prompt((), embeds=SuppliedRows(data, count, width)))


def _blocks(prompt: Prompt) -> Callable[[], object]:
    state = RequestState(Request("hashed", prompt, SamplingParams(max_tokens=1)), ())

    def hash_all() -> None:
        BlockHashes(state, BLOCK_SIZE).extend(len(prompt))

    return hash_all


def _image(shape: tuple[int, int, int]) -> Callable[[], object]:
    height, width, channels = shape
    image = Image(random.Random(1).randbytes(height * width * channels), shape)
    return lambda: image.key
