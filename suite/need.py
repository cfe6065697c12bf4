"""What is asked for before a single id is drawn: the nouns of a demand, seeds, exact shares."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np

from runner.models import ModelSpec
from suite.embeds_file import FileRows

EmbedsKind = Literal["pure", "spliced"]


@dataclass(frozen=True, slots=True)
class Need:
    """One request to come: `text_tokens` text ids, images, and how many tokens to generate.

    `embeds`: its prompt comes as embeddings, all of it or some positions; `rows`: those of a file, which
    are the whole prompt.
    """

    arrival_s: float
    text_tokens: int
    num_images: int
    output_tokens: int
    embeds: EmbedsKind | None = None
    rows: FileRows | None = None


@dataclass(frozen=True, slots=True)
class Demand:
    """All requests in order of arrival; `notes` say what was scaled, cut or dropped, for the report."""

    needs: tuple[Need, ...]
    notes: tuple[str, ...]


def seeded(seed: int, purpose: str, index: int = 0) -> np.random.Generator:
    """A generator of its own for each purpose and index, the same in every process."""
    digest = hashlib.sha256(f"stepcost:{seed}:{purpose}:{index}".encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))


def image_positions(model: ModelSpec) -> int:
    """Prompt positions one image takes: its rows and the ids around them; 0 on a text model."""
    return len(model.vision.placeholder_ids()) if model.vision is not None else 0


def exact_share(count: int, ratio: float) -> int:
    """`ratio` of `count`, half rounded up. Exact: the ratio is taken as the decimal it is written."""
    return math.floor(count * Fraction(repr(ratio)) + Fraction(1, 2))


def scaled(count: int, scale: float) -> int:
    """`count * scale` rounded up, at least 1. Exact, so that 100 * 0.07 is 7 and not 8."""
    return max(1, math.ceil(count * Fraction(repr(scale))))
