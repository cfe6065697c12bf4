"""The worker seen from the suite: started, spoken to, never waited for without a limit, ended whole.

It runs in a session of its own, so that Ctrl-C reaches the suite alone and no child of it is left over.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import psutil

from suite.child_environment import child_environment
from suite.memory_errors import OUT_OF_MEMORY, num_killed_for_memory, tells_out_of_memory
from suite.protocol import (
    Close,
    Finished,
    OpenCase,
    Opened,
    Progress,
    Refused,
    RunArm,
    StorageFailed,
    read_reply,
)
from suite.record import Failure

# -P: a file of the user's named like one of our packages must not be imported in its place.
WORKER_COMMAND = (sys.executable, "-P", "-c", "from suite.worker import main; main()")

_MAX_TAIL_BYTES = 4000
_POLL_S = 0.1
_CLOSE_TIMEOUT_S = 15.0
_GROUP_GRACE_S = 5.0


class WorkerGone(Exception):
    """The worker ended, or had to be ended; `failure` says how."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Interrupted(Exception):
    """The user asked to stop while the suite was waiting for the worker."""


class Deadline:
    """Until when to wait, and for what: a failure's message says both."""

    def __init__(self, limit_s: float, doing: str) -> None:
        self.limit_s = limit_s
        self.doing = doing
        self._end = time.monotonic() + limit_s

    @property
    def remaining_s(self) -> float:
        return max(0.0, self._end - time.monotonic())


class WorkerProcess:
    """One worker. Leaving the context ends it and everything it started."""

    def __init__(self, command: Sequence[str], is_stopping: Callable[[], bool]) -> None:
        self._is_stopping = is_stopping
        self._num_killed_before = num_killed_for_memory()
        self._stderr = _unnamed_file()
        self._buffer = b""
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=child_environment(),
            start_new_session=True,
            bufsize=0,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._commands = self._process.stdin
        self._replies = self._process.stdout
        os.set_blocking(self._replies.fileno(), False)

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self.kill()
        self.end()

    def send(self, command: OpenCase | RunArm | Close) -> None:
        """WorkerGone where nobody listens any more."""
        try:
            self._write(command.line())
        except OSError:
            raise WorkerGone(self._death()) from None

    def receive(self, deadline: Deadline) -> Opened | Refused | Progress | Finished | StorageFailed:
        """The next reply. WorkerGone at its death or the deadline; Interrupted when stopping."""
        while b"\n" not in self._buffer:
            if self._is_stopping():
                raise Interrupted
            if deadline.remaining_s == 0:
                raise WorkerGone(self._timeout(deadline))
            self._read(min(deadline.remaining_s, _POLL_S))
        line, _, self._buffer = self._buffer.partition(b"\n")
        return read_reply(line)

    def end(self) -> None:
        """End the worker: politely if it listens, by force otherwise, its children included."""
        if self._process.poll() is None:
            self._close_politely()
        self.kill()
        for stream in (self._commands, self._replies, self._stderr):
            with contextlib.suppress(OSError):
                stream.close()

    def kill(self) -> None:
        """End it at once. Its children see that and go; any left after a grace are ended."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        _end_group(self._process.pid)

    def _close_politely(self) -> None:
        try:
            self._write(Close().line())
            self._commands.close()
            self._process.wait(_CLOSE_TIMEOUT_S)
        except (OSError, subprocess.TimeoutExpired):
            return

    def _write(self, line: bytes) -> None:
        view = memoryview(line)
        while view:
            view = view[self._commands.write(view) :]

    def _read(self, timeout_s: float) -> None:
        """Take what there is within `timeout_s`. WorkerGone where it has ended and left no more."""
        has_ended = self._process.poll() is not None  # looked at first: what it wrote before is read below
        ready, _, _ = select.select([self._replies], [], [], 0 if has_ended else timeout_s)
        content = self._replies.read(65536) if ready else None
        if content == b"" or (has_ended and not content):
            raise WorkerGone(self._death())
        self._buffer += content or b""

    def _death(self) -> Failure:
        try:
            code = self._process.wait(_CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return Failure(
                kind="worker died",
                message="the worker closed its output and did not end",
                detail=self.stderr_tail(),
            )
        tail = self.stderr_tail()
        is_killed = code == -signal.SIGKILL and num_killed_for_memory() != self._num_killed_before
        if is_killed or tells_out_of_memory(tail):
            why = "the system ended it, for memory had run out" if is_killed else "it ran out of memory"
            return Failure(kind=OUT_OF_MEMORY, message=f"{_ending(code)}: {why}", detail=tail)
        hint = " (as the system does where memory runs out)" if code == -signal.SIGKILL else ""
        return Failure(kind="worker died", message=f"{_ending(code)}{hint}", detail=tail)

    def _timeout(self, deadline: Deadline) -> Failure:
        self.kill()
        return Failure(
            kind="timeout",
            message=f"{deadline.doing} took longer than {deadline.limit_s:g} s",
            detail=self.stderr_tail(),
        )

    def stderr_tail(self) -> str:
        """The end of what the worker, or a child of it, wrote to standard error."""
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - _MAX_TAIL_BYTES))
        return self._stderr.read().decode("utf-8", "replace").strip()


def _unnamed_file() -> BinaryIO:
    """A file that is gone with the process that opened it."""
    descriptor, name = tempfile.mkstemp()
    Path(name).unlink()
    return os.fdopen(descriptor, "w+b")


def _ending(code: int) -> str:
    if code >= 0:
        return f"the worker ended with exit code {code}"
    name = signal.Signals(-code).name if -code in signal.valid_signals() else f"signal {-code}"
    return f"the worker was ended by {name}"


def _end_group(group: int) -> None:
    """Wait for a group to empty, then end its members, the keeper of shared memory last."""
    if _wait_for_empty(group, _GROUP_GRACE_S):
        return
    for member in _members(group):
        with contextlib.suppress(psutil.Error):
            if not any("resource_tracker" in word for word in member.cmdline()):
                member.kill()
    if not _wait_for_empty(group, _GROUP_GRACE_S):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


def _wait_for_empty(group: int, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while _members(group):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _members(group: int) -> list[psutil.Process]:
    """The living processes of a group; one that has ended and awaits its parent is not."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return []
    members = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process)
    return members
