"""ProcessDevice: the device is a child process that owns device memory; the CPU default (numpy, no torch).

Host buffers are shared memory, one message a step, events are counters in shared memory. Real concurrency
and real races, without a shared interpreter lock.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import pickle
import select
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.reduction import DupFd
from types import MappingProxyType
from typing import Any, Literal, NoReturn

from runner.commands import EVENTS, Command, buffer_table
from runner.compilers import COMPILE_TIMEOUT_S
from runner.config import RunnerConfig
from runner.core import DeviceError, RunnerError
from runner.device.base import Device, DeviceReport, poison_host
from runner.device.channel import Layout, channel_layout, spin_s
from runner.device.report import ReportRing, SpanRing
from runner.device.shared import SharedArena
from runner.models import ModelSpec
from runner.spans import Level, Span, records_device
from runner.sync_check import SyncFinding

_CHILD = "runner.device.process_child"
_START_TIMEOUT_S = 300.0
# Nsight Systems sets one of these in what it runs; the ranges of a forkserver's child are lost there.
_PROFILER_VARIABLES = ("NVTX_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID")
_WAIT_TIMEOUT_S = 120.0
# A child that a profiler watches has ranges to hand over before it ends; killed, the last ones are lost.
_END_TIMEOUT_S: Mapping[str, float] = MappingProxyType({"forkserver": 2.0, "spawn": 60.0})


class ProcessDevice(Device):
    """`entry` is what the child runs: of this module, unless a test stands something else in its place."""

    def __init__(
        self, model: ModelSpec, config: RunnerConfig, entry: Callable[..., None] | None = None
    ) -> None:
        buffers = dict(buffer_table(config, model))
        layout = channel_layout(config, buffers)
        self._arena = SharedArena(layout)
        self.host = {name: self._arena.arrays[name] for name in buffers}
        self._events = self._arena.arrays["events"]
        self._events.fill(-1)
        self._submitted = self._arena.arrays["submitted"]
        self._reports = ReportRing(tuple(buffers), self._arena.arrays["reports"])
        self._spans = SpanRing(tuple(buffers), self._arena.arrays["spans"])
        self._spin_s = spin_s()
        self._failure: DeviceError | None = None
        self._is_closed = False
        self.num_blocked_waits = 0
        self._start(entry or _serve, (model, config, layout))
        try:
            limit_s = _START_TIMEOUT_S + (COMPILE_TIMEOUT_S if config.torch_compile else 0.0)
            self.info = self._expect("ready", limit_s)[0]
        except BaseException:
            self.close()
            raise

    def execute(self, step_id: int, commands: Sequence[Command]) -> None:
        self._check()
        self._send((step_id, _wires(commands)))

    def wait(self, event: str, step_id: int) -> None:
        self._check()
        index = EVENTS.index(event)
        deadline = time.perf_counter() + self._spin_s
        while time.perf_counter() < deadline:
            if self._events[index] >= step_id:
                return
        self._block(index, step_id)

    def report(self, step_id: int) -> DeviceReport:
        self._check()
        return self._reports.read(step_id)

    def spans(self, step_id: int, names: Sequence[str]) -> Sequence[Span]:
        self._check()
        return self._spans.read(step_id, names) if records_device(self.level) else ()

    def num_recompiled(self) -> int:
        self._check()
        if self.info.compiled is None:
            return 0
        (number,) = self._tell("recompiled")
        return int(number)

    def sync_findings(self) -> Sequence[SyncFinding]:
        self._check()
        if self.sync_check == "off":
            return ()
        return [SyncFinding(*found) for found in self._tell("findings")]

    def reset(self, level: Level = "off") -> None:
        self._check()
        self.level = level
        self._tell("reset", level, self.sync_check)
        self._events.fill(-1)
        poison_host(self.host)

    def start_trace(self) -> None:
        self._check()
        self._tell("start_trace")

    def write_trace(self, path: str) -> None:
        self._check()
        self._tell("write_trace", path)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._connection.close()  # the child reads this as the end
        self._wake.close()
        self._process.join(timeout=_END_TIMEOUT_S[start_method()])
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()
        self._arena.close()

    # ---- the channel

    def _start(self, entry: Callable[..., None], given: tuple[ModelSpec, RunnerConfig, Layout]) -> None:
        context: Any = multiprocessing.get_context(start_method())
        # Imports torch once, before any fork: a further device then starts in a fraction of a second.
        context.set_forkserver_preload([_CHILD])
        self._connection, child_connection = context.Pipe()
        self._wake, child_wake = context.Pipe(duplex=False)
        os.set_blocking(self._wake.fileno(), False)
        self._process = context.Process(
            target=entry,
            args=(*given, DupFd(self._arena.fd), child_connection, child_wake),
            name="stepcost-device",
            daemon=True,
        )
        self._process.start()
        child_connection.close()
        child_wake.close()
        self._poll = select.poll()
        for source in (self._connection, self._wake, self._process.sentinel):
            self._poll.register(source, select.POLLIN)

    def _send(self, message: tuple[int | None, object]) -> None:
        try:
            self._connection.send_bytes(pickle.dumps(message))
        except OSError:
            self._raise_death()
        self._submitted[0] += 1

    def _tell(self, what: str, *arguments: str) -> tuple[Any, ...]:
        """Have something done that is no step; its answer."""
        self._send((None, (what, *arguments)))
        return self._expect(what, _WAIT_TIMEOUT_S)

    def _block(self, index: int, step_id: int) -> None:
        """Sleep until the event, an error, the child's end, or the timeout."""
        self.num_blocked_waits += 1
        deadline = time.monotonic() + _WAIT_TIMEOUT_S
        while self._events[index] < step_id:
            if not self._sleep(deadline):
                self._fail(f"no {EVENTS[index]!r} event of step {step_id} in {_WAIT_TIMEOUT_S:.0f} s")
            self._raise_if_failed(index, step_id)

    def _sleep(self, deadline: float) -> bool:
        """Wait for a byte, a message or the child's end; False at the deadline."""
        if not self._poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            return False
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake.fileno(), 65536)
        return True

    def _raise_if_failed(self, index: int, step_id: int) -> None:
        has_ended = self._process.exitcode is not None
        if self._connection.poll():  # asked last: what was sent before the end is there by now
            self._expect("nothing", 0.0)
        if self._events[index] < step_id and has_ended:
            self._raise_death()

    def _expect(self, kind: str, timeout_s: float) -> tuple[Any, ...]:
        """The payload of the child's next message, which must be of this kind."""
        if not multiprocessing.connection.wait([self._connection, self._process.sentinel], timeout_s):
            self._fail(f"the device process gave no {kind!r} answer in {timeout_s:.0f} s")
        try:
            message = self._connection.recv() if self._connection.poll() else None
        except (EOFError, ConnectionResetError):
            message = None
        if message is None:
            self._raise_death()
        if message[0] == "error":
            self._failure = DeviceError(*message[1:])
            raise self._failure
        if message[0] == "refused":  # the user's mistake, in words; the child has ended all the same
            self._failure = DeviceError(message[1])
            raise RunnerError(message[1])
        assert message[0] == kind, f"expected {kind}, got {message[0]}"
        return tuple(message[1:])

    def _raise_death(self) -> NoReturn:
        self._process.join(timeout=1)
        code = self._process.exitcode
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        self._fail(f"the device process ended unexpectedly ({how})")

    def _fail(self, text: str) -> NoReturn:
        self._failure = DeviceError(text)
        raise self._failure

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure


def start_method() -> Literal["forkserver", "spawn"]:
    """How the child starts: the fast way, unless a profiler is there that would not see it."""
    return "spawn" if any(map(os.environ.get, _PROFILER_VARIABLES)) else "forkserver"


def _wires(commands: Sequence[Command]) -> list[tuple[str | int, ...]]:
    """Commands on the wire; one that is repeated is spelt once."""
    wires: list[tuple[str | int, ...]] = []
    last: Command | None = None
    for command in commands:
        wires.append(wires[-1] if command is last else command.to_wire())
        last = command
    return wires


def _serve(
    model: ModelSpec,
    config: RunnerConfig,
    layout: Layout,
    arena_fd: Any,
    connection: Connection,
    wake: Connection,
) -> None:
    """Imported in the child only, so that the parent never loads torch."""
    from runner.device.process_child import serve

    serve(model, config, layout, arena_fd, connection, wake)
