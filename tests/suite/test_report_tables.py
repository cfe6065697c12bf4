"""The report's words and tables: numbers are the data's, what is undefined says why."""

from __future__ import annotations

import html
import re
import statistics

import pytest
import report_fabrication as fabricate
from report_fabrication import FakeLoaded

from runner.inputs.arms import ARMS
from suite.record import Status
from suite.report import tables
from suite.report.answer import points
from suite.report.data import ReportData, Series, from_loaded
from suite.report.page import render
from suite.report.scenario_panels import believe
from suite.report.tables import Cell, Table
from suite.report.wording import number, quantity


def words(cell: Cell) -> str:
    return " ".join(f"{line.text} {line.note}" for line in cell.lines).replace("\u00a0", " ")


def column(table: Table, name: str) -> list[Cell]:
    return [row[table.columns.index(name)] for row in table.rows]


def only_series(loaded: FakeLoaded) -> Series:
    (series,) = from_loaded(loaded).series
    return series


def answer(data: ReportData) -> str:
    """All points in one paragraph."""
    return " ".join(point.plain for point in points(data.scenarios[0])).replace("\u00a0", " ")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0"),
        (5.0, "5"),
        (12345.0, "12,345"),
        (12345.6, "12,346"),
        (412.345, "412.3"),
        (0.012347, "0.01235"),
        (-2.5, "-2.500"),
        (1.234567e-6, "1.235e-06"),
        (float("nan"), "n/a"),
    ],
)
def test_a_number_has_four_digits(value: float, shown: str) -> None:
    assert number(value) == shown


def test_a_quantity_is_not_broken_from_its_unit() -> None:
    assert quantity(1.5, "ms") == "1.500\u00a0ms"


def test_the_verdict_shows_the_median_over_measured_rounds_exactly() -> None:
    loaded = fabricate.loaded(num_rounds=4)
    table = tables.verdicts(from_loaded(loaded))
    measured = [run for run in loaded.runs if not run.is_warmup]
    for heading, name in (("Output throughput", "output_throughput"), ("TTFT", "median_ttft_ms")):
        values = [run.metrics[name].value for run in measured]
        (cell,) = column(table, heading)
        assert cell.lines[0].exact == statistics.median(value for value in values if value is not None)
        assert "n = 4 rounds" in words(cell)


def test_an_arm_is_explained_where_it_stands_first_and_only_there() -> None:
    data = from_loaded(fabricate.loaded(cases=("a=0", "a=1"), arms=("sync-ids", "ids"), num_rounds=1))
    arms = column(tables.verdicts(data), "Arm")
    assert [cell.lines[0].text for cell in arms] == ["sync-ids", "ids"] * 2
    assert [cell.hint for cell in arms] == [ARMS["sync-ids"].description, ARMS["ids"].description, "", ""]
    page = render(data)
    shown = [html.unescape(found) for found in re.findall('<small class="hint">(.*?)</small>', page)]
    assert [hint for hint in shown if hint in {arm.description for arm in ARMS.values()}] == [
        cell.hint for cell in arms[:2]
    ]


def test_four_choices_that_are_no_preset_have_nothing_more_to_say() -> None:
    (cell,) = column(tables.verdicts(from_loaded(fabricate.loaded(arms=("async/rows/skip/where",)))), "Arm")
    assert cell.hint == ""


def test_a_reference_arm_that_ran_twice_is_told_only_where_one_did() -> None:
    loaded = fabricate.loaded()
    assert "ran twice" not in tables.verdicts(from_loaded(loaded)).note
    loaded.runs[-1] = loaded.runs[-1].model_copy(update={"is_aa": True})
    assert "ran twice" in tables.verdicts(from_loaded(loaded)).note


