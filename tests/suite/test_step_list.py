"""A written list of steps: what may be written, and that every arm then runs exactly those steps."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from built_cases import printed_by_fresh_processes
from hypothesis import example, given, settings
from hypothesis import strategies as st
from listed_cases import MIX, listed_case, null_run

from runner.inputs.arms import ARMS
from suite import step_list
from suite.errors import SuiteError
from suite.prompt_drawing import exact_runs
from suite.scenario import dump_scenario, expand, json_schema, load_scenario
from suite.step_list import exact_count
from suite.step_list_check import first_other_step, lead_in_ranges, list_hash
from suite.step_list_commands import command_digests
from suite.workload import build_workload, materialise

MODELS = ("tiny-gemma3-vl", "tiny-qwen2.5-vl")
TEXT_MIX = "[{decode: 4, repeat: 3}, {decode: 4, prefill: [40, 9], supplied: 1/2}]"


def fitting(is_multimodal: bool) -> list[str]:
    return [name for name, arm in ARMS.items() if arm.fits(is_multimodal)]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", fitting(True))
def test_every_arm_takes_exactly_the_listed_steps(name: str, model: str, tmp_path: Path) -> None:
    case = listed_case(tmp_path, model=model)
    workload = build_workload(case, 7)
    steps = null_run(case, ARMS[name], workload)
    assert first_other_step(workload.steps, steps, has_rows=ARMS[name].prompt_embeds) is None
    measured = [s for s, due in zip(steps, workload.steps, strict=True) if not due.is_lead_in]
    assert [step.kind for step in measured] == [*["decode"] * 3, "mixed"] * 2
    assert {step.num_decode_rows for step in measured} == {4}
    assert [step.num_tokens for step in measured] == [4, 4, 4, 4 + 40 + 9] * 2
    assert [step.num_images_encoded for step in measured] == [0, 0, 0, 1] * 2


@pytest.mark.parametrize("name", fitting(False))
def test_arms_of_text_models_take_them_as_well(name: str, tmp_path: Path) -> None:
    case = listed_case(tmp_path, TEXT_MIX, model="tiny-qwen3")
    workload = build_workload(case, 7)
    found = first_other_step(
        workload.steps, null_run(case, ARMS[name], workload), has_rows=ARMS[name].prompt_embeds
    )
    assert found is None


ENTRY = st.builds(
    lambda decode, prefill, supplied, images, repeat: (
        f"{{decode: {decode if decode or prefill else 1}, prefill: {prefill}, supplied: {supplied}, "
        f"images: {images if prefill else 0}, repeat: {repeat}}}"
    ),
    st.integers(0, 6),
    st.lists(st.integers(20, 30), max_size=2),
    st.sampled_from(["0", "1/3", "1/2", "1"]),
    st.integers(0, 1),
    st.integers(1, 12),
)


@settings(max_examples=40, deadline=None)
@given(mix=st.lists(ENTRY, min_size=1, max_size=4), tokens=st.integers(1, 12))
@example(mix=["{decode: 6, repeat: 200}"], tokens=8)  # longer than any row can be
@example(mix=["{decode: 6}", "{decode: 2}", "{prefill: [20]}", "{decode: 5, repeat: 30}"], tokens=3)
def test_any_mix_is_made_and_sync_and_async_take_the_same_steps(mix: list[str], tokens: int) -> None:
    with TemporaryDirectory() as folder:
        case = listed_case(
            Path(folder),
            f"[{', '.join(mix)}]",
            f"traffic.steps.context.tokens={tokens}",
            "runner.max_model_len=40",
        )
        workload = build_workload(case, 7)
        for name in ("gated", "refresh", "fused", "ids"):
            steps = null_run(case, ARMS[name], workload)
            assert first_other_step(workload.steps, steps, has_rows=ARMS[name].prompt_embeds) is None
        written = [entry for entry in case.scenario.traffic.steps.mix for _ in range(entry.repeat)] * 2  # type: ignore[union-attr]
        measured = [step for step in workload.steps if not step.is_lead_in]
        assert [step.num_decode_rows for step in measured] == [entry.decode for entry in written]
        assert [step.num_prefill_tokens for step in measured] == [sum(entry.prefill) for entry in written]
        assert [step.num_images_encoded for step in measured] == [entry.images for entry in written]


def test_supplied_positions_are_met_exactly_and_an_image_takes_its_own(tmp_path: Path) -> None:
    half, whole = "prefill: [40, 9, 30], supplied: 1/2, images: 1", "prefill: [10], supplied: 1"
    mix = f"[{{decode: 1, {half}}}, {{decode: 1, {whole}}}]"
    case = listed_case(tmp_path, mix, "traffic.steps.repeat=1")
    workload = build_workload(case, 7)
    context, first, second, third, last = workload.requests
    assert [len(item.request.prompt) for item in workload.requests] == [8, 40, 9, 30, 10]
    assert first.kind == "image+spliced" and len(first.request.prompt.images) == 1
    assert first.num_supplied == exact_count(40 - 18, 0.5)  # 16 image rows and the ids around them
    assert (second.kind, second.num_supplied) == ("spliced", 5)  # half of 9, half rounded up
    assert (third.kind, third.num_supplied) == ("spliced", 15)
    assert (last.kind, last.num_supplied) == ("pure", 10)
    assert (context.kind, context.num_supplied) == ("pure", 8)  # as the largest share of the mix
    assert [step.num_supplied_rows for step in workload.steps] == [8, first.num_supplied + 20, 10]


@settings(max_examples=200, deadline=None)
@given(num_text=st.integers(1, 60), data=st.data(), seed=st.integers(0, 2**32))
def test_exactly_so_many_positions_are_supplied_in_three_runs_at_most(
    num_text: int, data: st.DataObject, seed: int
) -> None:
    num_supplied = data.draw(st.integers(1, num_text))
    chosen = exact_runs(num_text, num_supplied, np.random.default_rng(seed))
    assert len(chosen) == len(set(chosen.tolist())) == num_supplied
    assert (np.diff(chosen) > 0).all() and chosen[0] >= 0 and chosen[-1] < num_text
    assert np.count_nonzero(np.diff(chosen) > 1) <= 2


@pytest.mark.parametrize(
    ("share", "count", "expected"),
    [(1 / 6, 3, 1), (0.5, 9, 5), (0.1, 5, 1), (1 / 3, 100, 33), (1.0, 7, 7), (0.0, 7, 0)],
)
def test_a_share_is_exact_and_half_is_rounded_up(share: float, count: int, expected: int) -> None:
    assert exact_count(count, share) == expected


@pytest.mark.parametrize("text", ["1/2", "'1/2'", "0.5", "½", "' 2/4 '"])
def test_a_share_may_be_written_as_a_fraction(text: str, tmp_path: Path) -> None:
    case = listed_case(tmp_path, f"[{{decode: 1, prefill: [8], supplied: {text}}}]")
    steps = case.scenario.traffic.steps
    assert steps is not None and steps.mix[0].supplied == 0.5  # type: ignore[union-attr]


def test_a_share_for_all_steps_holds_where_one_says_nothing(tmp_path: Path) -> None:
    mix = "[{decode: 1, prefill: [10]}, {decode: 1, prefill: [10], supplied: 0}]"
    case = listed_case(tmp_path, mix, "traffic.steps.repeat=1", "traffic.steps.supplied=1/2")
    workload = build_workload(case, 7)
    assert [step.num_supplied_rows for step in workload.steps] == [4, 5, 0]
    case = listed_case(tmp_path, mix, "sweep={traffic.steps.supplied: [1]}", "traffic.steps.repeat=1")
    assert [step.num_supplied_rows for step in build_workload(case, 7).steps] == [8, 10, 0]


def test_the_lead_in_is_told_and_in_no_other_step(tmp_path: Path) -> None:
    workload = build_workload(listed_case(tmp_path), 7)
    assert lead_in_ranges(workload.steps) == ((0, 1),)
    assert workload.steps[0].kind == "prefill"
    assert "8 written steps (traffic.steps): 6 decode, 2 mixed" in workload.notes[0]
    assert "1 steps of lead-in bring 4 prompts of 8 tokens, 0.5 of them supplied" in workload.notes[1]
    assert lead_in_ranges([replace(workload.steps[1], is_lead_in=bool(flag)) for flag in (1, 1, 0, 1)]) == (
        (0, 2),
        (3, 4),
    )


def test_rows_that_reach_their_longest_are_replaced_in_lead_in(tmp_path: Path) -> None:
    workload = build_workload(listed_case(tmp_path, "[{decode: 4, repeat: 60}]"), 7)
    assert len(lead_in_ranges(workload.steps)) == 3  # 64 positions hold 8 of context and 55 decodes more
    lengths = Counter(
        len(item.request.prompt) + item.request.sampling.max_tokens for item in workload.requests
    )
    assert max(lengths) == 64


def test_the_same_seed_gives_the_same_workload_in_every_process(tmp_path: Path) -> None:
    case = listed_case(tmp_path)
    (printed,) = printed_by_fresh_processes(case.scenario.path, (), 7)
    assert printed.split()[0] == build_workload(case, 7).hash != build_workload(case, 8).hash
    assert printed.endswith("False"), "torch was loaded"


def test_when_a_request_comes_is_part_of_the_hash(tmp_path: Path) -> None:
    one = build_workload(listed_case(tmp_path, "[{prefill: [8]}, {prefill: [8]}, {prefill: [8, 8]}]"), 7)
    moved = build_workload(listed_case(tmp_path, "[{prefill: [8]}, {prefill: [8, 8]}, {prefill: [8]}]"), 7)
    assert [item.request for item in one.requests] == [item.request for item in moved.requests]
    assert one.hash != moved.hash and list_hash(one.steps) != list_hash(moved.steps)


def test_the_case_is_another_one_with_other_steps_and_old_ids_stay(tmp_path: Path) -> None:
    ids = {listed_case(tmp_path, mix).case_id for mix in (MIX, TEXT_MIX, "[{decode: 4}]")}
    assert len(ids) == 3
    path = tmp_path / "plain.yaml"
    path.write_text(
        "name: plain\nmodel: tiny-qwen3\ntraffic: {num_requests: 4, prompt_tokens: 8, output_tokens: 4}\n",
        encoding="utf-8",
    )
    (case,) = expand(load_scenario(path))
    assert case.case_id == OLD_ID


OLD_ID = "33541bde1dbf5d94"


def test_a_scenario_with_steps_reads_back_as_it_was_written_out(tmp_path: Path) -> None:
    case = listed_case(tmp_path)
    path = tmp_path / "again.yaml"
    path.write_text(dump_scenario(case.scenario), encoding="utf-8")
    (again,) = expand(load_scenario(path))
    assert again.case_id == case.case_id and again.scenario.traffic == case.scenario.traffic
    assert "StepMix" in json_schema()["$defs"]


IN_MIX = "traffic.steps.mix[0]"
BAD = {
    "{decode: 4, supplied: 3/2}": f"{IN_MIX}.supplied is '3/2'; it must be a share from 0 to 1",
    "{decode: 4, supplied: half}": f"{IN_MIX}.supplied is 'half'; it must be a share",
    "{decode: 4, supplied: 1/0}": f"{IN_MIX}.supplied is '1/0'; it must be a share",
    "{decode: 4, supplied: true}": f"{IN_MIX}.supplied is true; it must be a share",
    "{decode: -1}": f"{IN_MIX}.decode is -1; it must be at least 0",
    "{prefill: [8, 0]}": f"{IN_MIX}.prefill[1] is 0; it must be at least 1",
    "{decode: 0}": f"{IN_MIX} is {{decode: 0}}; a step computes at least one row: add `decode: 16`",
    "{decode: 4, images: 1}": f"{IN_MIX}.images is 1; an image comes with a prompt: add `prefill: [64]`",
    "{decod: 4}": f"unknown key {IN_MIX}.decod (its value is 4); did you mean {IN_MIX}.decode?",
    "{prefill: [18], images: 1}": f"{IN_MIX}.prefill is [18]; 18 positions do not hold 1 x 18 of images",
    "{decode: 4, repeat: 900000}": "traffic.steps.repeat is 2; it makes 1,800,000 steps, at most 10,000",
    "{decode: 30}": "runner.max_num_seqs is 24; a step of",
    "{prefill: [60, 60, 60]}": "runner.max_num_batched_tokens is 128; a step of 0 decodes and prompts of "
    "[60, 60, 60] needs 180 tokens: raise it",
    "{prefill: [64]}": "runner.max_model_len is 64; a step of 0 decodes and prompts of [64] needs 65",
}


@pytest.mark.parametrize("entry", BAD)
def test_a_mistake_is_told_with_line_key_value_and_fix(entry: str, tmp_path: Path) -> None:
    with pytest.raises(SuiteError) as caught:
        listed_case(tmp_path, f"[{entry}]")
    assert BAD[entry] in str(caught.value)
    assert f"{tmp_path / 'scenario.yaml'}:" in str(caught.value)


@pytest.mark.parametrize(
    ("override", "told"),
    [
        (
            "traffic.num_requests=4",
            "traffic.num_requests is 4; traffic.steps says what every step computes: remove it",
        ),
        ("traffic.embeds_ratio=0.5", "traffic.embeds_ratio is 0.5; traffic.steps says"),
        ("traffic.arrivals={kind: poisson, rate: 4}", "traffic.arrivals is"),
        ("traffic.sampling.stop_token_ids=[7]", "a token that ends a request would change the steps"),
        ("traffic.sampling.min_tokens=2", "may have one token to generate: lower min_tokens to 1"),
        (
            "runner.num_speculative_tokens=2",
            "runner.num_speculative_tokens is 2; how long a step is would hang on",
        ),
        ("runner.num_blocks=4", "runner.num_blocks is 4; a step of"),
        (
            "runner.num_resident_rows=40",
            "runner.num_resident_rows is 40; a step of 4 decodes and prompts of [40, 9]",
        ),
        ("runner.max_encoder_tokens_per_step=15", "runner.max_encoder_tokens_per_step is 15"),
        (
            "traffic.steps.context.tokens=63",
            "traffic.steps.context.tokens is 63; a row of it that decodes takes 65",
        ),
        ("model=tiny-qwen3", "traffic.steps.mix[1].images is 1; tiny-qwen3 is a text model: remove it"),
        (
            "traffic.steps=5",
            "traffic.steps is 5; it must be a mapping with the keys mix, repeat, supplied, context",
        ),
    ],
)
def test_what_does_not_go_with_a_list_is_refused(override: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(SuiteError) as caught:
        listed_case(tmp_path, MIX, override)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("key", "enough"),
    [
        ("max_num_seqs", 8),  # 4 decode, 2 prompts come, 2 of the step before are still held
        ("num_blocks", 10),  # one of each that decodes, and 2 + 1 of what comes and of what has gone
        ("num_resident_rows", 4 * 8 + 2 * (20 + 9)),
    ],
)
def test_what_an_async_arm_still_holds_is_counted(key: str, enough: int, tmp_path: Path) -> None:
    """One less is refused, and with just enough every arm keeps to the list."""
    mix = "[{decode: 4, prefill: [20, 9], supplied: 1/2}]"
    few = ("traffic.steps.repeat=4", f"runner.{key}={enough - 1}")
    with pytest.raises(SuiteError, match=rf"runner\.{key} is {enough - 1}; a step of .* needs {enough} "):
        listed_case(tmp_path, mix, *few)
    case = listed_case(tmp_path, mix, few[0], f"runner.{key}={enough}")
    workload = build_workload(case, 7)
    for name in ("gated", "refresh", "fused", "ids"):
        steps = null_run(case, ARMS[name], workload)
        assert first_other_step(workload.steps, steps, has_rows=ARMS[name].prompt_embeds) is None, name


def test_rows_that_can_never_decode_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        SuiteError, match=r"20 rows never decode together: the first reaches runner\.max_model_len, 12"
    ):
        listed_case(
            tmp_path,
            "[{decode: 20}]",
            *(
                "runner.max_model_len=12",
                "runner.max_num_batched_tokens=24",
                "traffic.steps.context.tokens=8",
            ),
        )


# ---- the check after a run


def test_a_run_that_left_its_list_is_told_by_the_first_step_that_differs(tmp_path: Path) -> None:
    case = listed_case(tmp_path)
    workload = build_workload(case, 7)
    steps = null_run(case, ARMS["refresh"], workload)
    assert first_other_step(workload.steps, steps[:-1], has_rows=True) == (
        "the list has 9 steps, and the run took 8"
    )
    for name in ("num_rows", "num_decode_rows", "num_prefill_tokens", "num_image_rows", "num_images_encoded"):
        other = [*steps[:4], replace(steps[4], **{name: 77}), *steps[5:]]
        found = first_other_step(workload.steps, other, has_rows=True)
        assert (
            found is not None and found.startswith(f"step 4 should have {name} ") and found.endswith("has 77")
        )
    other = [replace(steps[0], num_supplied_rows=1), *steps[1:]]
    assert "num_supplied_rows" in str(first_other_step(workload.steps, other, has_rows=True))
    assert first_other_step(workload.steps, other, has_rows=False) is None


def test_arms_with_the_same_commands_on_a_kind_of_step_have_the_same_digest(tmp_path: Path) -> None:
    case = listed_case(tmp_path)
    workload = build_workload(case, 7)

    def digests(name: str) -> dict[str, str]:
        def embed(ids: object) -> np.ndarray:
            return np.zeros((len(ids), case.model_spec.hidden_size), np.float32)  # type: ignore[arg-type]

        given_requests = materialise(workload, embed) if ARMS[name].prompt_embeds else workload.requests
        return dict(command_digests(case, ARMS[name], given_requests, workload.steps))

    found = {name: digests(name) for name in fitting(True)}
    assert found["refresh"]["decode"] == found["async-rows"]["decode"]
    assert found["refresh"]["mixed"] != found["async-rows"]["mixed"]
    assert found["skip"]["decode"] == found["resident"]["decode"] != found["async-fill"]["decode"]
    assert found["gated"]["decode"] != found["sync-rows"]["decode"]
    assert digests("refresh") == found["refresh"]


def test_a_share_of_a_huge_exponent_is_refused_at_once() -> None:
    for text in ("1e-400000000", "1" * 40 + "/2", "1E9"):
        assert step_list._fraction(text) is None
