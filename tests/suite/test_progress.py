"""What a terminal, a narrow terminal and a pipe are shown."""

from __future__ import annotations

import io

import pytest
from records import failed_request, make_request, make_run
from rich.console import Console

from runner.config import RunnerConfig
from suite.checks import Finding
from suite.metrics import run_metrics
from suite.plan import Options, for_check, make_plan
from suite.progress import (
    LineProgress,
    LiveProgress,
    make_console,
    make_progress,
    make_progress_console,
    outcome,
    print_results,
)
from suite.protocol import Progress
from suite.publish import Published
from suite.record import Failure, LogprobVerdict, Status
from suite.summary import summarise


@pytest.fixture
def plan(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text(
        "name: odd [red]name[/red]\nmodel: tiny-qwen3\n"
        "traffic: {num_requests: 2, prompt_tokens: 4, output_tokens: 4}\n"
    )
    return make_plan([file], Options())


def published(tmp_path, runs, **changes):
    values = {
        "path": tmp_path,
        "report": tmp_path / "report.html",
        "arms": summarise(runs, ()),
        "findings": (),
        "skipped": (),
        "warnings": (),
        "is_interrupted": False,
    }
    return Published(**(values | changes))


def printed(tmp_path, runs, console=None, **changes):
    stream = io.StringIO()
    print_results(console(stream) if console else make_console(stream), published(tmp_path, runs, **changes))
    return stream.getvalue()


def drive(progress, plan):
    (case,) = plan.cases
    with progress:
        progress.case_started(case)
        for run in case.runs():
            progress.run_started(case, run)
            progress.run_progressed(run, Progress(phase="run", num_steps=5, num_sent=1, num_requests=2))
            progress.run_progressed(run, Progress(phase="check"))
            record = make_run([make_request()], round=run.round, is_warmup=run.is_warmup)
            progress.run_finished(case, record)
        failure = Failure(kind="timeout", message="the run took longer than [5] s")
        progress.run_finished(case, make_run(status=Status.FAILED, failure=failure))


def test_a_pipe_gets_a_plain_line_for_each_run(plan):
    stream = io.StringIO()
    progress = make_progress(make_console(stream), plan)
    assert isinstance(progress, LineProgress)
    drive(progress, plan)
    text = stream.getvalue()
    assert "\x1b" not in text and "odd [red]name[/red]: 2 requests" in text
    assert "[1/4] sync-ids, warm-up round 1: 3 tok/s" in text
    assert "FAILED: timeout: the run took longer than [5] s" in text


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError("full"), ValueError("closed")])
def test_progress_goes_on_where_nobody_reads_it(plan, error):
    class Dead(io.StringIO):
        def write(self, text):
            raise error

    drive(make_progress(make_progress_console(Dead()), plan), plan)


def test_a_terminal_gets_a_live_bar_and_keeps_what_failed(plan):
    stream = io.StringIO()
    console = Console(
        file=stream, force_terminal=True, width=100, markup=False, highlight=False, color_system=None
    )
    progress = make_progress(console, plan)
    assert isinstance(progress, LiveProgress)
    drive(progress, plan)
    assert "FAILED: timeout" in stream.getvalue() and "odd [red]name[/red]" in stream.getvalue()


