"""A measurement seen from the suite: in a process of its own that loads torch, told message by message."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import ValidationError

from runner.core import FloatType
from runner.models import ModelSpec, get_model
from runner.spans import LEVELS, Level
from suite.ceiling_store import fingerprint, load
from suite.ceilings import Ceilings
from suite.child_environment import child_environment
from suite.errors import SuiteError
from suite.micro.catalogue import CEILINGS, Row
from suite.micro.median import Estimate
from suite.micro.protocol import Message, Order
from suite.micro.span_cost import SpanCost

# -P: a file of the user's named like one of our packages must not be imported in its place.
COMMAND = (sys.executable, "-P", "-c", "from suite.micro.child import main; main()")

_IDLE_LIMIT_S = 600.0  # no single measurement takes as long, and no model of ours to build
_END_LIMIT_S = 15.0
_TAIL_BYTES = 2000
_ANY_MODEL = "tiny-qwen3"
_NO_COST = Estimate(0.0, 0.0, 0.0, 0, 0.0)


@dataclass(slots=True)
class Findings:
    """What was measured so far; it is whole where `failure` is None."""

    order: Order
    ceilings: Ceilings | None = None
    is_cached: bool = False
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failure: str | None = None
    is_interrupted: bool = False

    def take(self, message: Message) -> None:
        if message.row is not None:
            self.rows.append(message.row)
        if message.ceilings is not None:
            self.ceilings, self.is_cached = message.ceilings, message.is_cached
        if message.kind == "note":
            self.notes.append(message.text)
        if message.kind == "failed":
            self.failure = message.text


def measure(
    order: Order,
    tell: Callable[[str], None] = lambda _: None,
    command: Sequence[str] = COMMAND,
    idle_limit_s: float = _IDLE_LIMIT_S,
) -> Findings:
    """Have it measured; `tell` hears of progress. What came before a failure, or Ctrl-C, is kept."""
    findings, is_done = Findings(order), False
    with tempfile.TemporaryFile() as errors, _child(command, errors.fileno(), order) as process:
        try:
            for line in _lines(process, idle_limit_s):
                message = Message.model_validate_json(line)
                is_done = is_done or message.kind == "done"
                findings.take(message)
                if message.kind == "progress":
                    tell(message.text)
        except (TimeoutError, ValidationError) as error:
            findings.failure = str(error)
            process.kill()  # it is not waited for
        except KeyboardInterrupt:
            findings.failure, findings.is_interrupted = "interrupted", True
            process.kill()
        if not is_done and findings.failure is None:
            findings.failure = f"the measuring process ended early ({_ending(process)})"
        if findings.failure is not None and not findings.is_interrupted:
            findings.failure += _tail(errors.fileno())
    return findings


def measured_ceilings(
    device: str,
    model_name: str,
    num_threads: int = 1,
    is_fresh: bool = False,
    dtype: FloatType = "float32",
) -> Ceilings:
    """The ceilings of this machine, kept or else measured now (half a minute). SuiteError if that fails.

    `device`: a kind to open, not `auto`.
    """
    kept = None if is_fresh else cached_ceilings(device, get_model(model_name), num_threads, dtype=dtype)
    if kept is not None:
        return kept
    order = Order(
        device=device,
        model=model_name,
        num_threads=num_threads,
        dtype=dtype,
        chosen=(CEILINGS,),
        is_fresh=is_fresh,
    )
    findings = _measured_whole(order)
    if findings.ceilings is None:
        raise SuiteError(f"the ceilings of {device} could not be measured: {findings.failure}")
    return findings.ceilings


def measured_span_costs() -> dict[Level, SpanCost]:
    """What a span costs here and now at every level but `off`. SuiteError where that cannot be measured."""
    order = Order(device="process", model=_ANY_MODEL, num_threads=1, chosen=("instrument",))
    findings = _measured_whole(order)
    if findings.failure is not None:
        raise SuiteError(f"the cost of spans could not be measured: {findings.failure}")
    by_name = {(row.name, row.size): row for row in findings.rows}
    return {level: span_cost(level, by_name) for level in LEVELS[1:]}


def _measured_whole(order: Order) -> Findings:
    findings = measure(order)
    if findings.is_interrupted:
        raise KeyboardInterrupt
    return findings


def span_cost(level: Level, rows: Mapping[tuple[str, str], Row]) -> SpanCost:
    """From the rows by name and level; a kind of span that this level does not record costs nothing."""
    kinds = ("host", "command", "read")
    found = (rows.get((f"span.{kind}", level)) for kind in kinds)
    return SpanCost(level, *(_NO_COST if row is None else _estimate(row) for row in found))


def _estimate(row: Row) -> Estimate:
    return Estimate(row.median_ns, row.low_ns, row.high_ns, row.n, row.best_ns, row.interval_reason)


def cached_ceilings(
    device: str,
    model: ModelSpec,
    num_threads: int = 1,
    device_name: str | None = None,
    dtype: FloatType = "float32",
) -> Ceilings | None:
    """Those that are kept. A GPU's name is known to torch alone: without it None."""
    if device == "cuda" and device_name is None:
        return None
    return load(fingerprint(device, device_name or "cpu", num_threads, model, dtype)).ceilings


@contextlib.contextmanager
def _child(command: Sequence[str], errors: int, order: Order) -> Iterator[subprocess.Popen[bytes]]:
    """In a session of its own, so that Ctrl-C reaches the suite alone; ended whole, however we leave."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        env=child_environment(),
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(order.model_dump_json().encode() + b"\n")
            process.stdin.close()
        yield process
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_LIMIT_S)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def _lines(process: subprocess.Popen[bytes], idle_limit_s: float) -> Iterator[bytes]:
    """Lines until the process closes its output; TimeoutError where none comes for too long."""
    assert process.stdout is not None
    buffer = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            if not selector.select(idle_limit_s):
                raise TimeoutError(f"the measuring process said nothing for {idle_limit_s:.0f} s")
            chunk = os.read(process.stdout.fileno(), 65536)
            if not chunk:
                return
            *lines, buffer = (buffer + chunk).split(b"\n")
            yield from lines


def _ending(process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + 2
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    code = process.returncode
    if code is None or code >= 0:
        return f"exit code {code}"
    return f"signal {-code}"


def _tail(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    text = os.pread(descriptor, _TAIL_BYTES, max(0, size - _TAIL_BYTES)).decode("utf-8", "replace").strip()
    return f"; its last words:\n{text}" if text else ""
