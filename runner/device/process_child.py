"""The device process: owns device memory, executes one message a step, tells events through shared memory.

It ends when its parent's end of the connection closes, however the parent died.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import signal
import sys
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any

import torch

from runner.commands import EVENTS, buffer_table
from runner.config import RunnerConfig
from runner.core import DeviceError, DeviceInfo, RunnerError
from runner.device.channel import Layout, spin_s
from runner.device.command_runner import CommandRunner
from runner.device.report import ReportRing, SpanRing
from runner.device.shared import SharedArena
from runner.device.torch_trace import TorchTrace
from runner.kernels.program import Program
from runner.models import ModelSpec


def serve(
    model: ModelSpec,
    config: RunnerConfig,
    layout: Layout,
    arena_fd: Any,
    connection: Connection,
    wake: Connection,
) -> None:
    """Entry point of the device process. `arena_fd` is a DupFd."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    _keep_freed_memory()
    torch.set_num_threads(config.num_threads)
    # The parent may be gone: it needs no answer then.
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        try:
            _Server(model, config, layout, arena_fd.detach(), connection, wake).run()
        except DeviceError as error:
            connection.send(("error", str(error), error.step_id, error.command, error.traceback_text))
        except RunnerError as error:
            connection.send(("refused", str(error)))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise
        except Exception as error:
            text = f"the device process failed: {type(error).__name__}: {error}"
            connection.send(("error", text, None, "", traceback.format_exc()))


class _Server:
    def __init__(
        self,
        model: ModelSpec,
        config: RunnerConfig,
        layout: Layout,
        arena_fd: int,
        connection: Connection,
        wake: Connection,
    ) -> None:
        buffers = dict(buffer_table(config, model))
        arena = SharedArena(layout, arena_fd)
        host = {name: torch.from_numpy(arena.arrays[name]) for name in buffers}
        program = Program(model, config, buffers, host, torch.device("cpu"))
        self._events = arena.arrays["events"]
        self._submitted = arena.arrays["submitted"]
        reports = ReportRing(tuple(buffers), arena.arrays["reports"])
        spans = SpanRing(tuple(buffers), arena.arrays["spans"])
        self._trace = TorchTrace()
        self._runner = CommandRunner(program, reports, spans, self._publish, self._trace.make_ranges)
        self._connection = connection
        self._wake_fd = wake.fileno()
        self._wake = wake
        os.set_blocking(self._wake_fd, False)
        self._num_received = 0
        self._spin_s = spin_s()
        info = DeviceInfo(
            "process",
            "cpu",
            config.num_threads,
            torch.__version__,
            program.attention,
            compiled=program.compiled,
        )
        connection.send(("ready", info))

    def run(self) -> None:
        """Execute messages until the parent's end closes (EOFError)."""
        while True:
            step_id, content = self._receive()
            if step_id is None:
                self._connection.send((content[0], *self._obey(*content)))
            else:
                # One thread runs the list in order, so a stream's Wait is met when it is reached.
                for command in content:
                    self._runner.run(step_id, command)

    def _obey(self, what: str, *arguments: Any) -> tuple[Any, ...]:
        """What is no step; its answer."""
        if what == "reset":
            self._runner.reset(*arguments)
        elif what == "findings":
            return tuple(map(tuple, self._runner.sync_findings))
        elif what == "recompiled":
            return (self._runner.num_recompiled,)
        elif what == "start_trace":
            self._trace.start()
        else:
            self._trace.write(*arguments)
        return ()

    def _receive(self) -> tuple[int | None, Any]:
        """A step and its commands, or None and what else is to be done, with its arguments."""
        deadline = time.perf_counter() + self._spin_s
        while self._submitted[0] == self._num_received and time.perf_counter() < deadline:
            pass
        message = self._connection.recv_bytes()  # blocks when the spin saw nothing
        self._num_received += 1
        step_id, content = pickle.loads(message)
        return step_id, content

    def _publish(self, event: str, step_id: int) -> None:
        self._events[EVENTS.index(event)] = step_id
        # Always a byte: whether the parent sleeps cannot be known without a fence. A full pipe wakes it too.
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_fd, b"\0")


def _keep_freed_memory() -> None:
    """Keep the allocator from returning large temporaries: their page faults cost more than their use."""
    if sys.platform != "linux":
        return
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # malloc.h
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(mmap_threshold, 1 << 30)
        libc.mallopt(trim_threshold, (1 << 31) - 1)
        libc.mallopt(top_pad, 64 << 20)
