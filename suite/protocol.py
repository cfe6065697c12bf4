"""What the suite and its worker tell each other: one JSON object a line over two pipes.

The worker is started from the same code, so a message needs no version.
"""

from __future__ import annotations

import base64
import pickle
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from runner.repeats import Turn
from runner.spans import Level
from runner.sync_check import SyncCheck
from suite.environment import DeviceFacts
from suite.record import Failure, RunRecord

if TYPE_CHECKING:
    from suite.scenario import Case


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    def line(self) -> bytes:
        return self.model_dump_json().encode("utf-8", "backslashreplace") + b"\n"


# From the suite to the worker


class OpenCase(_Message):
    """Build the case's workload and open the device. Answered by Opened or Refused.

    `folder` takes the steps and requests of the runs; without one nothing is stored. A run that is
    not timed gets all its requests at once.
    """

    type: Literal["open"] = "open"
    case: str  # pack_case
    seed: int
    device: str
    workload_hash: str
    folder: str | None
    is_timed: bool


class RunArm(_Message):
    """Run one arm once. Answered by any number of Progress, then Finished or StorageFailed.

    With a `rotation` it serves the token case (suite/token_case.py), so many requests of it moved to the end.
    `is_traced`: torch's profiler records it, where it has an instrument and a folder.
    `has_window`: the range `stepcost window` is open while its batch is steady.
    `repeats`: span -> how often its commands are run (runner.commands.is_repeatable), at most where `turns`
    say in which step (runner/repeats.py). All runs of an arm that have any, be it once, take the same steps:
    the later ones replay the first, whose tokens are checked.
    """

    type: Literal["run"] = "run"
    run_id: str
    arm: str
    round: int
    is_warmup: bool
    rotation: int | None = None
    instrument: Level = "off"
    sync_check: SyncCheck = "off"
    is_traced: bool = False
    has_window: bool = False
    repeats: dict[str, int] = {}
    turns: tuple[Turn, ...] = ()
    is_aa: bool = False


class Close(_Message):
    """Close the device and exit."""

    type: Literal["close"] = "close"


# From the worker to the suite


class Opened(_Message):
    type: Literal["opened"] = "opened"
    device: DeviceFacts


class Refused(_Message):
    """The case cannot be run at all; the worker exits."""

    type: Literal["refused"] = "refused"
    failure: Failure


class Progress(_Message):
    """How far the run in flight is. In phase "check" the timed part is over."""

    type: Literal["progress"] = "progress"
    phase: Literal["run", "check"]
    num_steps: int = 0
    num_sent: int = 0
    num_requests: int = 0


class Finished(_Message):
    """A run's record. After a failure the device's state is unknown, so the worker leaves."""

    type: Literal["finished"] = "finished"
    record: RunRecord
    is_leaving: bool = False


class StorageFailed(_Message):
    """The run folder cannot be written; the experiment cannot go on."""

    type: Literal["storage-failed"] = "storage-failed"
    message: str


Command = Annotated[OpenCase | RunArm | Close, Field(discriminator="type")]
Reply = Annotated[Opened | Refused | Progress | Finished | StorageFailed, Field(discriminator="type")]

_COMMANDS: TypeAdapter[OpenCase | RunArm | Close] = TypeAdapter(Command)
_REPLIES: TypeAdapter[Opened | Refused | Progress | Finished | StorageFailed] = TypeAdapter(Reply)


def read_command(line: bytes) -> OpenCase | RunArm | Close:
    return _COMMANDS.validate_json(line)


def read_reply(line: bytes) -> Opened | Refused | Progress | Finished | StorageFailed:
    return _REPLIES.validate_json(line)


def pack_case(case: Case) -> str:
    """A case exactly as it is: both ends are one program, and its file may change meanwhile."""
    return base64.b64encode(pickle.dumps(case)).decode("ascii")


def unpack_case(text: str) -> Case:
    case: Case = pickle.loads(base64.b64decode(text))
    return case
