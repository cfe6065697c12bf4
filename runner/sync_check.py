"""The silent synchronisation check: what it looks for, what it found, and where that is allowed. Stdlib only.

A step is meant to be queued without ever waiting for the device. A copy between the sides waits in silence
where its host side is not pinned, where a side of it is strided, or where nobody asked it not to block; a
value taken from a device's tensor waits for all that is queued before it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

SyncCheck = Literal["off", "warn", "error"]
"""Not looked for; collected, for a run's warnings; the first is a DeviceError."""

ANY_COMMAND = "*"

ALLOWED: dict[tuple[str, str], str] = {
    ("forward", "runner/kernels/sdpa_attention.py:_Rows.read"): (
        "where the rows lie, which the reference attention loops over"
    ),
    ("forward", "runner/kernels/sdpa_attention.py:_decode_group"): (
        "the same attention makes index tensors of those lists, and asks for the width of a group of decodes"
    ),
    ("forward", "runner/kernels/kept_contexts.py:KeptContexts.rows"): (
        "which blocks of a decode's context are out of date in the copy, on a CPU alone"
    ),
    (
        "forward",
        "runner/kernels/kept_contexts.py:KeptContexts.order",
    ): "which row begins with which block, there",
    ("encode", "transformers"): "the vision tower of transformers reads its grid and makes tensors of it",
    ("encode", "runner/kernels/encoder.py:normalise_pixels"): (
        "mean and deviation of the channels, copied for every image; the vision tower behind it waits anyway"
    ),
    ("encode", "runner/kernels/model.py:DeviceModel.encode"): "the vision tower's grid, for the same reason",
    (ANY_COMMAND, "runner/kernels/program.py:_check_range"): "range checks of a CPU device; a GPU skips them",
}
"""(command's operation, place) -> why a wait there is known and left. A place is a file of ours and the
function in it, or `transformers`."""


class SyncFinding(NamedTuple):
    """What waits in silence: `num_times` since the device was reset, in `first_step_id` first.

    `command` is its span; `place` the nearest function of ours, as in ALLOWED.
    """

    command: str
    place: str
    what: str
    first_step_id: int
    num_times: int

    @property
    def text(self) -> str:
        times = "once" if self.num_times == 1 else f"{self.num_times} times"
        return (
            f"{self.command} {self.what}, in {self.place}: on a GPU the host waits there for the device "
            f"({times}, first in step {self.first_step_id})"
        )


def is_allowed(operation: str, place: str) -> bool:
    return (operation, place) in ALLOWED or (ANY_COMMAND, place) in ALLOWED