def test_how_image_rows_attend_is_told_for_each_case_and_is_no_guess() -> None:
    loaded = fabricate.loaded(num_rounds=1)
    (scenario,) = from_loaded(loaded).scenarios
    table = tables.image_attention(scenario)
    assert table.rows == () and table.reason.startswith("n/a: a text model, or a folder from before")
    for case, kind in (("one", "causal"), ("two", "bidirectional")):
        loaded.runs.append(fabricate.run_record(case, case=case, image_attention=kind))
    (scenario,) = from_loaded(loaded).scenarios
    table = tables.image_attention(scenario)
    assert [(words(case).strip(), words(told).partition(":")[0]) for case, told in table.rows] == [
        ("one", "causal"),
        ("two", "bidirectional"),
    ]
    assert table in believe(scenario).tables


def test_warm_up_and_failed_runs_enter_no_figure() -> None:
    loaded = fabricate.loaded(num_rounds=3)
    failed = fabricate.run_record(
        "f", round_number=3, status=Status.FAILED, failure=fabricate.failure(), duration_s=9.0
    )
    loaded.runs.append(failed)
    series = only_series(loaded)
    assert len(series.values("output_throughput")) == 3
    assert (series.num_warmup, series.num_failed) == (1, 1)
    assert answer(from_loaded(loaded)).endswith(" 1 run failed; see below.")


def test_n_says_how_many_rounds_are_invalid_of_times_and_of_nothing_else() -> None:
    loaded = fabricate.loaded(num_rounds=8, has_warmup=False)
    loaded.summary = {
        "findings": [
            {"run_id": loaded.runs[place].run_id, "rule": "foreign-load", "message": "", "remedy": ""}
            for place in (2, 5)
        ]
    }
    data = from_loaded(loaded)
    (cell,) = column(tables.verdicts(data), "Output throughput")
    assert "n = 6 of 8 rounds: 2 INVALID (foreign-load)" in words(cell)
    (cell,) = column(tables.more_verdicts(data.scenarios[0]), "Steps")
    assert "n = 8 rounds" in words(cell)


def test_the_answer_gives_tokens_and_throughput_with_n_and_spread() -> None:
    loaded = fabricate.loaded(num_rounds=5, num_requests=24, num_output=8)
    text = answer(from_loaded(loaded))
    values = sorted(run.metrics["output_throughput"].value or 0 for run in loaded.runs if not run.is_warmup)
    assert "All 1,152 output tokens checked are right, held against transformers alone (144 req" in text
    assert f"median {number(values[2])} tok/s ({number(values[0])} to {number(values[4])} tok/s" in text
    assert "n = 5 rounds" in text


def test_cases_are_told_apart_only_where_their_rounds_lie_apart() -> None:
    loaded = fabricate.loaded(cases=("a", "b"), num_rounds=5)
    assert "Their rounds do not overlap." in answer(from_loaded(loaded))
    loaded = fabricate.loaded(arms=("sync-ids", "ids"), num_rounds=5)
    assert "Whether they differ one cannot tell: their rounds overlap." in answer(from_loaded(loaded))


@pytest.mark.parametrize(("num_rounds", "told"), [(1, "one round"), (2, "2 rounds"), (4, "4 rounds")])
def test_too_few_rounds_tell_nothing_apart_though_they_do_not_overlap(num_rounds: int, told: str) -> None:
    text = answer(from_loaded(fabricate.loaded(cases=("a", "b"), num_rounds=num_rounds)))
    assert f"Whether they differ {told} cannot tell: at least 5 are needed." in text
    assert "overlap" not in text


def test_one_round_alone_cannot_tell_how_sure_it_is() -> None:
    text = answer(from_loaded(fabricate.loaded(num_rounds=1)))
    assert "(no spread, n = 1 round). How sure that is one round cannot tell." in text


def test_wrong_tokens_come_first_and_speed_is_not_judged() -> None:
    loaded = fabricate.loaded(num_rounds=1)
    requests = [fabricate.request(index) for index in range(3)]
    loaded.add(
        fabricate.run_record("wrong", requests, round_number=1, num_wrong=2),
        fabricate.step_frame(8),
        fabricate.request_frame(requests),
    )
    text = answer(from_loaded(loaded))
    assert text.startswith("Tokens are WRONG: 2 wrong of ")
    assert "first in round 2, request request-0, output token 3" in text
    assert "not judged" in text and "tok/s" not in text


