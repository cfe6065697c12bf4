"""The nouns that travel between the layers: requests in, plans and results of steps, facts of a device.

Standard library only. Arrays are bytes with a shape here, so that nothing above the inputs layer needs
numpy and nothing above the device half needs torch.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Literal, NamedTuple

FloatType = Literal["float32", "bfloat16", "float16"]
"""What a model may hold and compute in, and what supplied rows may come in."""

ITEM_BYTES: Mapping[str, int] = MappingProxyType({"float32": 4, "bfloat16": 2, "float16": 2})

MAX_LOGPROBS = 20
MAX_STOP_TOKENS = 16
MAX_BAD_WORDS = 16
MAX_BAD_WORD_LENGTH = 8


class RunnerError(Exception):
    """An error a user can cause; its text says what was wrong and how to mend it."""


def first_line(error: Exception) -> str:
    """What an error of a library says first, or what it is called where it says nothing."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def host_type(dtype: str) -> str:
    """numpy's type for values of a type: those of 16 bits are held as their bits, as it has no bfloat16."""
    return "uint16" if ITEM_BYTES.get(dtype) == 2 else dtype


class RequestError(RunnerError):
    """One request cannot be served; the others are not disturbed."""


class DeviceError(RunnerError):
    """The device half failed; every later wait on that device raises it again.

    `command` is the command that failed, as text; `traceback_text` is the device's own traceback.
    """

    def __init__(
        self, message: str, step_id: int | None = None, command: str = "", traceback_text: str = ""
    ) -> None:
        super().__init__(message)
        self.step_id = step_id
        self.command = command
        self.traceback_text = traceback_text


