"""BlockHashes: what the full blocks of one request hold, as hashes of content. Standard library only.

A block's keys and values follow from what the model was given at its positions and at all before them. So a
hash covers exactly that: it is chained to the hash before it, and what the model never sees has no part in
it: ids beside supplied rows, bytes of rows that are not supplied, names of requests.
"""

from __future__ import annotations

import hashlib
import re
import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from runner.core import ImageSpan, RequestState

_ROOT = b"no block before"
_SUPPLIED = re.compile(rb"\x01+")


class _Rows(NamedTuple):
    """Prompt positions [first, end) that hold no token id; `image` fills them, or else supplied rows."""

    first: int
    end: int
    image: ImageSpan | None


class BlockHashes:
    """The hashes of a request's blocks of `block_size` positions, in order; `extend` adds to them.

    A block is a sequence of runs: token ids, rows of one image, or supplied rows, each as long as can be.
    Every run is written with its kind and the length of each of its parts, so two different blocks never
    give the same bytes to hash. Rows are read through a view of the prompt's own bytes.
    """

    __slots__ = ("_block_size", "_data", "_row_bytes", "_rows", "hashes", "state")

    def __init__(self, state: RequestState, block_size: int) -> None:
        embeds = state.request.prompt.embeds
        self.hashes: list[bytes] = []
        self.state = state
        self._block_size = block_size
        self._rows = sorted(_rows_of(state))
        self._data = memoryview(b"" if embeds is None else embeds.data)
        self._row_bytes = 0 if embeds is None else len(embeds.data) // embeds.num_rows

    def extend(self, num_tokens: int) -> None:
        """Hash the blocks that are full with the request's first `num_tokens` tokens, all of known value."""
        assert num_tokens <= self.state.num_tokens, f"{self.state.request_id}: a token in flight has no hash"
        size = self._block_size
        for first in range(len(self.hashes) * size, num_tokens - size + 1, size):
            digest = hashlib.sha256(self.hashes[-1] if self.hashes else _ROOT)
            for part in self._parts(first, first + size):
                digest.update(struct.pack("<Q", len(part)))
                digest.update(part)
            self.hashes.append(digest.digest())

    def _parts(self, first: int, end: int) -> Iterator[bytes | memoryview]:
        """All that positions [first, end) hold, run by run; each run has a fixed number of parts."""
        index = max(0, bisect_right(self._rows, first, key=lambda rows: rows.first) - 1)
        for rows in self._rows[index:]:
            if rows.first >= end:
                break
            if rows.end <= first:
                continue
            if rows.first > first:
                yield from self._ids(first, rows.first)
                first = rows.first
            stop = min(rows.end, end)
            yield from self._image(rows.image, first, stop) if rows.image else self._supplied(first, stop)
            first = stop
        if first < end:
            yield from self._ids(first, end)

    def _ids(self, first: int, end: int) -> Iterator[bytes]:
        """Prompt and output alike: one request's output is the next one's prompt."""
        prompt, num_prompt = self.state.request.prompt.token_ids, self.state.num_prompt
        output = self.state.output_ids[max(0, first - num_prompt) : max(0, end - num_prompt)]
        yield b"ids"
        yield array("q", (*prompt[first:end], *output)).tobytes()

    def _image(self, span: ImageSpan, first: int, end: int) -> Iterator[bytes]:
        yield b"image"
        yield span.key.encode()
        yield struct.pack("<QQ", first - span.first, end - first)

    def _supplied(self, first: int, end: int) -> Iterator[bytes | memoryview]:
        embeds = self.state.request.prompt.embeds
        assert embeds is not None
        yield b"supplied"
        yield embeds.dtype.encode()
        yield struct.pack("<QQ", embeds.hidden_size, end - first)
        yield self._data[first * self._row_bytes : end * self._row_bytes]


def _rows_of(state: RequestState) -> Iterator[_Rows]:
    """Where the prompt's images and supplied rows lie; they never overlap (runner/admission.py)."""
    yield from (_Rows(span.first, span.end, span) for span in state.spans)
    embeds = state.request.prompt.embeds
    if embeds is None:
        return
    mask = embeds.mask if embeds.mask is not None else b"\x01" * embeds.num_rows
    yield from (_Rows(*run.span(), None) for run in _SUPPLIED.finditer(mask))