def test_a_wrong_token_in_warm_up_counts() -> None:
    loaded = fabricate.loaded(num_rounds=1)
    tokens = loaded.runs[0].tokens
    assert loaded.runs[0].is_warmup and tokens is not None
    spoiled = tokens.model_copy(update={"num_wrong": 1, "first_wrong": ("request-2", 0)})
    loaded.runs[0] = loaded.runs[0].model_copy(update={"tokens": spoiled})
    assert tables.token_mark(only_series(loaded)) == "wrong"
    assert "warm-up round 1, request request-2" in answer(from_loaded(loaded))


def test_unchecked_tokens_cannot_be_told() -> None:
    loaded = fabricate.loaded(num_rounds=2)
    loaded.runs[-1] = loaded.runs[-1].model_copy(update={"tokens": None})
    text = answer(from_loaded(loaded))
    assert "Cannot tell whether tokens are right: 1 of 2 rounds not checked" in text


def test_without_a_completed_run_nothing_can_be_told() -> None:
    data = from_loaded(fabricate.all_failed())
    assert answer(data) == "Cannot tell: no measured run completed (3 failed, 0 interrupted)."
    (row,) = tables.verdicts(data).rows
    assert "n/a: no run completed (3 failed" in words(row[2])


def test_failed_runs_are_listed_with_kind_message_and_detail() -> None:
    table = tables.unmeasured_runs(from_loaded(fabricate.all_failed()))
    assert [words(cell).strip() for cell in table.rows[1]] == [
        "smoke · sync-ids · round 2",
        "failed",
        "worker_died",
        "the device process died",
        "Traceback: step 7, forward",
    ]


def test_one_output_token_leaves_itl_undefined_with_its_reason() -> None:
    table = tables.verdicts(from_loaded(fabricate.loaded(num_output=1)))
    (itl,), (ttft,) = column(table, "ITL"), column(table, "TTFT")
    assert words(itl).strip() == "n/a: one output token"
    assert ttft.lines[0].exact is not None


def test_requests_that_failed_are_listed_with_their_errors() -> None:
    data = from_loaded(fabricate.none_finished())
    table = tables.failed_requests(data)
    assert len(table.rows) == 6
    assert words(table.rows[2][-1]).strip() == "request-2 needs 9 blocks, there are 8"
    assert "Throughput cannot be told: no request completed" in answer(data)


def test_tokens_of_each_request_add_up_over_rounds_wrong_first() -> None:
    loaded = fabricate.loaded(num_rounds=2, num_requests=4, num_output=8)
    requests = [fabricate.request(index) for index in range(4)]
    frame = fabricate.request_frame(requests)
    frame.loc[2, ["num_tokens_right", "num_tokens_wrong"]] = [7, 1]
    frame = frame.drop(columns="first_wrong")  # as older result files have it
    loaded.add(
        fabricate.run_record("w", requests, round_number=2, num_wrong=1), fabricate.step_frame(8), frame
    )
    table = tables.request_tokens(from_loaded(loaded).scenarios[0])
    assert words(column(table, "Request")[0]).strip() == "request-2"
    assert column(table, "Right")[0].lines[0].exact == 23
    assert column(table, "Wrong")[0].lines[0].exact == 1
    assert words(column(table, "First divergence")[0]).strip() == "n/a: position not recorded"
    assert [words(cell).strip() for cell in column(table, "Verdict")][1:] == ["✓ right"] * 3


def test_every_wrong_request_shows_where_it_first_went_wrong() -> None:
    loaded = fabricate.loaded(num_rounds=1, num_requests=4, num_output=8)
    requests = [fabricate.request(index) for index in range(4)]
    for round_number, at in ((1, 6), (2, 3)):
        frame = fabricate.request_frame(requests)
        frame.loc[[1, 2], ["num_tokens_right", "num_tokens_wrong", "first_wrong"]] = [7, 1, at]
        loaded.add(
            fabricate.run_record(f"w{round_number}", requests, round_number=round_number),
            fabricate.step_frame(8),
            frame,
        )
    table = tables.request_tokens(from_loaded(loaded).scenarios[0])
    shown = [(words(row[0]).strip(), words(row[6]).strip()) for row in table.rows]
    assert table.columns[6] == "First divergence"
    assert shown == [
        ("request-1", "round 2, output token 6"),
        ("request-2", "round 2, output token 6"),
        ("request-0", "none"),
        ("request-3", "none"),
    ]


