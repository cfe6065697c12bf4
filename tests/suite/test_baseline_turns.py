"""Two sides that take turns: in which order, one at a time, and what becomes of them when one fails."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from itertools import pairwise

import pytest
from test_experiment import FAKE, SCENARIO, Diary

from suite.baseline_turns import SIDES, Turns, run_together, turns
from suite.errors import SuiteError
from suite.experiment import Experiment, Stop
from suite.plan import Options, make_plan
from suite.record import Status

TEXT = SCENARIO.replace("rounds: 3", "rounds: 8") + "arms: [sync-ids, ids]\naa: true\n"


@pytest.fixture
def plan(tmp_path):
    file = tmp_path / "fake.yaml"
    file.write_text(TEXT + "sweep: {traffic.output_tokens: [2, 4]}\n")
    return make_plan([file], Options(device="inline"))


def both(plan, stop, told, actions=None):
    """An experiment for each side, with a fake worker that does to a side what `actions` says."""
    order = Turns(plan.cases, stop)
    return [
        Experiment(
            plan,
            None,
            Diary(),
            stop,
            lambda record, side=side: told(side, record),
            lambda device: None,
            worker_command=(sys.executable, "-P", str(FAKE), json.dumps((actions or {}).get(side, {}))),
            schedule=order.of(side),
        )
        for side in SIDES
    ]


def test_every_run_is_on_both_sides_one_right_after_the_other(plan):
    for planned in plan.cases:
        order = turns(planned)
        pairs = list(zip(order[::2], order[1::2], strict=True))
        assert [run.run_id for (_, run), _ in pairs] == [run.run_id for run in planned.runs()]
        assert all(one[1] == other[1] and {one[0], other[0]} == set(SIDES) for one, other in pairs)


def test_either_side_is_first_as_often_and_in_no_fixed_order(plan):
    (planned, _) = plan.cases
    order = turns(planned)
    firsts: dict[tuple[str, bool], list[str]] = {}
    for side, run in order[::2]:
        if run.is_of_round:
            firsts.setdefault((run.arm, run.is_aa), []).append(side)
    for sides in firsts.values():
        assert Counter(sides) == {"head": 4, "baseline": 4}
        assert all(one != other for one, other in list(pairwise(sides))[::2])
    assert len({tuple(sides) for sides in firsts.values()}) > 1


def test_both_sides_run_in_turns_each_in_one_worker_and_never_at_the_same_time(plan):
    seen = []
    experiments = both(plan, Stop(), lambda side, record: seen.append((side, record)))
    run_together(experiments, Stop())
    wanted = [(side, run.run_id) for planned in plan.cases for side, run in turns(planned)]
    assert [(side, record.run_id) for side, record in seen] == wanted
    workers = {(side, record.case_id): set() for side, record in seen}
    for side, record in seen:
        workers[side, record.case_id].update(note for note in record.notes if note.startswith("worker "))
    assert all(len(pids) == 1 for pids in workers.values())
    assert len(set.union(*workers.values())) == 4


def test_a_side_whose_worker_dies_goes_on_with_a_fresh_one_and_so_does_the_other(plan):
    seen = []
    actions = {"head": {"r2": "die"}}
    run_together(both(plan, Stop(), lambda *one: seen.append(one), actions), Stop())
    failed = [(side, record.run_id.rpartition("-")[2]) for side, record in seen if record.failure]
    assert len(seen) == 2 * plan.num_runs
    assert set(failed) == {("head", "r2")} and len(failed) == 4


def test_a_side_that_cannot_be_opened_fails_all_its_runs_and_the_other_has_none_less(plan):
    seen = []
    run_together(both(plan, Stop(), lambda *one: seen.append(one), {"baseline": {"open": "refuse"}}), Stop())
    counts = Counter((side, record.status) for side, record in seen)
    assert counts == {
        ("baseline", Status.FAILED): plan.num_runs,
        ("head", Status.COMPLETED): plan.num_runs,
    }


def test_a_stop_ends_both_sides_soon(plan):
    stop, seen = Stop(), []

    def told(side, record):
        seen.append(side)
        if len(seen) == 5:
            stop.request()

    begin = time.monotonic()
    run_together(both(plan, stop, told), stop)
    assert 5 <= len(seen) <= 6 and time.monotonic() - begin < 20


def test_an_error_of_one_side_ends_the_other_and_is_raised(plan):
    stop, seen = Stop(), []
    with pytest.raises(SuiteError, match="No space left"):
        run_together(both(plan, stop, lambda *one: seen.append(one), {"head": {"r1": "storage"}}), stop)
    assert 0 < len(seen) < 2 * plan.num_runs
    assert threading.active_count() < 5
