"""Prompts as rows of pieces, so that a test can change exactly one thing of one. Holds no assertion."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from runner.block_hashes import BlockHashes
from runner.core import Image, ImageSpan, Prompt, Request, RequestState, SamplingParams, SuppliedRows

HIDDEN_SIZE = 2
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
Dtype = Literal["float32", "float16", "bfloat16"]


class Position(NamedTuple):
    """What one position holds; `row` are the bytes that stand there, supplied or not."""

    token_id: int
    row: bytes
    is_supplied: bool
    image: int | None = None  # number of the image that fills it


@dataclass(frozen=True, slots=True)
class Pieces:
    """A whole prompt. `is_pure`: it comes without ids, all its rows supplied."""

    positions: tuple[Position, ...]
    images: tuple[Image, ...] = ()
    dtype: Dtype = "float32"
    is_pure: bool = False
    has_rows: bool = True

    def put(self, place: int, **changes: object) -> Pieces:
        changed = self.positions[place]._replace(**changes)
        return replace(self, positions=(*self.positions[:place], changed, *self.positions[place + 1 :]))

    def swap_image(self, index: int, image: Image) -> Pieces:
        return replace(self, images=(*self.images[:index], image, *self.images[index + 1 :]))

    def prompt(self) -> Prompt:
        ids = () if self.is_pure else tuple(position.token_id for position in self.positions)
        if not self.has_rows:
            return Prompt(ids, self.images)
        mask = None if self.is_pure else bytes(position.is_supplied for position in self.positions)
        data = b"".join(position.row for position in self.positions)
        rows = SuppliedRows(data, len(self.positions), HIDDEN_SIZE, self.dtype, mask)
        return Prompt(ids, self.images, rows)

    def state(self, name: str = "r", sampling: SamplingParams | None = None) -> RequestState:
        spans = []
        for index, image in enumerate(self.images):
            own = [place for place, position in enumerate(self.positions) if position.image == index]
            spans.append(ImageSpan(image.key, index, own[0], len(own)))
        return RequestState(Request(name, self.prompt(), sampling or SamplingParams(4)), tuple(spans))

    def hashes(self, block_size: int, name: str = "r", sampling: SamplingParams | None = None) -> list[bytes]:
        made = BlockHashes(self.state(name, sampling), block_size)
        made.extend(len(self.positions))
        return made.hashes

    def places(self, kind: Literal["id", "supplied", "image", "text"]) -> list[int]:
        """Positions that hold an id, a supplied row, an image's row; `text`: either of the first two."""
        return [
            place
            for place, position in enumerate(self.positions)
            if (position.image is not None) == (kind == "image")
            and (kind in ("text", "image") or position.is_supplied == (kind == "supplied"))
        ]


def draw_pieces(
    draw: random.Random,
    length: int,
    num_images: int = 0,
    supplied: float = 0.5,
    dtype: Dtype = "float32",
) -> Pieces:
    """`length` text positions, of which about `supplied` hold a row, and images of 2x3 pixels among them."""
    positions = [
        Position(draw.randrange(3, 90), _row(draw, dtype), draw.random() < supplied) for _ in range(length)
    ]
    cuts = sorted(draw.randrange(length + 1) for _ in range(num_images))
    for index, cut in reversed(list(enumerate(cuts))):
        rows = draw.randrange(1, 6)
        positions[cut:cut] = [Position(99, _row(draw, dtype), False, index) for _ in range(rows)]
    images = tuple(Image(draw.randbytes(18), (2, 3, 3)) for _ in range(num_images))
    return Pieces(tuple(positions), images, dtype, has_rows=supplied > 0)


def _row(draw: random.Random, dtype: Dtype) -> bytes:
    return draw.randbytes(HIDDEN_SIZE * ITEM_BYTES[dtype])