def test_supplied_rows_and_wasted_tokens_stand_beside_each_request() -> None:
    loaded = fabricate.loaded(num_rounds=2, num_requests=3)
    for frame in loaded.request_frames.values():
        frame.loc[1, ["num_supplied_tokens", "num_wasted_tokens"]] = [17, 1]
    table = tables.request_tokens(from_loaded(loaded).scenarios[0])
    assert [cell.lines[0].exact for cell in column(table, "Supplied rows")] == [0, 17, 0]
    assert [cell.lines[0].exact for cell in column(table, "Wasted tokens")] == [0, 2, 0]
    for run_id, frame in loaded.request_frames.items():
        loaded.request_frames[run_id] = frame.drop(columns=["num_supplied_tokens", "num_wasted_tokens"])
    table = tables.request_tokens(from_loaded(loaded).scenarios[0])
    assert words(column(table, "Wasted tokens")[0]).strip() == "n/a: not recorded"


def test_routes_are_counted_by_kind_of_step() -> None:
    loaded = fabricate.loaded(num_rounds=2, num_steps=64)
    for frame in loaded.step_frames.values():
        is_decode = frame["kind"] == "decode"
        frame.loc[is_decode, "ids_route"] = "slice"
        frame.loc[is_decode & (frame["step_id"] % 16 == 7), "ids_route"] = "scatter"
        frame.loc[~is_decode, "embeds_route"] = "merge"
    table = tables.routes(only_series(loaded))
    shown = [tuple(words(cell).strip() for cell in row[:3]) for row in table.rows]
    assert shown == [
        ("decode", "scatter", "lookup"),
        ("decode", "slice", "lookup"),
        ("mixed", "host", "merge"),
        ("prefill", "host", "merge"),
    ]
    assert [cell.lines[0].exact for cell in column(table, "n steps")] == [8, 88, 16, 16]
    shares = [cell.lines[0].exact for cell in column(table, "Share of the kind")]
    assert shares == pytest.approx([100 / 12, 1100 / 12, 100, 100])


def test_a_negative_control_has_a_verdict_on_tokens_and_none_on_speed() -> None:
    data = from_loaded(fabricate.with_controls())
    table, more = tables.verdicts(data), tables.more_verdicts(data.scenarios[0])
    tokens, speeds = column(table, "Tokens"), column(table, "Output throughput")
    assert [words(cell).split(" n =")[0].strip() for cell in tokens] == [
        "✓ right",
        "wrong, as it must be: 10 wrong of 64",
        "not exercised: 0 wrong of 64",
    ]
    assert speeds[0].lines[0].exact is not None
    for heading in ("Output throughput", "TTFT", "ITL"):
        for cell in column(table, heading)[1:]:
            assert words(cell).strip() == "n/a: wrong by design, speed not judged"
    assert [cell.lines[0].exact for cell in column(more, "Steps")] == [64, 8, 8]


def test_the_answer_judges_tokens_and_speed_without_the_negative_controls() -> None:
    text = answer(from_loaded(fabricate.with_controls()))
    assert "All 384 output tokens checked are right, held against transformers alone (48 req" in text
    assert "not among these: stale wrong, as it must be; overwrite not exercised." in text
    assert "Output throughput of smoke · ids: median " in text


def test_controls_alone_have_no_speed_at_all() -> None:
    loaded = fabricate.with_controls()
    loaded.runs = [run for run in loaded.runs if run.is_control]
    text = answer(from_loaded(loaded))
    assert "wrong by design, not among these: " in text and "not judged" in text and "tok/s" not in text


