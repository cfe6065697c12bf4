"""What `suite cost` runs next, how often it repeats, when it stops, and the bill it prints."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from records import make_run, make_step
from typer.testing import CliRunner, Result

from runner.repeats import NO_REPEATS
from runner.spans import Span
from suite.bill import arm_bills, documents, text_lines
from suite.cli import app
from suite.cost import CostLimits, CostSchedule, cost_plan, repeats_of
from suite.errors import SuiteError
from suite.plan import Options
from suite.progress import LineProgress, make_console
from suite.record import CpuUse, Status, StepListRecord
from suite.repeatable import repeatable_spans
from suite.report.bill_tables import bill
from suite.report.data import Series
from suite.store import RunFolder, load_run
from suite.turns import shuffled_turns
from suite.validity.rule import broken

ROOT = Path(__file__).resolve().parents[2]
SCENARIO = """\
name: cost
model: tiny-gemma3-vl
runner: {max_num_seqs: 4, max_num_batched_tokens: 16, max_model_len: 64, num_blocks: 32}
traffic: {num_requests: 6, prompt_tokens: 6, output_tokens: 8, embeds_ratio: 0.5}
arms: [gated, skip]
"""
FLAGS, MERGE = "upload.is_token_ids", "merge"


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "cost.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    return path


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def steps(num: int = 9, time_us: float = 1000, more_us=lambda step_id: 0.0):
    """Decode steps behind a prefill, each so long; the flags are copied in all of them."""
    end_us, made = 0.0, []
    for step_id in range(num):
        end_us += time_us + more_us(step_id)
        kind = "decode" if step_id else "prefill"
        made.append(make_step(step_id, 0, 0, kind, device_end_ns=round(end_us * 1000)))
    return made


def spans(duration_us: float, name: str = FLAGS, num: int = 9) -> list[Span]:
    return [Span(step_id, name, "compute", 0, round(duration_us * 1000)) for step_id in range(num)]


def test_the_arm_is_the_one_asked_for_else_refresh_else_the_scenarios_first_right_one(scenario: Path) -> None:
    def arms(text: str = SCENARIO, asked: str | None = None) -> tuple[str, ...]:
        scenario.write_text(text)
        return cost_plan(scenario, Options(device="inline", arms=(asked,) if asked else None)).cases[0].arms

    assert arms() == ("refresh",)
    assert arms(asked="skip") == ("skip",)
    text_model = SCENARIO.replace("tiny-gemma3-vl", "tiny-qwen3").replace("[gated, skip]", "[stale, text]")
    assert arms(text_model) == ("text",) or arms(text_model) == ("refresh",)


def test_more_than_one_arm_is_refused_before_there_is_a_folder(scenario: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    result = invoke("cost", scenario, "--arm", "gated,skip", "--device", "inline", "-o", results)
    assert result.exit_code == 2
    assert (
        "--arm gated,skip: the bill is of one arm at a time; name one, such as --arm gated" in result.stderr
    )
    assert not results.exists()


@pytest.mark.parametrize("device", ["lazy", "shuffle:1"])
def test_a_device_that_is_never_for_timing_is_refused(scenario: Path, device: str) -> None:
    with pytest.raises(SuiteError, match=f"--device {device}: it is never for timing"):
        cost_plan(scenario, Options(device=device))


def test_what_is_announced_and_stored_is_rounds_of_repeats_until_the_budget_ends(scenario: Path) -> None:
    scenario.write_text(f"{SCENARIO}amplify: {{merge: [1, 9]}}\naa: true\n", encoding="utf-8")
    plan = cost_plan(scenario, Options(device="inline"))
    stream = io.StringIO()
    LineProgress(make_console(stream), None).case_started(plan.cases[0])
    assert stream.getvalue() == (
        "cost: 6 requests, arms refresh, rounds of repeats until the budget ends, 20 at most\n"
    )
    (stored,) = plan.document()["cases"]
    assert (stored["warmup_rounds"], stored["rounds"], stored["has_aa"]) == (0, 20, False)


def test_a_span_is_repeated_until_it_is_a_tenth_of_the_step_where_it_weighs_most() -> None:
    assert repeats_of(steps(), spans(10), FLAGS) == 11
    assert repeats_of(steps(), spans(0.001), FLAGS) == 4096
    assert repeats_of(steps(), spans(900), FLAGS) == 2
    assert repeats_of(steps(), spans(10), MERGE) is None
    twice = [*spans(10), *spans(10)]
    assert repeats_of(steps(), twice, FLAGS) == 6
    longer_in_mixed = [
        replace(step, kind="mixed", device_end_ns=step.device_end_ns + 10**9) if step.step_id == 8 else step
        for step in steps()
    ]
    assert repeats_of(longer_in_mixed, spans(10), FLAGS) == 11


def test_a_lead_in_step_does_not_decide_how_often_to_repeat() -> None:
    mixed = [replace(step, kind="mixed") if step.step_id in (3, 4) else step for step in steps()]
    heavy = [*spans(10), *(Span(step_id, FLAGS, "compute", 0, 400_000) for step_id in (3, 4))]
    assert repeats_of(mixed, heavy, FLAGS) == 2
    assert repeats_of(mixed, heavy, FLAGS, lambda step_id: step_id in (3, 4)) == 11


def test_how_often_to_repeat_is_known_in_a_moment_however_many_steps_there_are() -> None:
    many = 5000
    begin_s = time.perf_counter()
    assert repeats_of(steps(many), spans(10, num=many), FLAGS) == 11
    assert time.perf_counter() - begin_s < 2


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def play(scenario: Path, tmp_path: Path, limits: CostLimits, run_s: float, fails_at: int = -1):
    """The runs a schedule asks for, each so long, with the records of a fake worker in the folder."""
    plan = cost_plan(scenario, Options(device="inline", rounds=6))
    folder = RunFolder.create(tmp_path, "cost")
    folder.write_config(plan.document())
    clock = Clock()
    schedule = CostSchedule(limits, folder.path, clock)
    asked = []
    for run in schedule.runs(plan.cases[0]):
        clock.now_s += run_s
        folder.write_steps(run.run_id, steps())
        folder.write_requests(run.run_id, [])
        folder.write_spans(run.run_id, [*spans(10), *spans(50, MERGE)])
        status = Status.FAILED if len(asked) == fails_at else Status.COMPLETED
        record = make_run(run_id=run.run_id, arm=run.arm, round=run.round, status=status, repeats=run.repeats)
        folder.append_run(record)
        schedule.keep(record)
        asked.append(run)
    return asked, schedule


def test_a_first_run_one_with_device_spans_then_rounds_of_the_spans_there_are(scenario, tmp_path) -> None:
    asked, schedule = play(scenario, tmp_path, CostLimits(1e6), 1.0)
    first, seen, *rounds = asked
    assert first.is_warmup and set(first.repeats) == set(repeatable_spans()) and not first.turns
    assert seen.instrument == "events" and set(seen.repeats.values()) == {1}
    assert len(rounds) == 6 * 3 and {run.round for run in rounds} == set(range(6))
    for run in rounds:
        assert run.repeats == {FLAGS: 11, MERGE: 3}
        assert set(run.turns) == {NO_REPEATS, (FLAGS, 11), (MERGE, 3)}
    assert schedule.notes == []


def test_the_budget_ends_the_rounds_and_that_is_said(scenario, tmp_path) -> None:
    asked, schedule = play(scenario, tmp_path, CostLimits(10.0), 1.0)
    assert [run.round for run in asked[2:]] == [0] * 3 + [1] * 3
    (note,) = schedule.notes
    assert "the budget of 10 s ended after 2 of 6 rounds; raise --budget-s" in note


def test_only_the_named_spans_are_repeated(scenario, tmp_path) -> None:
    asked, _ = play(scenario, tmp_path, CostLimits.of(1e6, "merge, lookup"), 1.0)
    assert set(asked[0].repeats) == {"merge", "lookup"}
    assert all(run.repeats == {MERGE: 3} for run in asked[2:])


@pytest.mark.parametrize("fails_at", [0, 1, 4])
def test_after_a_failed_run_nothing_more_is_asked_for(scenario, tmp_path, fails_at) -> None:
    asked, _ = play(scenario, tmp_path, CostLimits(1e6), 1.0, fails_at)
    assert len(asked) == fails_at + 1


# The bill


def bill_of(
    num_rounds: int, cost_us: float, spans_of=lambda _: spans(4), findings=(), step_list=None, cpu=None
):
    draw = random.Random(4)
    kept = {"seen": steps()}
    first = {"repeats": {FLAGS: 1, MERGE: 1}, "step_list": step_list}
    runs = [make_run(run_id="seen", arm="refresh", instrument="events", **first)]
    for number in range(num_rounds):
        for index, of_run in enumerate(shuffled_turns([NO_REPEATS, (FLAGS, 101)], draw)):
            name = f"a{number}-{index}"
            kept[name] = steps(
                more_us=lambda step_id, of_run=of_run: cost_us * (of_run[step_id][1] - 1),
                time_us=1000 + number,
            )
            given = {"round": number, "repeats": {FLAGS: 101}, "turns": of_run, "scheduling": "sync"}
            given["cpu"] = cpu if number < 2 else None
            runs.append(make_run(run_id=name, arm="refresh", step_list=step_list, **given))
    (made,) = arm_bills(runs, kept.__getitem__, spans_of, findings)
    return made


def test_a_bill_has_the_cost_in_place_beside_the_devices_own_time() -> None:
    bill = bill_of(6, 2.0)
    (line,) = [line for line in bill.lines if line.kind == "decode"]
    assert line.cost is not None and line.cost.mean_us == pytest.approx(2, abs=0.2) and line.cost.is_decided
    assert line.times.device_us == 4.0
    text = "\n".join(text_lines(bill))
    assert "decode step: 1,002 us without repeats" in text and FLAGS in text and "decided" in text
    assert "no step of this arm has a command of merge" in text
    (document,) = json.loads(json.dumps(documents([bill]), allow_nan=False))
    (told,) = [line for line in document["lines"] if line["kind"] == "decode"]
    assert told["is_decided"] and told["ks"] == [1, 101] and told["device_us"] == 4.0
    assert told["enqueue_us"] is None and "one message" in told["enqueue_reason"]


def test_the_lead_in_of_a_list_of_steps_is_in_no_line_and_that_is_said() -> None:
    listed = StepListRecord(hash="00", num_steps=9, lead_in=((1, 3), (5, 6)), commands={})
    whole, bill = bill_of(6, 2.0), bill_of(6, 2.0, step_list=listed)
    counts = [next(line.num_steps for line in one.lines if line.kind == "decode") for one in (whole, bill)]
    assert counts[0] - counts[1] == 3
    assert "3 steps of the list only bring rows as far as decoding: they are in no line" in bill.notes
    assert not any("decoding" in note for note in whole.notes)


def test_too_few_rounds_cannot_tell_and_have_an_upper_bound() -> None:
    bill = bill_of(3, 2.0)
    text = "\n".join(text_lines(bill))
    assert "cannot tell: 3 of 5 rounds: at most" in text
    assert "3 whole rounds, and 5 are needed to decide anything" in text
    (one,) = documents([bill_of(1, 2.0)])
    (told,) = [line for line in one["lines"] if line["kind"] == "decode"]
    assert told["cost_low_us"] is None and told["upper_us"] is None and not told["is_decided"]


def test_a_bill_made_beside_a_busy_neighbour_says_so_and_counts_all_the_same() -> None:
    quiet = bill_of(6, 2.0, cpu=CpuUse(wall_s=1.0, num_cores=2, busy_s=1.01, own_s=1.0, stolen_s=0.0))
    assert quiet.busy == "" and quiet.notes == bill_of(6, 2.0).notes
    busy = bill_of(6, 2.0, cpu=CpuUse(wall_s=1.0, num_cores=2, busy_s=1.9, own_s=1.0, stolen_s=0.2))
    assert busy.busy.startswith("others used the machine during 4 of 12 runs (foreign-load, stolen-time)")
    assert busy.busy in busy.notes and busy.lines == quiet.lines


def test_invalid_runs_are_left_out_of_the_bill_and_it_says_which_rule_they_broke() -> None:
    wrong = [
        broken("other-steps", make_run(run_id=f"a0-{index}"), "it took 8 of 9 steps") for index in range(2)
    ]
    bill = bill_of(6, 2.0, findings=wrong)
    assert bill.num_rounds == 5
    (note,) = [note for note in bill.notes if "other-steps" in note]
    assert note.startswith("2 of 13 runs broke other-steps and are left out (a0-0: it took 8 of 9 steps)")
    about_rounds = broken("drift", make_run(run_id="a0-0"), "it drifts")
    assert bill_of(6, 2.0, findings=[about_rounds]).num_rounds == 6
    unseen = bill_of(6, 2.0, findings=[broken("tokens-wrong", make_run(run_id="seen"), "wrong")])
    assert any("tokens-wrong" in note for note in unseen.notes)
    assert any("no run with device spans" in note for note in unseen.notes)


def test_without_any_whole_round_every_figure_is_null() -> None:
    seen = make_run(run_id="seen", instrument="events", repeats={FLAGS: 1})
    (bill,) = arm_bills([seen], lambda _: steps(), lambda _: spans(4))
    assert bill.lines == () and bill.num_rounds == 0
    assert arm_bills([make_run(run_id="plain")], lambda _: steps(), lambda _: []) == ()


# The command itself


def cost_command(scenario: Path, results: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "suite", "cost", str(scenario), "-o", str(results), *options]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def test_a_real_run_prints_and_keeps_the_bill(scenario: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    options = ("--only", f"{FLAGS},{MERGE},place", "--rounds", "5", "--json")
    done = subprocess.run(
        cost_command(scenario, results, *options),
        capture_output=True,
        text=True,
        env=environment(),
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    (folder,) = results.iterdir()
    kept = json.loads((folder / "cost.json").read_text(encoding="utf-8"))
    assert document == {"folder": str(folder), "report": str(folder / "report.html"), **kept}
    (bill,) = kept["bills"]
    assert bill["arm"] == "refresh" and bill["num_rounds"] == 5
    lines = {(line["kind"], line["span"]): line for line in bill["lines"]}
    for kind in ("decode", "mixed"):
        for span in (FLAGS, MERGE):
            line = lines[kind, span]
            assert line["commands_per_step"] == 1 and line["device_us"] > 0 and line["num_rounds"] == 5
            assert line["cost_low_us"] < line["cost_us"] < line["cost_high_us"]
    assert "no step of this arm has a command of place" in bill["notes"][0]
    runs = load_run(folder).runs
    assert len(runs) == 2 + 5 * 3
    assert all(run.tokens is not None and run.tokens.is_right for run in runs)
    assert not any(run.is_measured for run in runs)
    assert_folder_is_whole(folder, kept["bills"])


def assert_folder_is_whole(folder: Path, bills: object) -> None:
    """With a summary and a page that hold the bill, and made anew by `report` no less."""
    for _ in range(2):
        assert not load_run(folder).is_interrupted
        assert json.loads((folder / "summary.json").read_text(encoding="utf-8"))["amplified"] == bills
        assert FLAGS in (folder / "report.html").read_text(encoding="utf-8")
        reported = invoke("report", folder, "--json")
        assert reported.exit_code == 0 and json.loads(reported.stdout)["status"] == "completed"


def test_an_interrupt_keeps_the_rounds_there_are(scenario: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    with subprocess.Popen(
        cost_command(scenario, results, "--rounds", "1000", "--budget-s", "600", "--only", FLAGS),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as process:
        deadline = time.monotonic() + 120
        while sum(path.read_bytes().count(b"\n") for path in results.glob("*/runs.jsonl")) < 8:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "interrupted: these are partial results" in output
    (folder,) = results.iterdir()
    kept = json.loads((folder / "cost.json").read_text(encoding="utf-8"))
    assert kept["status"] == "interrupted" and kept["bills"][0]["num_rounds"] >= 2
    assert load_run(folder).is_interrupted
    assert json.loads((folder / "summary.json").read_text(encoding="utf-8"))["status"] == "interrupted"


# The bill on the page


def test_the_page_shows_the_bill_with_its_exact_figures_or_how_to_get_one() -> None:
    one = Series("s", "c", "s", "refresh", (), (), bill=bill_of(6, 2.0))
    (row,) = [row for row in bill(one).rows if row[0].lines[0].text == "decode"]
    (line,) = [line for line in bill_of(6, 2.0).lines if line.kind == "decode"]
    assert row[1].lines[0].text == FLAGS and line.cost is not None
    assert row[2].lines[0].exact == line.cost.mean_us and " to " in row[2].lines[0].note
    assert row[4].lines[0].exact == 4.0 and "one message" in row[5].lines[0].text
    assert row[6].lines[0].text == "decided"
    few = bill(replace(one, bill=bill_of(3, 2.0))).rows
    (undecided,) = [row for row in few if row[0].lines[0].text == "decode"]
    assert undecided[6].lines[0].text.startswith("cannot tell: 3 of 5 rounds")
    assert "python -m suite cost" in bill(replace(one, bill=None)).reason


def test_spans_that_cannot_be_read_cost_their_own_figures_only() -> None:
    def damaged(run_id: str):
        raise SuiteError(f"cannot read {run_id}")

    for spans_of, why in ((damaged, "cannot read seen"), (lambda _: [], "the spans of seen are gone")):
        told = bill_of(6, 2.0, spans_of)
        (line,) = [line for line in told.lines if (line.kind, line.span) == ("decode", FLAGS)]
        assert line.cost is not None and line.cost.is_decided and line.times.device_us is None
        assert any(why in note for note in told.notes)
        assert not any("no step of this arm" in note for note in told.notes)


def test_what_was_not_timed_is_not_said_to_be_absent() -> None:
    seen = make_run(run_id="seen", instrument="events", repeats={FLAGS: 1, MERGE: 1})
    (told,) = arm_bills([seen], lambda _: steps(), lambda _: spans(4))
    assert any(note == f"not timed, for want of a whole round: {FLAGS}" for note in told.notes)
    assert any(note == f"no step of this arm has a command of {MERGE}" for note in told.notes)
