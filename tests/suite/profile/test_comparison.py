"""Our records beside a capture: counts, times, what is allowed to differ, and vLLM's scopes."""

from __future__ import annotations

import pytest

from runner.spans import HOST_PHASES, OPERATIONS, Span
from suite.profile.capture import Capture, CapturedRange, Total, totals
from suite.profile.comparison import beside_vllm, compare, span_totals
from suite.profile.scopes import SCOPES, our_spans
from suite.profile.wording import FORKSERVER, capture_lines, comparison_lines

US = 1000


def make_capture(*ranges):
    return Capture("nsys", "2022.4", (), tuple(ranges), (), ())


def captured(name, start, end, step_id=0, domain="stepcost", is_nested=True):
    return CapturedRange(name, domain, 1, 1, start, end, is_nested, step_id)


def recorded(name, start, end, step_id=0, lane="host"):
    return Span(step_id, name, lane, start, end)


def only(comparison):
    (row,) = comparison.rows
    return row


@pytest.mark.parametrize(
    ("length_us", "more_us", "verdict"),
    [
        (10, 1.999, "equal"),
        (10, 2.001, "differs"),  # 5 % of 10 us are half a microsecond, so 2 us are allowed
        (10, -2.001, "differs"),
        (1000, 49.9, "equal"),
        (1000, 50.1, "differs"),
    ],
)
def test_totals_may_differ_by_5_percent_or_2_us_a_range(length_us, more_us, verdict):
    ours = recorded("launch", 0, length_us * US)
    theirs = captured("launch", 7, 7 + round((length_us + more_us) * US))
    row = only(compare([ours], make_capture(theirs)))
    assert row.verdict == verdict
    assert row.difference_ns_a_range == pytest.approx(more_us * US)


def test_the_allowance_is_that_of_a_range_not_of_the_total():
    ours = [recorded("launch", at, at + 10 * US, at) for at in range(100)]
    theirs = [captured("launch", at, at + 13 * US, at) for at in range(100)]
    assert only(compare(ours, make_capture(*theirs))).verdict == "differs"


@pytest.mark.parametrize(("n_ours", "n_theirs"), [(2, 1), (1, 2)])
def test_a_missing_or_added_range_is_told(n_ours, n_theirs):
    ours = [recorded("launch", 0, 10)] * n_ours
    theirs = [captured("launch", 0, 10)] * n_theirs
    assert only(compare(ours, make_capture(*theirs))).verdict == "count differs"


def test_a_span_that_one_side_lacks_is_told():
    comparison = compare([recorded("merge", 0, 1)], make_capture(captured("flags", 0, 1)))
    assert {row.name: row.verdict for row in comparison.rows} == {
        "merge": "not captured",
        "flags": "not recorded",
    }
    assert not comparison.is_equal


def test_ranges_of_others_take_no_part():
    theirs = captured("launch", 0, 10), captured("launch", 0, 99, domain=None)
    comparison = compare([recorded("launch", 0, 10)], make_capture(*theirs))
    assert comparison.is_equal


def test_steps_are_counted_on_both_sides():
    ours = [recorded("step decode slice/merge", 0, 10, number, "steps") for number in range(3)]
    theirs = [captured("step decode slice/merge", 0, 10, number, is_nested=False) for number in range(2)]
    comparison = compare(ours, make_capture(*theirs))
    assert (comparison.num_steps_ours, comparison.num_steps_captured) == (3, 2)
    assert not comparison.is_equal


def test_a_span_without_times_counts_but_adds_nothing():
    ours = [recorded("launch", 0, 10), Span(1, "launch", "host", None, None, "never recorded")]
    row = only(compare(ours, make_capture(captured("launch", 0, 10))))
    assert row.ours == Total(2, 1, 10)


def test_of_a_cuda_device_the_enqueue_is_compared_not_the_stream():
    ours = [recorded("forward", 0, 10), recorded("forward", 100, 9000, lane="compute")]
    row = only(compare(ours, make_capture(captured("forward", 0, 10))))
    assert (row.lane, row.verdict) == ("host", "equal")


@pytest.mark.parametrize("is_followed", [True, False])
def test_a_device_process_that_was_not_followed_is_told(is_followed):
    ours = [recorded("launch", 0, 10), recorded("forward", 10, 20, lane="compute")]
    theirs = [captured("launch", 0, 10), *([captured("forward", 10, 20)] if is_followed else [])]
    comparison = compare(ours, make_capture(*theirs))
    assert comparison.lacks_device_process is not is_followed
    assert (FORKSERVER in comparison_lines(comparison)) is not is_followed


def test_a_capture_without_any_range_of_ours_lacks_more_than_the_device():
    comparison = compare([recorded("launch", 0, 10), recorded("a", 1, 2, lane="compute")], make_capture())
    assert not comparison.lacks_device_process


@pytest.mark.parametrize(("version", "is_told"), [("2022.4.2.1", True), ("2024.1.1", False), (None, False)])
def test_a_capture_of_nothing_of_ours_says_where_a_version_may_be_why(version, is_told):
    capture = Capture("nsys", version, (), (), (), ())
    assert any("nvtx 0.2.12 and later" in line for line in capture_lines(capture)) is is_told


def test_of_a_window_only_steps_well_within_it_are_compared():
    def of(step_id):
        return recorded("stage", step_id, step_id + 5, step_id), recorded(
            "step a", step_id, step_id + 9, step_id, "steps"
        )

    ours = [span for step_id in range(10) for span in of(step_id)]
    theirs = [captured("step a", n, n + 9, n, is_nested=False) for n in range(3, 8)]
    theirs += [captured("stage", n, n + 5, n) for n in range(4, 8)]  # that of step 3 was before the window
    theirs.append(captured("stepcost window", 3, None, None, is_nested=False))
    comparison = compare(ours, make_capture(*theirs), is_window=True)
    assert comparison.is_equal
    assert {row.ours.num_ranges for row in comparison.rows} == {3}
    assert not compare(ours, make_capture(*theirs)).is_equal


# vLLM


def test_every_scope_names_spans_that_exist():
    known = {*HOST_PHASES, *OPERATIONS, "upload.*"}
    assert {name for names in SCOPES.values() for name in names} <= known


def test_a_capture_of_vllm_is_laid_beside_our_spans():
    ranges = [
        captured("gpu_model_runner: preprocess", 0, 30, None, None),
        captured("gpu_model_runner: preprocess", 50, 90, None, "vllm"),
        captured("gpu_model_runner: forward", 90, 100, None, None),
        captured("gpu_model_runner: something new", 100, 101, None, None),
    ]
    own = [recorded("stage", 0, 2), recorded("upload.flags", 2, 3), recorded("forward", 3, 4)]
    preprocess, forward, new = beside_vllm(make_capture(*ranges), span_totals(own))
    assert preprocess.theirs == Total(2, 0, 70)
    assert preprocess.our_names == ("stage", "upload.flags") and preprocess.ours.total_ns == 3
    assert forward.our_names == ("forward",)
    assert new.our_names == () and our_spans(new.scope) == ()


def test_totals_stand_in_order_of_first_start():
    assert list(totals([captured("b", 5, 6), captured("a", 1, 2), captured("b", 0, 1)])) == ["b", "a"]