def test_the_gates_decision_stands_beside_the_arm_with_its_reason() -> None:
    reason = "async scheduling is switched off: prompt_embeds on a multimodal model"
    loaded = fabricate.loaded(arms=("gated", "ids"), num_rounds=1)
    loaded.runs = [
        run.model_copy(update={"scheduling": "sync", "scheduling_reason": reason})
        if run.arm == "gated"
        else run
        for run in loaded.runs
    ]
    cells = column(tables.more_verdicts(from_loaded(loaded).scenarios[0]), "Scheduling")
    assert [words(cell).strip() for cell in cells] == [f"sync {reason}", "n/a: not recorded"]


def test_a_long_table_says_what_it_leaves_out() -> None:
    table = tables.request_tokens(from_loaded(fabricate.loaded(num_rounds=1, num_requests=250)).scenarios[0])
    assert len(table.rows) == tables.MAX_ROWS
    assert "100 of 250 rows" in table.note


def test_uploads_are_means_per_step_of_a_kind() -> None:
    loaded = fabricate.loaded(num_rounds=1, num_steps=64)
    steps = loaded.step_frames[loaded.runs[-1].run_id]
    decode = steps[steps["kind"] == "decode"]
    table = tables.uploads(only_series(loaded))
    (row,) = [row for row in table.rows if (words(row[0]), words(row[1])) == ("metadata ", "decode ")]
    assert row[2].lines[0].exact == pytest.approx(decode["bytes.metadata"].mean())
    assert row[3].lines[0].exact == 1
    assert row[4].lines[0].exact == len(decode)


def test_the_halves_of_a_ring_count_as_one_buffer() -> None:
    loaded = fabricate.loaded(num_rounds=1)
    for frame in loaded.step_frames.values():
        is_even = frame["step_id"] % 2 == 0
        for counter in ("bytes", "copies"):
            whole = frame.pop(f"{counter}.metadata")
            frame[f"{counter}.metadata.0"] = whole.where(is_even, 0)
            frame[f"{counter}.metadata.1"] = whole.where(~is_even, 0)
    table = tables.uploads(only_series(loaded))
    assert {words(row[0]).strip() for row in table.rows} == {"metadata", "pixels"}
    assert all(row[3].lines[0].exact == 1 for row in table.rows if words(row[0]).strip() == "metadata")


def test_findings_mark_the_arm_and_say_the_remedy() -> None:
    loaded = fabricate.loaded(num_rounds=3)
    run_id = loaded.runs[-1].run_id
    finding = {"run_id": run_id, "rule": "off-schedule", "message": "late", "remedy": "slow down"}
    loaded.summary = {"findings": [finding | {"is_timing": True}]}
    data = from_loaded(loaded)
    (cell,) = column(tables.verdicts(data), "Validity")
    assert words(cell) == "? INVALID for timing: off-schedule 1 run; see Validity"
    loaded.summary = {"findings": [finding | {"rule": "drift", "is_timing": True}]}
    (of_arm,) = column(tables.verdicts(from_loaded(loaded)), "Validity")
    assert words(of_arm) == "? INVALID for timing: drift its rounds taken together; see Validity"
    assert [words(cell).strip() for cell in tables.findings(data).rows[0]] == [
        "smoke · sync-ids · round 3",
        "off-schedule",
        "late",
        "slow down",
    ]


def test_an_older_result_file_without_a_metric_or_a_column_reads_na() -> None:
    loaded = fabricate.loaded(num_rounds=2)
    loaded.runs = [run.model_copy(update={"metrics": {}}) for run in loaded.runs]
    loaded.request_frames = {
        run_id: frame.drop(columns=["token_ns", "num_tokens_right", "kind"])
        for run_id, frame in loaded.request_frames.items()
    }
    loaded.step_frames = {run_id: frame[["step_id", "kind"]] for run_id, frame in loaded.step_frames.items()}
    data = from_loaded(loaded)
    (cell,) = column(tables.verdicts(data), "Output throughput")
    assert words(cell).strip() == "n/a: not in these result files"
    assert words(column(tables.request_tokens(data.scenarios[0]), "Kind")[0]).strip() == "n/a: not recorded"
    assert tables.uploads(data.series[0]).reason.startswith("n/a: ")


