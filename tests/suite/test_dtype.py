"""runner.dtype: by which rule a 16-bit run is judged, its rows, its bytes, and where all that is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import report_fabrication as fabricate
import torch
from bad_inputs import GOOD
from built_cases import built, built_case
from ceiling_fabrication import ceilings
from records import make_step
from safetensors.torch import save_file

from runner.config import RunnerConfig
from runner.core import FloatType, Prompt, SuppliedRows, TokenLogprobs
from runner.device.base import open_device
from runner.engine import Engine
from runner.inputs.arms import ARMS
from runner.models import TINY_QWEN3
from runner.spans import Span
from suite.arrivals import ScheduledArrivals
from suite.ceilings import shares
from suite.embeds_file import read_rows
from suite.errors import SuiteError
from suite.explain import explain
from suite.logprob_check import position_errors
from suite.oracle import Check, Oracle, judge, max_ties, verdict
from suite.prediction import predicts_wrong
from suite.report.answer import points
from suite.report.data import from_loaded
from suite.report.page import render
from suite.scenario import expand, load_scenario
from suite.supplied import embedding_lookup
from suite.token_case import rotated
from suite.tolerance import TOLERANCES, logprob_margin, rule_in_words
from suite.workload import build_workload, materialise

ROOT = Path(__file__).resolve().parents[2]
HALVES: list[FloatType] = ["bfloat16", "float16"]
SCENARIO = """\
name: half
model: tiny-gemma3-vl
runner: {max_num_seqs: 4, max_num_batched_tokens: 64, max_model_len: 64, num_blocks: 32, dtype: bfloat16}
traffic:
  num_requests: 4
  prompt_tokens: {uniform: [6, 12]}
  output_tokens: 8
  embeds_ratio: 0.75
  embeds_kind: pure
