"""Starts the real command line many times at little cost: forked from a process that has loaded it once.

The worker is the fake one, so that a run takes milliseconds. `Nursery` is the side of the tests; run as a
program, this file is the process that forks.
"""

from __future__ import annotations

import functools
import json
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path

import psutil

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FAKE = HERE / "fake_worker.py"
PATIENCE_S = 120


class Nursery:
    """Commands run in `folder`. What each printed is in `said`."""

    def __init__(self, folder):
        self.folder = folder
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "nursery.py")],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(HERE))), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, *arguments, actions=None, acks="acks", file_limit=None):
        """`python -m suite ARGUMENTS` in a process of its own: its pid.

        Each run that was started and each that was kept is written to the file `acks` at once.
        """
        order = {"arguments": list(map(str, arguments)), "actions": actions or {}, "acks": acks}
        return int(self._ask({**order, "file_limit": file_limit}))

    def wait(self, pid):
        """The exit code; below 0 for a signal."""
        return int(self._ask({"wait": pid}))

    def kill(self, pid, number=signal.SIGKILL):
        """Signal a command and wait for it and all it started: its exit code."""
        children = psutil.Process(pid).children(recursive=True)
        os.kill(pid, number)
        code = self.wait(pid)
        _, alive = psutil.wait_procs(children, timeout=PATIENCE_S)
        assert not alive, f"left over: {alive}"
        return code

    def run(self, *arguments, **options):
        return self.wait(self.start(*arguments, **options))

    @property
    def said(self):
        """Standard output and error of the last command."""
        return (self.folder / "said").read_text(encoding="utf-8")

    def acks(self, name="acks"):
        """(word, run_id) of every line; a last one that a kill cut short is none."""
        path = self.folder / name
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [tuple(line.split(" ", 1)) for line in lines]

    def wait_until(self, condition, what):
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"no {what} in {PATIENCE_S} s: {self.said}"
            time.sleep(0.005)

    def close(self):
        self._process.kill()
        self._process.communicate()

    def _ask(self, order):
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()


class Acks:
    """An observer that writes down what it is told before it returns."""

    def __init__(self, path):
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def case_started(self, planned):
        return None

    def run_started(self, planned, run):
        os.write(self._file, f"started {run.run_id}\n".encode())

    def run_progressed(self, run, progress):
        return None

    def run_finished(self, planned, record):
        os.write(self._file, f"kept {record.run_id}\n".encode())


def _obey(order):
    """In the forked process."""
    from suite import commands
    from suite.cli import main
    from suite.experiment import Experiment

    os.setsid()
    said = os.open("said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(said, 1)
    os.dup2(said, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if order["file_limit"] is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["file_limit"],) * 2)
    command = (sys.executable, "-P", str(FAKE), json.dumps(order["actions"]))
    commands.Experiment = functools.partial(Experiment, worker_command=command)
    commands.make_progress = lambda console, plan, num_done=0: Acks(order["acks"])
    sys.argv[1:] = order["arguments"]
    sys.stdout = os.fdopen(1, "w", encoding="utf-8")
    main()


def serve():
    import suite.commands
    import suite.report.page
    import suite.resume  # noqa: F401

    replies = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            _, status = os.waitpid(order["wait"], 0)
            print(os.waitstatus_to_exitcode(status), file=replies, flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                _obey(order)
            except SystemExit as leaving:
                code = leaving.code or 0
            except BaseException:
                traceback.print_exc()
            finally:
                with suppress(Exception):
                    sys.stdout.flush()
                    sys.stderr.flush()
                os._exit(code)
        print(pid, file=replies, flush=True)


if __name__ == "__main__":
    serve()