def test_two_cases_of_one_label_stay_apart() -> None:
    loaded = fabricate.loaded(num_rounds=1, cases=("a", "b"))
    loaded.runs = [run.model_copy(update={"case_label": "same"}) for run in loaded.runs]
    labels = [series.case_label for series in from_loaded(loaded).series]
    assert labels == ["same (id-a)", "same (id-b)"]


FEATURES = ("Cache hits", "Drafts accepted", "Log-probabilities")
REPEATED = "the prefix cache gave 40.0 % of prompt positions, though traffic.shared_prefix is not set"


def test_what_is_off_everywhere_has_no_column() -> None:
    loaded = fabricate.loaded(num_rounds=2)
    assert not set(FEATURES) & set(tables.more_verdicts(from_loaded(loaded).scenarios[0]).columns)
    requests = tables.request_tokens(from_loaded(loaded).scenarios[0])
    assert "Cached tokens" not in requests.columns and "Drafts accepted" not in requests.columns
    text = answer(from_loaded(loaded))
    assert "cache" not in text and "drafted" not in text


def test_hits_and_drafts_stand_in_every_row_where_any_arm_has_them() -> None:
    table = tables.more_verdicts(from_loaded(fabricate.with_features()).scenarios[0])
    off, on = (words(cell).strip() for cell in column(table, "Cache hits"))
    assert off == "off" and on.startswith("40 %") and "n = 2 rounds" in on
    off, on = (words(cell).strip() for cell in column(table, "Drafts accepted"))
    assert off == "off" and on.startswith("33.33 %") and "tokens a decode step" in on
    off, on = column(table, "Log-probabilities")
    assert words(off).startswith("n/a: none asked for")
    assert words(on).startswith("✗ 1 wrong n = 64 tokens; largest error 0.5") and on.mark == "wrong"


def test_the_answer_tells_hits_and_acceptance() -> None:
    text = answer(from_loaded(fabricate.with_features()))
    assert "The prefix cache gave a median of 40 % of prompt positions (40 % each time, n = 2 rounds" in text
    assert "Of 48 tokens drafted in 2 rounds 33.33 % were accepted." in text
    assert "Beware" not in text


def test_hits_of_prompts_not_meant_to_share_are_in_doubt_and_warned_of() -> None:
    data = from_loaded(fabricate.with_features([REPEATED]))
    off, on = column(tables.more_verdicts(data.scenarios[0]), "Cache hits")
    assert off.mark == "" and on.mark == "doubt" and "? repeated prompts" in words(on)
    assert answer(data).endswith(f" on · sync-ids: {REPEATED}.")


def test_each_request_shows_its_cached_tokens_and_drafts() -> None:
    table = tables.request_tokens(from_loaded(fabricate.with_features()).scenarios[0])
    cached = [words(cell).strip() for cell in column(table, "Cached tokens")]
    assert cached == ["0 of 80"] * 4 + ["32 of 80"] * 4
    assert [words(cell).strip() for cell in column(table, "Drafts accepted")][4:] == ["4 of 12"] * 4
    assert len({len(row) for row in table.rows} | {len(table.columns)}) == 1


def test_requests_of_older_files_show_that_drafts_were_not_recorded() -> None:
    loaded = fabricate.with_features()
    frames = loaded.request_frames
    for run_id, frame in frames.items():
        frames[run_id] = frame.drop(columns="num_accepted_tokens")
    table = tables.request_tokens(from_loaded(loaded).scenarios[0])
    assert {words(cell).strip() for cell in column(table, "Drafts accepted")} == {"n/a: not recorded"}


def test_the_time_of_hashing_is_shown_for_the_steps_that_hashed() -> None:
    off, on = from_loaded(fabricate.with_features()).series
    assert not any("hashing" in words(cell) for cell in column(tables.step_times(off), "Time"))
    rows = [row for row in tables.step_times(on).rows if "hashing prompts" in words(row[1])]
    assert [words(row[0]).strip() for row in rows] == ["prefill"]
    assert words(rows[0][-1]).strip() == "2 ms"