arms: [sync-rows, refresh, fused, stale, overwrite, ids]
rounds: 1
warmup_rounds: 0
"""


# ---- the rule


def logits_with_margin(deviations: float) -> torch.Tensor:
    """One row: id 0 is the maximum, id 1 so many standard deviations below it."""
    row = torch.randn(4096, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    row = row.clamp(-3, 3)
    row[0] = 4.0
    row[1] = 4.0 - deviations * float(row.std())
    return row.float()[None]


@pytest.mark.parametrize("dtype", ["float32", *HALVES])
def test_a_tie_ends_at_the_margin_of_its_type(dtype: FloatType) -> None:
    rule = TOLERANCES[dtype]
    near, far = (judge(logits_with_margin(part * rule.margin), [1], rule) for part in (0.95, 1.05))
    assert (near.num_ties, near.num_wrong, far.num_ties, far.num_wrong) == (1, 0, 0, 1)


@pytest.mark.parametrize("dtype", ["float32", *HALVES])
def test_ties_are_excused_up_to_the_share_of_the_type(dtype: FloatType) -> None:
    rule = TOLERANCES[dtype]
    allowed = max_ties(1000, rule)
    assert allowed == round(1000 * rule.max_tie_share)
    for ties, is_right in ((allowed, True), (allowed + 1, False)):
        tokens, note = verdict({"a": Check(num_right=1000 - ties, num_ties=ties, first_tie=2)}, rule)
        assert tokens.is_right == is_right and (note is None) == is_right


def test_the_rules_differ_and_the_narrower_type_is_excused_more() -> None:
    ordered = [TOLERANCES[dtype] for dtype in ("float32", "float16", "bfloat16")]
    assert ordered == sorted(ordered, key=lambda rule: rule.margin)
    assert ordered[-1].margin < 0.5 and ordered[-1].max_tie_share < 0.25


def test_a_log_probability_may_be_off_by_rounding_and_no_further() -> None:
    row = np.random.default_rng(1).normal(size=4096)
    row -= np.log(np.exp(row).sum())
    margin = logprob_margin("bfloat16", float(row.std()))
    token = int(row.argmax())
    for part, is_wrong in ((0.9, False), (1.1, True)):
        given = [TokenLogprobs(float(row[token]) - part * margin, 1, ())]
        (found,) = position_errors(row[None], [token], given, 0, "bfloat16")
        assert (found.value > found.margin) == is_wrong
        (strict,) = position_errors(row[None], [token], given, 0)
        assert strict.value > strict.margin


# ---- the reference


@pytest.mark.parametrize("dtype", HALVES)
def test_the_reference_holds_rounded_weights_and_computes_in_float32(dtype: FloatType) -> None:
    model = Oracle(TINY_QWEN3, 1, dtype)._reference._model
    for name, weight in model.named_parameters():
        assert weight.dtype is torch.float32, name
        assert torch.equal(weight, weight.to(getattr(torch, dtype)).float()), name
    exact = Oracle(TINY_QWEN3, 1)._reference._model.lm_head.weight
    assert not torch.equal(exact, model.lm_head.weight)


def test_supplied_rows_are_judged_as_the_runner_rounds_them() -> None:
    """Whichever type they come in, the same rows give the same logits."""
    oracle = Oracle(TINY_QWEN3, 1, "bfloat16")
    rows = torch.randn(5, TINY_QWEN3.hidden_size, generator=torch.Generator().manual_seed(2))
    found = []
    for values in (rows, rows.to(torch.bfloat16), rows.to(torch.bfloat16).float()):
        dtype: FloatType = "float32" if values.dtype is torch.float32 else "bfloat16"
        data = values.view(torch.uint8).numpy().tobytes()
        prompt = Prompt((), embeds=SuppliedRows(data, 5, TINY_QWEN3.hidden_size, dtype))
        found.append(oracle.logits(prompt, [3, 4]))
    assert torch.equal(found[0], found[1]) and torch.equal(found[1], found[2])


# ---- a scenario's requests


def test_made_rows_are_the_bits_of_the_models_own_lookup(tmp_path: Path) -> None:
    case = built_case(tmp_path, text=SCENARIO)
    workload = build_workload(case, 3)
    lookup = embedding_lookup(case.model_spec, "bfloat16")
    seen = 0
    for plain, item in zip(workload.requests, materialise(workload, lookup), strict=True):
        embeds = item.request.prompt.embeds
        if embeds is None:
            continue
        seen += 1
        assert embeds.dtype == "bfloat16"
        bits = torch.frombuffer(bytearray(embeds.data), dtype=torch.bfloat16).view(embeds.num_rows, -1)
        assert (bits.float().numpy() == lookup(plain.request.prompt.token_ids)).all()
    assert seen == 3


@pytest.mark.parametrize("came", [torch.float32, torch.float16, torch.bfloat16])
def test_a_files_rows_are_cast_once_and_noted_unless_they_are_the_models(
    came: torch.dtype, tmp_path: Path
) -> None:
    tensor = torch.randn(5, 8, generator=torch.Generator().manual_seed(4)).to(came)
    path = tmp_path / "rows.safetensors"
    save_file({"rows": tensor}, path)
    rows = read_rows(path, 8, 1.0, "bfloat16")
    name = str(came).removeprefix("torch.")
    expected = None if came is torch.bfloat16 else f"rows.safetensors: {name} rows cast to bfloat16"
    assert rows.note == expected
    data = torch.frombuffer(bytearray(rows.data), dtype=torch.bfloat16).view(5, 8)
    assert torch.equal(data, tensor.to(torch.bfloat16))


def test_a_file_whose_values_overflow_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "rows.safetensors"
    save_file({"rows": torch.full((2, 8), 7e4)}, path)
    with pytest.raises(SuiteError, match=r"rows\.safetensors.*70000\.0 at row 0.*finite in float16"):
        read_rows(path, 8, 1.0, "float16")
    assert read_rows(path, 8, 1.0, "bfloat16").num_rows == 2


def test_a_scenarios_file_is_cast_to_its_models_type(tmp_path: Path) -> None:
    save_file({"rows": torch.randn(6, 256)}, tmp_path / "mine.safetensors")
    files = f"traffic.embeds_files=[{tmp_path / 'mine.safetensors'}]"
    workload = built(tmp_path, files, "arms=[refresh]", "runner.dtype=float16")
    (given,) = [item.request.prompt.embeds for item in workload.requests if item.request.prompt.embeds]
    assert given.dtype == "float16" and len(given.data) == 6 * 256 * 2
    assert "mine.safetensors: float32 rows cast to float16" in workload.notes


# ---- keys, ids, memory, bytes


def test_the_default_leaves_case_ids_as_they_were_and_another_type_is_another_case(tmp_path: Path) -> None:
    plain, same, half = (
        built_case(tmp_path, *options)
        for options in ((), ("runner.dtype=float32",), ("runner.dtype=bfloat16",))
    )
    assert plain.case_id == same.case_id != half.case_id
    assert half.runner_config == replace(plain.runner_config, dtype="bfloat16")
    assert plain.notes == () and half.notes == (rule_in_words("bfloat16"),)


def test_what_is_checked_against_memory_halves_with_the_type(tmp_path: Path) -> None:
    def limit(dtype: str) -> int:
        """The bytes a refusal names for one more cache than any machine has."""
        with pytest.raises(SuiteError) as caught:
            built_case(
                tmp_path, f"runner.dtype={dtype}", "runner.num_blocks=1000000", "runner.block_size=1000000"
            )
        return int(str(caught.value).split(" would need ")[1].split(" bytes")[0].replace(",", ""))

    assert limit("float32") == 2 * limit("bfloat16") == 2 * limit("float16")


def test_explained_bytes_halve_with_the_type(tmp_path: Path) -> None:
    found = []
    for dtype in ("float32", "bfloat16"):
        step = explain(built_case(tmp_path, f"runner.dtype={dtype}", text=SCENARIO), ARMS["refresh"]).mixed
        assert step is not None
        found.append(step)
    wide, half = found
    assert half.bytes_by_buffer["inputs_embeds"] == half.num_tokens * 256 * 2
    for name, count in wide.bytes_by_buffer.items():
        assert half.bytes_by_buffer[name] == (count // 2 if name == "inputs_embeds" else count)
    costs = [next(one.cost for one in step.commands if one.text.startswith("lookup")) for step in found]
    of_rows = [(cost.device_bytes or 0) - 4 * half.num_tokens for cost in costs]  # ids are what they were
    assert of_rows[0] == 2 * of_rows[1] > 0


def test_shares_of_ceilings_count_the_types_bytes_and_say_what_was_not_measured() -> None:
    step = make_step(1, 10, 20, "mixed", num_tokens=64, num_supplied_rows=64, embeds_route="merge")
    spans = [Span(1, name, "compute", 1000, 9000) for name in ("forward", "lookup", "merge")]
    wide, half = (
        {row.span: row for row in shares(ceilings(), [step], spans, TINY_QWEN3, ARMS["refresh"], dtype)}
        for dtype in ("float32", "bfloat16")
    )
    assert wide["merge"].value is not None and half["merge"].value is not None
    assert half["merge"].value * 8000 == 64 * (1 + 5 * 256 * 2)
    assert wide["merge"].value * 8000 == 64 * (1 + 5 * 256 * 4)
    assert wide["forward"].value is not None and half["forward"].value is None
    assert half["forward"].reason == (
        "the ceiling was measured in float32, and the model computes in bfloat16; for the runs that follow: "
        "python -m suite micro --only ceilings --dtype bfloat16 --model tiny-qwen3 --threads 1 "
        "--device process"
    )
    own = ceilings(dtype="bfloat16")
    rows = shares(own, [step], spans, TINY_QWEN3, ARMS["refresh"], "bfloat16")
    assert {row.span: row for row in rows} == half | {"forward": wide["forward"]}


# ---- controls, and a run from its file to its page


@pytest.mark.parametrize("name", ["stale", "overwrite"])
def test_controls_are_wrong_in_the_orders_that_the_flags_predict(name: str, tmp_path: Path) -> None:
    case = built_case(tmp_path, text=SCENARIO)
    oracle = Oracle(case.model_spec, 1, "bfloat16")
    given = materialise(build_workload(case, 3), embedding_lookup(case.model_spec, "bfloat16"))
    predicted, found = [], []
    with open_device("inline", case.model_spec, case.runner_config) as device:
        for by in range(len(given)):
            order = rotated(given, by)
            predicted.append(predicts_wrong(case, ARMS[name], [one.request for one in order]))
            engine = Engine(case.model_spec, case.runner_config, device, ARMS[name])
            engine.run(ScheduledArrivals(order, is_timed=False))
            states = [engine.requests[one.request.request_id] for one in order]
            found.append(any(oracle.check(state.request, state.output_ids).num_wrong for state in states))
    assert found == predicted and any(found)


def test_a_run_in_bfloat16_is_right_and_its_folder_and_page_say_by_which_rule(tmp_path: Path) -> None:
    file = tmp_path / "half.yaml"
    file.write_text(SCENARIO)
    done = subprocess.run(
        [sys.executable, "-m", "suite", "run", file, "-o", tmp_path / "results", "--device", "inline"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = (path for path in (tmp_path / "results").iterdir() if (path / "runs.jsonl").is_file())
    runs = [json.loads(line) for line in (folder / "runs.jsonl").read_text().splitlines()]
    assert {run["arm"] for run in runs} == {"sync-rows", "refresh", "fused", "stale", "overwrite", "ids"}
    for run in runs:
        assert run["dtype"] == "bfloat16" and rule_in_words("bfloat16") in run["notes"]
        assert not any("were cast" in note for note in run["notes"])
        assert (run["tokens"]["num_wrong"] > 0) == (run["arm"] in ("stale", "overwrite")), run["arm"]
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "Judged by the rule for bfloat16" in page
    assert "device inline (on a CPU, no GPU) · bfloat16 · " in page


def test_a_page_of_float32_says_so_and_names_no_rule() -> None:
    data = from_loaded(fabricate.loaded())
    assert " · float32 · " in render(data)
    told = [point.text for scenario in data.scenarios for point in points(scenario)]
    assert told and not any("Judged by" in text for text in told)


def test_an_unknown_type_is_refused_with_those_there_are(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(GOOD)
    with pytest.raises(SuiteError) as caught:
        load_scenario(tmp_path / "s.yaml", ["runner.dtype=float8"])
    assert "runner.dtype is 'float8'" in str(caught.value)
    assert all(f"'{name}'" in str(caught.value) or name in str(caught.value) for name in ("float32", *HALVES))
    assert expand(load_scenario(tmp_path / "s.yaml"))[0].runner_config.dtype == RunnerConfig().dtype
