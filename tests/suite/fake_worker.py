"""A worker without an engine: it speaks the protocol and does to each run what argv tells it.

argv[1] is JSON: run key such as "r1" or "w0" (or "open") -> action. What is not named runs fine at once.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

from suite.environment import DeviceFacts
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
        notes=(f"worker {os.getpid()}",),
    )


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


ACTIONS = {
    "say-nothing": lambda: time.sleep(3600),
    "hang": hang,
    "hang-in-check": hang_in_check,
    "die": die,
    "leave-a-child": leave_a_child,
    "exit": lambda: os._exit(7),
    "end-of-output": lambda: (os.close(1), time.sleep(0.2), os._exit(0)),
}


def main():
    actions = json.loads(sys.argv[1])
    opening = read_command(sys.stdin.buffer.readline())
    ACTIONS.get(actions.get("open"), lambda: None)()
    if actions.get("open") == "refuse":
        send(Refused(failure=Failure(kind="refused", message="no such device")))
        return
    send(Opened(device=DeviceFacts(kind="inline", name="fake", num_threads=1, torch_version="0")))
    for line in sys.stdin.buffer:
        command = read_command(line)
        if isinstance(command, Close):
            return
        action = actions.get(command.run_id.rpartition("-")[2])
        if action == "storage":
            send(StorageFailed(message="cannot write /full: No space left on device"))
            return
        ACTIONS.get(action, lambda: None)()
        failure = Failure(kind="device", message="step 3: boom") if action == "fail" else None
        done = record(opening, command, failure, num_wrong=int(action == "wrong"))
        send(Finished(record=done, is_leaving=failure is not None))


if __name__ == "__main__":
    main()
