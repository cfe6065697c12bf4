"""PrefixCache: which blocks already hold the beginning of a request. Standard library only.

Knows hashes of blocks and who has them; the blocks themselves, and which of them are forgotten for others,
are BlockPool's. A fresh scheduler has a fresh cache: nothing is reused across runs.
"""

from __future__ import annotations

from collections.abc import Iterable

from runner.block_hashes import BlockHashes
from runner.blocks import BlockPool
from runner.core import RequestState


class PrefixCache:
    """Serves no block and hashes nothing unless `is_on`."""

    def __init__(self, blocks: BlockPool, block_size: int, is_on: bool) -> None:
        self._blocks = blocks
        self._block_size = block_size
        self._is_on = is_on
        self._unhashed: list[RequestState] = []
        self._hashes: dict[str, BlockHashes] = {}
        self._num_registered: dict[str, int] = {}  # of its block table, from the first

    def expect(self, state: RequestState) -> None:
        """A request has come; `hash_expected` will hash its prompt."""
        if self._is_on:
            self._unhashed.append(state)

    def hash_expected(self) -> None:
        """Hash the prompts of all requests that came since the last call."""
        for state in self._unhashed:
            if not state.is_finished:
                self._hashes_of(state, state.num_prompt)
        self._unhashed.clear()

    def find(self, state: RequestState) -> list[int]:
        """The longest run of blocks that holds the request's beginning. Takes none of them.

        Never all of its tokens: one at least must be computed, or there would be no logits. Nor up to the
        inside of an image that one step must compute whole.
        """
        if not self._is_on:
            return []
        most = (state.num_tokens - 1) // self._block_size
        found = []
        for key in self._hashes_of(state, state.num_tokens)[:most]:
            block_id = self._blocks.find(key)
            if block_id is None:
                break
            found.append(block_id)
        return found[: self._num_shared(state, len(found))]

    def _num_shared(self, state: RequestState, num_blocks: int) -> int:
        """How many of its first blocks may be another's: fewer where the last ends inside such an image."""
        end = num_blocks * self._block_size
        while (cut := state.whole_end(end)) < end:
            end = cut // self._block_size * self._block_size
        return end // self._block_size

    def take(self, state: RequestState, block_ids: list[int]) -> None:
        """Give a request without blocks the ones found for it."""
        assert not state.block_ids, f"{state.request_id} has blocks already"
        self._blocks.take(block_ids)
        state.block_ids.extend(block_ids)
        self._num_registered[state.request_id] = len(block_ids)

    def register(self, state: RequestState, num_tokens: int) -> None:
        """The request's first `num_tokens` tokens are of known value and in its blocks, or soon will be.

        "Soon": no later than the end of the first step that reads them, in which every layer writes all keys
        and values before any are read (runner/kernels/attention.py).
        """
        if not self._is_on:
            return
        done, num_full = self._num_registered.get(state.request_id, 0), num_tokens // self._block_size
        if num_full <= done:
            return
        hashes = self._hashes_of(state, num_tokens)
        for index in range(done, num_full):
            self._blocks.register(state.block_ids[index], hashes[index])
        self._num_registered[state.request_id] = num_full

    def leave(self, state: RequestState) -> None:
        """The request gives its blocks back; it may return."""
        self._num_registered.pop(state.request_id, None)

    def forget(self, state: RequestState) -> None:
        """The request has ended."""
        self._hashes.pop(state.request_id, None)

    def check(self, running: Iterable[RequestState]) -> None:
        """Assert that hashes are kept for requests of now only, and that a block has that of its content."""
        ended = [key for key, hashes in self._hashes.items() if hashes.state.is_finished]
        assert not ended, f"hashes of ended requests are kept: {ended}"
        names = set()
        for state in running:
            names.add(state.request_id)
            own = self._hashes.get(state.request_id)
            for index, block_id in enumerate(state.block_ids):
                key = self._blocks.hash_of(block_id)
                assert key is None or (own is not None and own.hashes[index] == key), (
                    f"block {block_id} of {state.request_id} has the hash of other content"
                )
        assert set(self._num_registered) <= names, "blocks are counted of a request that has none"

    def _hashes_of(self, state: RequestState, num_tokens: int) -> list[bytes]:
        own = self._hashes.get(state.request_id)
        if own is None:
            own = self._hashes[state.request_id] = BlockHashes(state, self._block_size)
        own.extend(num_tokens)
        return own.hashes
