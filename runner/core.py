"""The nouns that travel between the layers: requests in, plans and results of steps, facts of a device.

Standard library only. Arrays are bytes with a shape here, so that nothing above the inputs layer needs
numpy and nothing above the device half needs torch.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class RunnerError(Exception):
    """An error a user can cause; its text says what was wrong and how to mend it."""


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
    MODEL_LENGTH = "model_length"
    ERROR = "error"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a request's tokens are chosen. Greedy; it leaves at EOS unless `ignore_eos`."""

    max_tokens: int
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise RequestError(f"max_tokens is {self.max_tokens}; it must be at least 1")


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
class Prompt:
    """Token ids, with the model's image token at every position that an image's rows will fill."""

    token_ids: tuple[int, ...]
    images: tuple[Image, ...] = ()

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Request:
    request_id: str
    prompt: Prompt
    sampling: SamplingParams


@dataclass(frozen=True, slots=True)
class ImageSpan:
    """Where one image's rows lie: prompt positions [first, first + count)."""

    key: str
    index: int
    first: int
    count: int

    @property
    def end(self) -> int:
        return self.first + self.count


class RequestStatus(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


@dataclass(slots=True)
class RequestState:
    """The one mutable noun: a request on its way. The scheduler writes it, others read it.

    `num_computed` counts positions whose keys and values are (or, once planned, will be) in the cache.
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
    num_recomputed: int = 0
    finish_reason: FinishReason | None = None
    error: str | None = None

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def num_prompt(self) -> int:
        return len(self.request.prompt.token_ids)

    @property
    def num_tokens(self) -> int:
        """Tokens whose value is known to the host."""
        return self.num_prompt + len(self.output_ids)

    @property
    def is_finished(self) -> bool:
        return self.status is RequestStatus.FINISHED

    def token_at(self, position: int) -> int:
        if position < self.num_prompt:
            return self.request.prompt.token_ids[position]
        return self.output_ids[position - self.num_prompt]


class ScheduledRow(NamedTuple):
    """One request's share of a step: positions [first, first + num_tokens).

    `samples` is true when the step reaches the request's last token, so that its sampled token counts.
    """

    request_id: str
    slot: int
    first: int
    num_tokens: int
    samples: bool


class EncodeItem(NamedTuple):
    """Encode image number `image` of a request into encoder slot `slot`."""

    request_id: str
    image: int
    slot: int


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
    num_waiting: int = 0
    num_free_blocks: int = 0
    num_preempted: int = 0

    @property
    def num_tokens(self) -> int:
        return sum(row.num_tokens for row in self.rows)


@dataclass(frozen=True, slots=True)
class StepResult:
    """The tokens a step sampled, by request, for the rows that reached their last token."""

    step_id: int
    sampled: dict[str, int]


class TokenOutput(NamedTuple):
    """One token that counts, as the scheduler accepted it."""

    request_id: str
    token_id: int
    is_last: bool


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """Facts of the device a run used, for its record."""

    kind: str
    name: str
    num_threads: int
    torch_version: str