class FinishReason(Enum):
    MAX_TOKENS = "max_tokens"
    EOS = "eos"
    STOP = "stop"
    MODEL_LENGTH = "model_length"
    ERROR = "error"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a request's tokens are chosen, in vLLM's words and with its meanings.

    `temperature` 0 is greedy. `top_k` 0, `top_p` 1 and `min_p` 0 keep every token. Penalties: repetition
    over prompt and output, presence and frequency over output only. `bad_words` are token id sequences that
    may not be completed. `logprobs`: how many of the most likely tokens are reported beside the sampled one
    (0: that one only, None: nothing). EOS (unless `ignore_eos`) or one of `stop_token_ids` ends the request,
    none of them before `min_tokens`. Equal `seed`s give equal noise at equal positions.
    """

    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    bad_words: tuple[tuple[int, ...], ...] = ()
    logprobs: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, is_fine, rule in self._rules():
            if not is_fine:
                raise RequestError(f"{name} is {getattr(self, name)!r}; it must be {rule}")

    def _rules(self) -> tuple[tuple[str, bool, str], ...]:
        """(field, whether its value will do, what it must be). A comparison with NaN is never true."""
        words = self.bad_words
        return (
            ("max_tokens", self.max_tokens >= 1, "at least 1"),
            ("temperature", 0 <= self.temperature < math.inf, "0 (greedy) or above, and finite"),
            ("top_k", self.top_k >= 0, "at least 1, or 0 for all tokens"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("min_p", 0 <= self.min_p <= 1, "from 0 to 1"),
            ("repetition_penalty", 0 < self.repetition_penalty < math.inf, "above 0 and finite"),
            ("presence_penalty", -2 <= self.presence_penalty <= 2, "from -2 to 2"),
            ("frequency_penalty", -2 <= self.frequency_penalty <= 2, "from -2 to 2"),
            ("bad_words", len(words) <= MAX_BAD_WORDS, f"at most {MAX_BAD_WORDS} sequences"),
            (
                "bad_words",
                all(1 <= len(word) <= MAX_BAD_WORD_LENGTH for word in words),
                f"sequences of 1 to {MAX_BAD_WORD_LENGTH} token ids",
            ),
            (
                "logprobs",
                self.logprobs is None or 0 <= self.logprobs <= MAX_LOGPROBS,
                f"from 0 to {MAX_LOGPROBS}, or none",
            ),
            (
                "stop_token_ids",
                len(self.stop_token_ids) <= MAX_STOP_TOKENS,
                f"at most {MAX_STOP_TOKENS} token ids",
            ),
            ("min_tokens", 0 <= self.min_tokens <= self.max_tokens, "from 0 to max_tokens"),
            ("seed", 0 <= self.seed < 2**63, "from 0 to 2**63 - 1"),
        )

    @property
    def is_plain(self) -> bool:
        """Whether its tokens are the greedy ones, and nothing else is asked of the sampler."""
        return self == SamplingParams(
            self.max_tokens, self.ignore_eos, stop_token_ids=self.stop_token_ids, seed=self.seed
        )


@dataclass(frozen=True, slots=True)
class Image:
    """One image: `data` holds uint8 pixels, row-major, of `shape` (height, width, 3)."""

    data: bytes
    shape: tuple[int, int, int]

    def __post_init__(self) -> None:
        height, width, channels = self.shape
        if channels != 3 or len(self.data) != height * width * channels:
            raise RequestError(
                f"an image of shape {self.shape} needs {height * width * 3} bytes in 3 channels, "
                f"got {len(self.data)} bytes"
            )

    @property
    def key(self) -> str:
        """Content key. The shape and dtype are part of it: 30x150 and 150x30 share their bytes."""
        digest = hashlib.sha256(f"uint8:{self.shape}:".encode())
        digest.update(self.data)
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class SuppliedRows:
    """Embeddings given with a prompt, scaled as the model's own lookup scales them.

    `data` holds [num_rows, hidden_size] values of `dtype`, row-major, native byte order. `mask` has a byte
    a row, 1 where the row is supplied and 0 where the prompt's token id counts; None: all rows are supplied.
    """

    data: bytes = field(repr=False)
    num_rows: int
    hidden_size: int
    dtype: FloatType = "float32"
    mask: bytes | None = None

    def __post_init__(self) -> None:
        expected = self.num_rows * self.hidden_size * ITEM_BYTES[self.dtype]
        if self.num_rows < 1 or len(self.data) != expected:
            raise RequestError(
                f"supplied rows ({self.num_rows}, {self.hidden_size}) in {self.dtype} take {expected} "
                f"bytes and at least one row, got {len(self.data)} bytes"
            )
        if self.mask is not None and (len(self.mask) != self.num_rows or set(self.mask) - {0, 1}):
            raise RequestError(
                f"the mask of {self.num_rows} supplied rows must have as many bytes, each 0 or 1, "
                f"got {len(self.mask)} bytes"
            )

    def is_supplied(self, position: int) -> bool:
        return position < self.num_rows and (self.mask is None or self.mask[position] == 1)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as token ids, as `pure` embeddings (no ids), or `spliced` (ids, embeddings and a mask).

    The model's image token stands at every position that an image's rows will fill.
    """

    token_ids: tuple[int, ...]
    images: tuple[Image, ...] = ()
    embeds: SuppliedRows | None = None

    def __len__(self) -> int:
        return len(self.token_ids) if self.embeds is None else self.embeds.num_rows

    @property
    def kind(self) -> Literal["ids", "pure", "spliced"]:
        if self.embeds is None:
            return "ids"
        return "spliced" if self.token_ids else "pure"


@dataclass(frozen=True, slots=True)
class Request:
    request_id: str
    prompt: Prompt
    sampling: SamplingParams


@dataclass(frozen=True, slots=True)
class ImageSpan:
    """Where one image's rows lie: prompt positions [first, first + count).

    `is_whole`: they attend to one another in both directions, so one step must compute all of them.
    """

    key: str
    index: int
    first: int
    count: int
    is_whole: bool = False

    @property
    def end(self) -> int:
        return self.first + self.count


class TokenLogprobs(NamedTuple):
    """Log-probabilities at one output position, from the model's own logits, before any processing.

    `rank` is one more than there are tokens likelier than the sampled one; `top` holds the most likely
    (token id, log-probability), best first.
    """

    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


