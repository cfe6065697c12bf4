"""The cases of `python -m suite micro` under pytest-benchmark, on this process's CPU.

    python -m suite micro --output RUN                                              # RUN/micro.json
    pytest tests/benchmarks/test_micro.py --benchmark-json RUN/benchmarks.json      # the same, its own way

A round is one call, on the next set of buffers; the figures hold pytest-benchmark's own cost of a round, and
`suite micro`, which times many calls at once, does not. So read its figures, and use these to compare two
versions (`--benchmark-save`, `--benchmark-compare`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from runner.models import TINY_QWEN3
from suite.micro.case import Case
from suite.micro.catalogue import GROUPS
from suite.micro.child import cases_of
from suite.micro.machine import Machine, open_machine
from suite.micro.timing import DEFAULT_EFFORT

ROUNDS = 50
NUM_THREADS = 1


@contextmanager
def one_thread() -> Iterator[Machine]:
    """The machine, and torch's threads as they were afterwards."""
    threads = torch.get_num_threads()
    try:
        yield open_machine("inline", NUM_THREADS, DEFAULT_EFFORT)
    finally:
        torch.set_num_threads(threads)


def all_cases() -> list[Case]:
    """Made without their memory, which each takes when it is run."""
    with one_thread() as machine:
        return list(cases_of(machine, TINY_QWEN3, tuple(GROUPS), lambda _: None))


@pytest.mark.parametrize("case", all_cases(), ids=lambda case: f"{case.name}: {case.size}")
def test_micro(case: Case, benchmark: BenchmarkFixture) -> None:
    with one_thread(), torch.inference_mode():
        calls, is_cold = case.prepare()
        turn = cycle(calls)
        benchmark.group = case.name
        benchmark.extra_info.update({"work_bytes": case.work, "memory": "cold" if is_cold else "warm"})
        benchmark.pedantic(lambda: next(turn)(), rounds=ROUNDS, warmup_rounds=2)