def test_a_dumb_terminal_gets_lines(plan, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    console = Console(file=io.StringIO(), force_terminal=True)
    assert isinstance(make_progress(console, plan), LineProgress)


def test_results_show_each_arm_with_tokens_throughput_n_and_latencies(tmp_path):
    runs = [make_run([make_request()], run_id=f"r{i}", duration_s=i + 1.0) for i in range(3)]
    text = printed(tmp_path, runs)
    row = next(line for line in text.splitlines() if "sync-ids" in line)
    assert "9 tokens right" in row and "1.500 (n=3)" in row and "10 / 10*" in row and "yes" in row
    assert text.rstrip().endswith(f"report: {tmp_path / 'report.html'}")
    assert "\x1b" not in text and "…" not in text


def test_rounds_that_are_invalid_are_counted_beside_those_that_are_left(tmp_path):
    runs = [make_run([make_request()], run_id=f"r{i}", round=i) for i in range(3)]
    finding = Finding("r1", "foreign-load", "80 % busy", "wait", True)
    text = printed(tmp_path, runs, arms=summarise(runs, (finding,)))
    assert "(n = 2 of 3 rounds: 1 INVALID (foreign-load))" in text
    drift = Finding("r1", "drift", "a trend", "wait", True)
    assert "(n=3)" in printed(tmp_path, runs, arms=summarise(runs, (drift,)))


def test_undefined_figures_are_na_and_wrong_tokens_shout(tmp_path):
    runs = [make_run([failed_request()], run_id="r0"), make_run([make_request()], run_id="r1", num_wrong=1)]
    assert "1 of 3 tokens WRONG" in printed(tmp_path, runs)
    assert "n/a / n/a" in printed(tmp_path, runs[:1])


def test_an_arm_with_wrong_tokens_gets_no_speed_whether_by_design_or_not(tmp_path):
    fine = make_run([make_request()], run_id="r0", arm="ids")
    wrong = make_run([make_request()], run_id="r1", num_wrong=1, arm="refresh")
    control = make_run([make_request()], run_id="r2", num_wrong=1, arm="stale", is_control=True)
    spared = make_run([make_request()], run_id="r3", arm="overwrite", is_control=True)
    rows = {
        line.split()[1]: line
        for line in printed(tmp_path, [fine, wrong, control, spared]).splitlines()
        if line.startswith(" smoke")
    }
    assert "3 (n=1)" in rows["ids"] and "10 / 10*" in rows["ids"]
    assert "1 of 3 tokens WRONG" in rows["refresh"]
    assert "wrong, as it must be: 1 of 3 tokens wrong" in rows["stale"] and "WRONG" not in rows["stale"]
    assert "not exercised: 0 of 3 tokens wrong" in rows["overwrite"]
    for arm, word in (("refresh", "wrong tokens"), ("stale", "wrong arm"), ("overwrite", "wrong arm")):
        assert rows[arm].count(word) == 4 and "(n=1)" not in rows[arm] and "/" not in rows[arm]


def test_a_negative_control_does_not_stop_the_eye_while_it_runs(plan):
    assert "negative control: 1 of 3 tokens wrong" in outcome(
        make_run([make_request()], num_wrong=1, arm="stale", is_control=True)
    )


def test_an_arm_that_only_repeated_commands_is_neither_valid_nor_not(tmp_path):
    def last_cell(**changes):
        text = printed(tmp_path, [make_run([make_request()], arm="refresh", **changes)])
        (row,) = [line for line in text.splitlines() if " refresh " in line]
        return row.split()[-1]

    assert last_cell() == "yes"
    assert last_cell(repeats={"merge": 9}) == "n/a"


def test_an_order_of_a_token_check_is_named(plan):
    stream = io.StringIO()
    check = for_check(plan)
    (case,) = check.cases
    with make_progress(make_console(stream), check) as progress:
        progress.case_started(case)
        progress.run_finished(case, make_run([make_request()], round=1, rotation=1))
    assert "2 of the requests in 2 orders" in stream.getvalue()
    assert "[1/2] sync-ids, order 2:" in stream.getvalue()


def test_a_narrow_terminal_gets_one_figure_a_line_and_loses_none(tmp_path):
    def narrow(stream):
        return Console(
            file=stream, force_terminal=True, width=40, markup=False, highlight=False, color_system=None
        )

    text = printed(tmp_path, [make_run([make_request()])], narrow)
    assert "TTFT ms p50 / p99: 10 / 10" in text and "tokens: 3 tokens right" in text and "…" not in text


def test_no_color_is_respected(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    text = printed(
        tmp_path, [make_run([make_request()])], lambda stream: Console(file=stream, force_terminal=True)
    )
    assert "\x1b[3" not in text and "\x1b[9" not in text


def test_skipped_doubted_and_interrupted_are_told(tmp_path):
    finding = Finding("r0", "off-schedule", "late by 3 s", "leave a core", True)
    more = [Finding(f"r{i}", "foreign-load", f"{i} % busy", "wait", True) for i in (50, 51, 52)]
    text = printed(
        tmp_path,
        [make_run([make_request()])],
        findings=(finding, finding, *more),
        skipped=(("gpu", "needs a CUDA device"),),
        warnings=("runs.jsonl, line 3: cut short, left out",),
        is_interrupted=True,
    )
    assert text.count("INVALID (off-schedule): late by 3 s; leave a core") == 1
    assert text.count("foreign-load") == 1
    assert "INVALID (foreign-load): 50 % busy (and 2 more runs like it); wait" in text
    assert "skipped gpu: needs a CUDA device" in text
    assert "warning: runs.jsonl, line 3" in text
    assert "interrupted: these are partial results" in text


def test_nothing_run_at_all_still_prints(tmp_path):
    assert "report:" in printed(tmp_path, [])


def test_an_outcome_without_throughput_says_so():
    assert outcome(make_run([failed_request()])).startswith("no throughput, 0 steps")


def test_hit_and_acceptance_rates_stand_in_every_row_where_any_arm_has_them(tmp_path):
    requests = [make_request(num_prompt_tokens=8, num_cached_tokens=2, num_drafted_tokens=4)]
    on = run_metrics(requests, (), 1.0, RunnerConfig(prefix_caching=True, num_speculative_tokens=2))
    runs = [make_run(requests, arm="ids", metrics=on), make_run(requests, arm="skip")]
    header, _, first, second = printed(tmp_path, runs).splitlines()[1:5]
    assert "cache hits %" in header and "drafts accepted %" in header
    assert first.split()[-4:] == ["25", "0", "0", "yes"] and second.split()[-4:] == ["off", "off", "0", "yes"]
    assert "cache hits" not in printed(tmp_path, runs[1:])


def test_log_probabilities_are_told_where_they_were_checked():
    right = LogprobVerdict(num_checked=6, num_wrong=0, max_error=2.1e-6)
    run = make_run([make_request()], logprobs=right)
    assert outcome(run).endswith("3 tokens right, log-probabilities right to 2e-06")
    wrong = LogprobVerdict(num_checked=6, num_wrong=2, max_error=0.5)
    assert outcome(run.model_copy(update={"logprobs": wrong})).endswith(
        "log-probabilities of 2 of 6 tokens WRONG"
    )
    control = run.model_copy(update={"logprobs": wrong, "is_control": True})
    assert "WRONG" not in outcome(control) and "log-prob" not in outcome(make_run([make_request()]))
    (arm,) = summarise([run, run.model_copy(update={"logprobs": wrong})], ())
    assert arm.logprobs == LogprobVerdict(num_checked=12, num_wrong=2, max_error=0.5)


def test_goodput_is_a_column_where_gates_are_set_and_never_of_a_wrong_arm(tmp_path):
    requests = [make_request("a"), make_request("b", token_ms=(400.0, 500.0))]
    gated = run_metrics(requests, (), 1.0, gates={"ttft": 100.0})
    right = make_run(requests, metrics=gated)
    wrong = make_run(requests, metrics=gated, arm="ids", num_wrong=1)
    text = printed(tmp_path, [right, wrong])
    (header,) = [line for line in text.splitlines() if "good req/s" in line]
    rows = {line.split()[1]: line for line in text.splitlines() if line.strip().startswith("smoke")}
    assert rows["sync-ids"].split()[-3] == "1"
    assert rows["ids"].count("wrong tokens") == 5 and "good req/s" in header
    assert "good req/s" not in printed(tmp_path, [make_run(requests)])
