"""What a finished folder has to say in the terminal."""

from __future__ import annotations

from records import make_run

from suite.publish import gate_warnings


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
