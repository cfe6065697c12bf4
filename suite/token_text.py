"""The text of token ids, by the tokenizer that lies in a checkpoint's folder. Knows no request and no run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runner.core import first_line

_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")

Pieces = tuple[str, ...]


class TokenTexts:
    """Loads the tokenizer when it is first asked, which takes seconds; `note` says why it cannot be read."""

    def __init__(self, folder: Path | None) -> None:
        """None: a model without a folder, and so without a tokenizer."""
        self.note: str | None = None
        self._folder = folder
        self._tokenizer: Any = None
        self._is_loaded = False

    def of(self, expected: Sequence[int], produced: Sequence[int]) -> tuple[Pieces, Pieces] | None:
        """The pieces of text of either, each after the produced ids before it; None without a tokenizer."""
        if self._load() is None:
            return None
        return (
            tuple(self._piece(produced[:place], token) for place, token in enumerate(expected)),
            tuple(self._piece(produced[:place], token) for place, token in enumerate(produced)),
        )

    def _piece(self, before: Sequence[int], token: int) -> str:
        """What a token adds to the text before it: many a tokenizer drops the space a text begins with."""
        head, whole = self._decode(before), self._decode([*before, token])
        return whole.removeprefix(head) if whole.startswith(head) else self._decode([token])

    def _decode(self, ids: Sequence[int]) -> str:
        """Ids beyond the vocabulary, to which a model's may be padded, have no text."""
        known = [token for token in ids if 0 <= token < len(self._tokenizer)]
        return str(self._tokenizer.decode(known, clean_up_tokenization_spaces=False))

    def _load(self) -> Any:
        if self._is_loaded or self._folder is None:
            return self._tokenizer
        self._is_loaded = True
        if any((self._folder / name).is_file() for name in _FILES):
            from transformers import AutoTokenizer

            try:
                self._tokenizer = AutoTokenizer.from_pretrained(self._folder, local_files_only=True)
            except Exception as error:  # its many kinds raise what they meet
                told = f"the tokenizer in {self._folder} cannot be read: {first_line(error)}"
                self.note = f"{told}; tokens have no text"
        return self._tokenizer
