"""A worker without an engine: it speaks the protocol and does to each run what argv tells it.

argv[1] is JSON: run key such as "r1" or "w0" (or "open") -> action. What is not named runs fine at once, or
after "run_s" seconds. It leaves tables in the run folder, where there is one, as a real worker does.
"""

from __future__ import annotations

import ctypes
import json
import os
import queue
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil

# -P keeps the folder of a program out of the path.
sys.path.insert(0, str(Path(__file__).resolve().parent))

from records import make_request, make_step

from suite.environment import DeviceFacts
from suite.errors import SuiteError
from suite.metrics import empty_metrics
from suite.protocol import (
    Close,
    Finished,
    Opened,
    Progress,
    Refused,
    StorageFailed,
    read_command,
    unpack_case,
)
from suite.record import Failure, RunRecord, Status, TokenVerdict
from suite.store import RunFolder


def send(reply):
    sys.stdout.buffer.write(reply.line())
    sys.stdout.buffer.flush()


def record(opening, command, failure=None, num_wrong=0):
    case = unpack_case(opening.case)
    return RunRecord(
        run_id=command.run_id,
        scenario=case.scenario.name,
        case_id=case.case_id,
        case_label=case.label,
        case_values=dict(case.values),
        arm=command.arm,
        round=command.round,
        is_warmup=command.is_warmup,
        is_aa=command.is_aa,
        rotation=command.rotation,
        status=Status.FAILED if failure else Status.COMPLETED,
        device=opening.device,
        seed=opening.seed,
        workload_hash=opening.workload_hash,
        started_utc="2026-01-01T00:00:00Z",
        duration_s=0.1,
        metrics=empty_metrics("nothing was measured"),
        tokens=TokenVerdict(
            num_checked=8,
            num_right=8 - num_wrong,
            num_wrong=num_wrong,
            num_ties=0,
            num_requests_right=1,
            num_requests_wrong=0,
        ),
        failure=failure,
        num_steps=2 if opening.folder is not None else 0,
        num_requests=2 if opening.folder is not None else 0,
        notes=(f"worker {os.getpid()}",),
    )


def store(opening, command):
    """Two steps and two requests, of all that a worker stores; the record's numbers of them are as many."""
    requests = [make_request("q0"), make_request("q1")]
    steps = [make_step(0, 0, 10, "prefill", num_tokens=16), make_step(1, 10, 30, num_tokens=4)]
    try:
        folder = RunFolder(Path(opening.folder))
        folder.write_steps(command.run_id, steps)
        folder.write_requests(command.run_id, requests)
    except SuiteError as error:
        send(StorageFailed(message=str(error)))
        sys.exit(0)


def hang():
    send(Progress(phase="run", num_steps=3))
    time.sleep(3600)


def hang_in_check():
    send(Progress(phase="check"))
    time.sleep(3600)


def die():
    print("a last word on standard error", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def leave_a_child():
    """A child that no signal but SIGKILL ends, its pid told on standard error; then die."""
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)"
    child = subprocess.Popen([sys.executable, "-c", code])
    print(f"child {child.pid}", file=sys.stderr, flush=True)
    os._exit(3)


def segfault():
    print("about to read where nothing is", file=sys.stderr, flush=True)
    ctypes.string_at(0)


def run_out_of_memory():
    """For real: no more address space than there is now, and then more of it."""
    limit = psutil.Process().memory_info().vms + 50_000_000
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    bytearray(1_000_000_000)


ACTIONS = {
    "segfault": segfault,
    "run-out-of-memory": run_out_of_memory,
    "say-nothing": lambda: time.sleep(3600),
    "hang": hang,
    "hang-in-check": hang_in_check,
    "die": die,
    "leave-a-child": leave_a_child,
    "exit": lambda: os._exit(7),
    "end-of-output": lambda: (os.close(1), time.sleep(0.2), os._exit(0)),
}


def listen():
    """Commands, read on a thread: the suite's death ends this process at once, as it does a real worker."""
    lines = queue.SimpleQueue()

    def read():
        for line in sys.stdin.buffer:
            lines.put(line)
        os._exit(1)

    threading.Thread(target=read, daemon=True).start()
    return lines


def main():
    actions = json.loads(sys.argv[1])
    lines = listen()
    opening = read_command(lines.get())
    ACTIONS.get(actions.get("open"), lambda: None)()
    if actions.get("open") == "refuse":
        send(Refused(failure=Failure(kind="refused", message="no such device")))
        return
    if opening.folder is not None:
        import pyarrow.parquet  # noqa: F401  (seconds on a busy machine: no part of a run's time)
    send(Opened(device=DeviceFacts(kind="inline", name="fake", num_threads=1, torch_version="0")))
    while not isinstance(command := read_command(lines.get()), Close):
        action = actions.get(command.run_id.rpartition("-")[2])
        if action == "storage":
            send(StorageFailed(message="cannot write /full: No space left on device"))
            return
        ACTIONS.get(action, lambda: None)()
        time.sleep(actions.get("run_s", 0.0))
        if opening.folder is not None:
            store(opening, command)
        failure = Failure(kind="device", message="step 3: boom") if action == "fail" else None
        done = record(opening, command, failure, num_wrong=int(action == "wrong"))
        send(Finished(record=done, is_leaving=failure is not None))


if __name__ == "__main__":
    main()
