"""What a finished folder has to say in the terminal."""

from __future__ import annotations

from records import make_run

from suite.publish import gate_warnings, run_warnings


def test_an_arm_that_was_not_let_schedule_asynchronously_is_a_warning_once() -> None:
    gated = {"scheduling": "sync", "scheduling_reason": "switched off: the reason"}
    runs = [
        make_run(arm="gated", **gated),
        make_run(arm="gated", **gated),
        make_run(arm="gated", scheduling="async", scheduling_reason="automatic"),
        make_run(arm="sync-rows", scheduling="sync", scheduling_reason="asked for"),
    ]
    (text,) = gate_warnings(runs)
    assert "arm gated of" in text
    assert "switched off: the reason" in text


def test_what_measured_runs_warn_of_is_said_once_for_each_arm_and_case() -> None:
    runs = [
        make_run(arm="ids", is_warmup=True, warnings=("in the warm-up",)),
        make_run(arm="ids", warnings=("gave 3.0 %",)),
        make_run(arm="ids", warnings=("gave 3.1 %",)),
        make_run(arm="refresh", case_label="ratio=1", warnings=("gave 4.0 %",)),
        make_run(arm="skip"),
    ]
    assert run_warnings(runs) == [
        "arm ids of smoke: gave 3.0 %",
        "arm refresh of smoke [ratio=1]: gave 4.0 %",
    ]
