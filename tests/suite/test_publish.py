"""What a finished folder has to say in the terminal."""

from __future__ import annotations

import math
from pathlib import Path

from records import make_request, make_run, make_step

from suite.publish import gate_warnings, publish, run_warnings
from suite.store import RunFolder


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


def test_a_machine_that_became_slower_is_told_beside_the_figures_and_no_arm_is_in_doubt(
    tmp_path: Path,
) -> None:
    folder = RunFolder.create(tmp_path, "slower")
    case = {"scenario": "smoke", "case_id": make_run().case_id, "reference": "sync-ids"}
    case["primary_metrics"] = ["output_throughput"]
    folder.write_config({"scenarios": [{"name": "smoke"}], "invocation": {}, "cases": [case], "skipped": []})
    folder.write_environment({"command_line": "python -m suite run"})
    request = make_request("a", num_prompt_tokens=1)
    steps = [make_step(i, 10 * i, 10 * i + 10, num_rows=1, num_tokens=1) for i in range(3)]
    for number in range(6):
        for arm in ("sync-ids", "ids"):
            run_id, duration_s = f"{arm}-{number}", math.exp(0.05 * number + 0.001 * (number % 2))
            folder.write_steps(run_id, steps)
            folder.write_requests(run_id, [request])
            folder.append_run(make_run([request], steps, duration_s, run_id=run_id, round=number, arm=arm))
    published = publish(folder.path)
    assert [one.rule for one in published.findings] == []
    (told,) = [text for text in published.warnings if "the machine changed" in text]
    assert told.startswith("smoke: the machine changed: output_throughput of all arms together went down")
    assert published.summary is not None and published.summary["machine_changes"] == [told]
    assert "the machine changed" in published.report.read_text(encoding="utf-8")
