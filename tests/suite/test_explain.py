"""What `explain` reads from command lists, held against runs that compute and against golden texts."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from bad_inputs import GOOD

from runner.core import Request
from runner.device.base import open_device
from runner.engine import Engine
from runner.inputs.arms import ARMS
from suite.arms import named_arm
from suite.errors import SuiteError
from suite.explain import document, explain, explain_steps, render
from suite.scenario import Case, expand, load_scenario
from suite.supplied import embedding_lookup
from suite.workload import build_workload, materialise

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).parent / "golden_explain"

# Half supplied, pure and spliced, images among them; the budget chunks prompts and mixes steps.
OPTIONS = (
    "name=golden",
    "runner={max_num_seqs: 4, max_num_batched_tokens: 32, max_model_len: 128, num_blocks: 64}",
    "traffic.arrivals={kind: all_at_once}",
    "traffic.num_requests=6",
    "traffic.prompt_tokens={uniform: [8, 24]}",
    "traffic.output_tokens={uniform: [4, 8]}",
    "traffic.embeds_ratio=0.5",
    "traffic.embeds_kind={spliced: 0.5}",
)
TEXT_OPTIONS = ("model=tiny-qwen3", "traffic.multimodal_ratio=0")


def _case(folder: Path, *overrides: str) -> Case:
    path = folder / "scenario.yaml"
    path.write_text(GOOD, encoding="utf-8")
    (case,) = expand(load_scenario(path, (*OPTIONS, *overrides)))
    return case


class _AllAtOnce:
    def __init__(self, requests: Sequence[Request]) -> None:
        self._left = list(requests)

    def due(self) -> Sequence[Request]:
        due, self._left = self._left, []
        return due

    def wait(self) -> bool:
        return False


@pytest.mark.parametrize("name", ["refresh", "gated", "skip", "resident", "fused", "text"])
def test_an_arm_is_explained_as_in_its_golden_text(name: str, tmp_path: Path) -> None:
    case = _case(tmp_path, *(TEXT_OPTIONS if name == "text" else ()))
    assert render(explain(case, ARMS[name])) == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("options", [(), TEXT_OPTIONS], ids=["multimodal", "text"])
def test_copies_and_bytes_equal_what_a_run_counts_on_every_step(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    case = _case(tmp_path, *options)
    model, config = case.model_spec, case.runner_config
    workload = build_workload(case, case.scenario.seed)
    supplied = materialise(workload, embedding_lookup(model))
    with open_device("inline", model, config) as device:
        for arm in ARMS.values():
            if not arm.fits(model.is_multimodal):
                continue
            items = supplied if arm.prompt_embeds else workload.requests
            engine = Engine(model, config, device, arm)
            engine.run(_AllAtOnce([item.request for item in items]))
            counted = [(step.step_id, step.copies, step.bytes) for step in engine.recorder.steps]
            read = [
                (step.step_id, step.copies_by_buffer, step.bytes_by_buffer)
                for step in explain_steps(case, arm)
            ]
            assert read == counted, arm.name
            assert len(read) > 8


def test_what_the_arms_differ_in_is_what_their_definitions_say(tmp_path: Path) -> None:
    case = _case(tmp_path)
    decodes = {}
    for name in ("refresh", "gated", "async-fill", "skip", "resident", "fused"):
        decode = explain(case, ARMS[name]).decode
        assert decode is not None
        decodes[name] = (decode.num_rows, decode.bytes_by_buffer)
    hidden = case.model_spec.hidden_size
    rows, refresh = decodes["refresh"]
    assert refresh["is_token_ids"] == rows and "inputs_embeds" not in refresh
    rows, gated = decodes["gated"]
    assert gated["inputs_embeds"] == rows * hidden * 4 and gated["is_token_ids"] == rows
    for name in ("async-fill", "skip", "resident", "fused"):
        assert {buffer.partition(".")[0] for buffer in decodes[name][1]} == {"step_metadata"}


def test_a_mixed_step_is_found_where_all_prompts_fit_one_step(tmp_path: Path) -> None:
    case = _case(tmp_path, "runner.max_num_batched_tokens=512", "runner.max_num_seqs=8")
    explanation = explain(case, ARMS["refresh"])
    assert explanation.mixed is not None and explanation.decode is not None
    assert explanation.decode.arrivals == "all requests at once"
    assert explanation.mixed.arrivals == "one request a step"
    assert explanation.mixed.num_supplied > 0


def test_a_step_that_never_happens_is_said_to_be_missing(tmp_path: Path) -> None:
    case = _case(tmp_path, "traffic.num_requests=1", "traffic.output_tokens=1")
    text = render(explain(case, ARMS["ids"]))
    assert "no decode step in this scenario" in text and "no mixed step in this scenario" in text


def test_wrong_arms_and_swept_cases_are_named(tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(GOOD + "sweep: {seed: [1, 2]}\n")
    case = expand(load_scenario(path))[1]
    head = render(explain(case, ARMS["stale"])).splitlines()
    assert head[0] == (
        "fine [seed=2] on tiny-gemma3-vl, arm stale: async/all/with-ids/where, WRONG by design"
    )
    gated = render(explain(case, ARMS["gated"])).splitlines()
    assert gated[1].startswith("scheduling sync: async scheduling is switched off: prompt_embeds on a")


def test_the_fence_is_shown_where_it_is_recorded(tmp_path: Path) -> None:
    case = _case(tmp_path, "runner.fence=embeddings")
    decode = explain(case, ARMS["refresh"]).decode
    assert decode is not None
    texts = [command.text.split()[:2] for command in decode.commands]
    assert texts[texts.index(["record", "embeddings"]) + 1][0] == "forward"
    assert ["record", "uploads"] not in texts


def test_an_arm_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match="arm text is for text models"):
        explain(_case(tmp_path), ARMS["text"])


def test_the_document_is_strict_json_with_the_same_totals(tmp_path: Path) -> None:
    explanation = explain(_case(tmp_path), named_arm("sync/rows/always/where"))
    found = json.loads(json.dumps(document(explanation), allow_nan=False))
    decode = explanation.decode
    assert decode is not None
    assert found["arm"] == found["choices"] == "sync/rows/always/where"
    assert found["decode"]["total"]["upload_bytes"] == decode.total.upload_bytes
    costs = [command["cost"]["device_bytes"] for command in found["decode"]["commands"]]
    assert sum(cost or 0 for cost in costs) == decode.total.device_bytes and None in costs


def test_explaining_needs_no_torch_and_ignores_host_work(tmp_path: Path) -> None:
    _case(tmp_path)
    program = (
        "import sys; from pathlib import Path\n"
        "from suite.arms import named_arm\n"
        "from suite.explain import explain, render\n"
        "from suite.scenario import expand, load_scenario\n"
        "(case,) = expand(load_scenario(Path(sys.argv[1]), ['runner.host_work_us=10000000']))\n"
        "render(explain(case, named_arm('fused')))\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "scenario.yaml")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == "False"


DRAFTS_BEYOND_A_STEP = """\
name: drafts
model: tiny-gemma3-vl
runner:
  max_num_seqs: 3
  max_num_batched_tokens: 16
  max_model_len: 96
  num_blocks: 14
  block_size: 8
  prefix_caching: true
  num_speculative_tokens: 100
traffic: {num_requests: 4, prompt_tokens: 24, output_tokens: 40, embeds_ratio: 0.5}
"""


@pytest.mark.parametrize("arm", ["sync-ids", "refresh", "overwrite"])
def test_drafts_that_fill_a_step_are_explained_with_and_without_overlap(arm: str, tmp_path: Path) -> None:
    path = tmp_path / "drafts.yaml"
    path.write_text(DRAFTS_BEYOND_A_STEP, encoding="utf-8")
    (case,) = expand(load_scenario(path))
    text = render(explain(case, named_arm(arm)))
    assert "decode step" in text
    assert ("ids draft" in text) == (arm != "sync-ids")  # under sync the host knows the drafts