class RequestStatus(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class RequestState:
    """The one mutable noun: a request on its way. The scheduler writes it, others read it.

    `num_computed` counts positions whose keys and values are (or, once planned, will be) in the cache.
    `num_lost` of them a preemption threw away, to be computed again on resumption (`num_recomputed`);
    `num_cached` the prefix cache gave at admission. `num_in_flight` tokens are sampled on the device and not
    yet known here (drafts counted as if accepted), by `num_steps_in_flight` steps; `num_wasted` were computed
    for nothing, because the request had ended. Of `num_drafted` draft tokens `num_accepted` were right;
    `draft_ids` are proposed for the next step, where the host knows them. `resident_first` is its first row
    in the arena; `logprobs` has an entry for each output token, if they were asked for. `note`: what was done
    to its prompt when it was admitted.
    """

    request: Request
    spans: tuple[ImageSpan, ...]
    status: RequestStatus = RequestStatus.WAITING
    output_ids: list[int] = field(default_factory=list)
    block_ids: list[int] = field(default_factory=list)
    slot: int | None = None
    num_computed: int = 0
    num_in_flight: int = 0
    num_preemptions: int = 0
    num_lost: int = 0
    num_recomputed: int = 0
    num_wasted: int = 0
    num_cached: int = 0
    num_steps_in_flight: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    draft_ids: tuple[int, ...] = ()
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    resident_first: int | None = None
    finish_reason: FinishReason | None = None
    error: str | None = None
    note: str | None = None
    num_prompt: int = field(init=False)  # kept, like its id: read several times a step for every row
    request_id: str = field(init=False)

    def __post_init__(self) -> None:
        self.num_prompt = len(self.request.prompt)
        self.request_id = self.request.request_id

    @property
    def num_tokens(self) -> int:
        """Tokens whose value is known to the host."""
        return self.num_prompt + len(self.output_ids)

    @property
    def is_finished(self) -> bool:
        return self.status is RequestStatus.FINISHED

    def whole_end(self, end: int) -> int:
        """The last position up to `end` at which a step may end: inside no image to be computed whole."""
        cut = (span.first for span in self.spans if span.is_whole and span.first < end < span.end)
        return next(cut, end)


class ScheduledRow(NamedTuple):
    """One request's share of a step: positions [first, first + num_tokens).

    `samples` is true when the step reaches the request's last token, so that its sampled token counts;
    `is_decode` when it computes one token that the request itself sampled before, and with it, if any,
    its last `num_drafts` tokens, which are guesses.
    """

    request_id: str
    slot: int
    first: int
    num_tokens: int
    samples: bool
    is_decode: bool = False
    num_drafts: int = 0


class SlotItem(NamedTuple):
    """A request, new or resumed, takes the stable slot in which the device keeps what it must know of it."""

    request_id: str
    slot: int


class EncodeItem(NamedTuple):
    """Encode image number `image` of a request into encoder slot `slot`."""

    request_id: str
    image: int
    slot: int


class ResidentItem(NamedTuple):
    """Bring a request's supplied rows to [first, first + num_rows) of the device's arena."""

    request_id: str
    first: int
    num_rows: int


class SpliceItem(NamedTuple):
    """Rows [item_first, item_first + num_rows) of an encoder slot, for a row's tokens at row_first."""

    request_id: str
    slot: int
    item_first: int
    row_first: int
    num_rows: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step computes, as the scheduler decided it; requests not among `rows` rest."""

    step_id: int
    rows: tuple[ScheduledRow, ...]
    encodes: tuple[EncodeItem, ...] = ()
    splices: tuple[SpliceItem, ...] = ()
    residents: tuple[ResidentItem, ...] = ()
    admitted: tuple[SlotItem, ...] = ()
    num_waiting: int = 0
    num_free_blocks: int = 0
    num_preempted: int = 0

    @property
    def num_tokens(self) -> int:
        return sum(row.num_tokens for row in self.rows)


@dataclass(frozen=True, slots=True)
class StepResult:
    """The tokens a step sampled, by request, for the rows that reached their last token.

    Several where drafts were accepted. `drafts` are the device's proposals for the next step, where the host
    asked to know them.
    """

    step_id: int
    sampled: Mapping[str, tuple[int, ...]]
    logprobs: Mapping[str, tuple[TokenLogprobs, ...]] = field(default_factory=dict)
    drafts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


class TokenOutput(NamedTuple):
    """One token that counts, as the scheduler accepted it."""

    request_id: str
    token_id: int
    is_last: bool


def usable_cores() -> int:
    """Cores this process may run on; all of the machine's where the system does not tell."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


AttentionName = Literal["sdpa", "varlen", "triton"]


@dataclass(frozen=True, slots=True)
class Compiled:
    """What torch.compile made of the forward while the device was opened, and how long that took."""

    num_graphs: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """Facts of the device a run used, for its record."""

    kind: str
    name: str
    num_threads: int
    torch_version: str
    attention: str = ""  # how attention is computed, and the library where it is not torch's own
    graph_sizes: tuple[int, ...] = ()  # of the captured decode steps, in rows
    fuses_routes: bool = False  # in those, sampled ids are routed along with the positions
    compiled: Compiled | None = None  # None: torch.compile is off
