"""What is asked for before a single id is drawn: the nouns of a demand, exact shares."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, NamedTuple

from runner.config import RunnerConfig
from runner.models import ModelSpec
from suite.embeds_file import FileRows
from suite.traffic import Traffic

EmbedsKind = Literal["pure", "spliced"]


class SharedPrefix(NamedTuple):
    """How a request begins: with the first `num_tokens` of the `group_tokens` text ids of its group.

    `has_shared_images`: its images are its group's too, and stand right behind that text.
    """

    group: int
    group_tokens: int
    num_tokens: int
    has_shared_images: bool = False


class TextBlocks(NamedTuple):
    """A text as blocks, block i up to `ends[i]`: the first tokens of the `longest` that its id stands for."""

    ids: tuple[int, ...]
    ends: tuple[int, ...]
    longest: int

    def spans(self) -> Iterator[tuple[int, int, int]]:
        """Each block's id, first position and end; one that scaling or truncation left empty has none."""
        first = 0
        for block_id, end in zip(self.ids, self.ends, strict=True):
            if end > first:
                yield block_id, first, end
            first = end


@dataclass(frozen=True, slots=True)
class Need:
    """One request to come: `text_tokens` text ids, images, and how many tokens to generate.

    `embeds`: its prompt comes as embeddings, all of it or some positions; `rows`: those of a file, which
    are the whole prompt. `prefix`: the part of its text that it shares with others; `blocks`: all of its
    text, as a trace recorded it. `num_supplied`: how many of its text positions are supplied, where that is
    not drawn. `ask`: before which step of a list it comes, whatever the time.
    """

    arrival_s: float
    text_tokens: int
    num_images: int
    output_tokens: int
    embeds: EmbedsKind | None = None
    rows: FileRows | None = None
    prefix: SharedPrefix | None = None
    blocks: TextBlocks | None = None
    num_supplied: int | None = None
    ask: int | None = None


@dataclass(frozen=True, slots=True)
class ListedStep:
    """What every arm must compute in one step of a list. Image rows are those of encoded images.

    `num_supplied_rows` is of arms with prompt_embeds; None where it is not known. `is_lead_in`: the step only
    brings rows as far as decoding, and nothing is said of it.
    """

    num_rows: int
    num_decode_rows: int
    num_prefill_tokens: int
    num_image_rows: int
    num_images_encoded: int
    num_supplied_rows: int | None
    is_lead_in: bool = False

    @property
    def kind(self) -> str:
        if self.num_decode_rows == self.num_rows:
            return "decode"
        return "mixed" if self.num_decode_rows else "prefill"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where recorded steps come from: the traffic and seed that their requests were drawn with."""

    run_id: str
    traffic: Traffic
    seed: int
    workload_hash: str


@dataclass(frozen=True, slots=True)
class Demand:
    """All requests in order of arrival; `notes` say what was scaled, cut or dropped, for the report.

    `steps`: the list they are planned to make, where the traffic is one; `origin` where it was recorded.
    """

    needs: tuple[Need, ...]
    notes: tuple[str, ...]
    steps: tuple[ListedStep, ...] = ()
    origin: Origin | None = None


def image_positions(model: ModelSpec) -> int:
    """Prompt positions one image takes: its rows and the ids around them; 0 on a text model."""
    return len(model.vision.placeholder_ids()) if model.vision is not None else 0


def exact_share(count: int, ratio: float) -> int:
    """`ratio` of `count`, half rounded up. Exact: the ratio is taken as the decimal it is written."""
    return math.floor(count * Fraction(repr(ratio)) + Fraction(1, 2))


def scaled(count: int, scale: float) -> int:
    """`count * scale` rounded up, at least 1. Exact, so that 100 * 0.07 is 7 and not 8."""
    return max(1, math.ceil(count * Fraction(repr(scale))))


def room(runner: RunnerConfig) -> tuple[int, str]:
    """Positions one request may take, and the key to raise where that is too few."""
    capacity = runner.num_blocks * runner.block_size
    if capacity < runner.max_model_len:
        return capacity, f"the cache of runner.num_blocks x runner.block_size holds {capacity}"
    return runner.max_model_len, f"runner.max_model_len is {runner.max_model_len}"
