"""Goodput: which requests are good, which gates have no data, and how gates are spelt."""

from __future__ import annotations

import json

import pytest
from records import failed_request, make_request
from typer.testing import CliRunner

from suite.cli import app
from suite.errors import SuiteError
from suite.goodput import goodput_override
from suite.metrics import run_metrics
from suite.scenario import load_scenario

FAST = make_request("fast", token_ms=(100, 110, 120))  # TTFT 100, TPOT 10, E2E 120
LATE = make_request("late", token_ms=(300, 310, 320))
SLOW = make_request("slow", token_ms=(100, 150, 200))
SINGLE = make_request("single", token_ms=(100,))


def goodput(requests, duration_s=2.0, **gates):
    return run_metrics(requests, [], duration_s, gates=gates)["request_goodput"]


def test_a_request_is_good_where_it_meets_every_gate():
    requests = [FAST, LATE, SLOW, failed_request()]
    assert goodput(requests, ttft=200, tpot=20).value == 0.5
    assert goodput(requests, ttft=200).value == goodput(requests, tpot=20).value == 1.0
    assert goodput(requests, e2el=320).value == 1.5  # a gate includes its own value
    assert goodput(requests, e2el=1).value == 0.0
    assert goodput(requests, ttft=200).num_samples == 3


def test_latencies_count_from_the_scheduled_arrival_here_too():
    assert goodput([make_request(scheduled_ms=-500, token_ms=(100, 110))], ttft=200).value == 0


def test_a_gate_without_any_sample_is_no_data_and_never_met():
    metric = goodput([SINGLE, SINGLE], ttft=200, tpot=20)
    assert metric.value is None
    assert metric.reason == "no data: no request has a figure for the gate tpot (one output token)"
    at_once = make_request(token_ms=(10, 10, 10))
    assert goodput([at_once], tpot=20).reason.endswith("(all output tokens came at the same time)")
    assert goodput([failed_request()], ttft=200).reason == "no request completed"
    assert goodput([FAST]).reason == "no goodput gates are set"
    assert goodput([FAST], 0.0, ttft=200).reason == "the run took no time"


def test_one_output_token_is_held_to_the_other_gates_and_tokens_all_at_once_meet_no_tpot():
    at_once = make_request("at once", token_ms=(100, 100, 100))
    assert goodput([FAST, SINGLE], ttft=200, tpot=20).value == 1.0
    assert goodput([FAST, SINGLE], ttft=50, tpot=20).value == 0.0
    assert goodput([FAST, at_once], ttft=200, tpot=20).value == 0.5


@pytest.mark.parametrize(
    ("texts", "gates"),
    [
        (["ttft:200 tpot:20"], {"ttft": 200.0, "tpot": 20.0}),
        (["ttft:200", "tpot:20.5"], {"ttft": 200.0, "tpot": 20.5}),
        (["e2el:1e3"], {"e2el": 1000.0}),
    ],
)
def test_gates_are_spelt_as_in_vllm_in_one_text_or_several_and_win_over_the_file(tmp_path, texts, gates):
    assert _scenario(tmp_path, "{ttft: 7}", (goodput_override(texts),)).goodput.gates == gates


def _scenario(tmp_path, gates, overrides=()):
    file = tmp_path / "a.yaml"
    file.write_text(
        "name: a\nmodel: tiny-qwen3\ntraffic: {num_requests: 2, prompt_tokens: 4, output_tokens: 4}\n"
        f"goodput: {gates}\n"
    )
    return load_scenario(file, overrides)


def test_the_option_reaches_the_plan_that_is_stored(tmp_path):
    _scenario(tmp_path, "{ttft: 7}")
    arguments = ["run", str(tmp_path / "a.yaml"), "--dry-run", "--json", "--goodput", "ttft:200 tpot:20"]
    done = CliRunner().invoke(app, arguments)
    gates = json.loads(done.stdout)["scenarios"][0]["goodput"]
    assert gates == {"ttft": 200.0, "tpot": 20.0, "e2el": None}


def test_a_scenario_names_its_gates(tmp_path):
    assert _scenario(tmp_path, "{ttft: 200, e2el: 900}").goodput.gates == {"ttft": 200.0, "e2el": 900.0}


@pytest.mark.parametrize(
    ("gates", "words"),
    [
        ("{tfft: 200}", "unknown key goodput.tfft (its value is 200); did you mean goodput.ttft?"),
        ("{ttft: 0}", "goodput.ttft is 0; it must be above 0"),
        ("{ttft: fast}", "goodput.ttft is 'fast'; it must be a number"),
        ("{}", "goodput is {}; name at least one of ttft, tpot, e2el"),
    ],
)
def test_wrong_gates_in_a_file_are_refused_with_line_and_key(tmp_path, gates, words):
    with pytest.raises(SuiteError) as error:
        _scenario(tmp_path, gates)
    assert "a.yaml:4: " in str(error.value) and words in str(error.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ttft=200", "--goodput ttft=200: write a name and milliseconds, such as ttft:200"),
        ("ttfft:200", "--goodput ttfft:200: did you mean ttft? it must be one of: ttft, tpot, e2el"),
        ("ttft:-1", "--goodput ttft:-1: it must be a number of milliseconds above 0"),
        ("ttft:nan", "above 0"),
        ("ttft:1 ttft:2", "ttft stands twice"),
        (" ", "it is empty"),
    ],
)
def test_wrong_gates_on_the_command_line_are_refused_with_what_was_written(text, words):
    with pytest.raises(SuiteError) as error:
        goodput_override([text])
    assert words in str(error.value)
