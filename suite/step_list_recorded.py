"""The steps of a recorded run, read from its folder, and before which of them each of its requests came.

An engine takes requests right before it plans a step, so those that were sent between the planning of two
steps are handed over before the second: played back like that, whatever the time, every plan is the same one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from runner.config import RunnerConfig
from runner.core import RunnerError
from runner.measure import StepRecord
from runner.models import ModelSpec
from suite.arms import named_arm
from suite.errors import KeyedError, SuiteError
from suite.model_source import Checkpoint, spec_of
from suite.need import ListedStep, Origin
from suite.record import RunRecord, Status
from suite.schema import listed, nearest, validated
from suite.store import CONFIG, RUNS, LoadedRun, load_run
from suite.traffic import Traffic
from suite.yaml_source import Place, Source, path_errors, show

_FOLDER = "traffic.steps.recorded"
_RUN = "traffic.steps.run"
_MAX_LISTED = 5
# A plan hangs on these. Of the others it is enough to have as much as the recorded run had.
_SAME = (
    *("max_num_batched_tokens", "max_model_len", "prefix_caching"),
    *("max_images_per_step", "max_encoder_tokens_per_step"),
)
_ENOUGH = ("max_num_seqs", "num_encoder_slots")


@dataclass(frozen=True, slots=True)
class Recorded:
    """`asks`: for each request, before which step it came. `model` and `runner` are those it ran with."""

    origin: Origin
    asks: tuple[int, ...]
    steps: tuple[ListedStep, ...]
    model: ModelSpec
    runner: Mapping[str, object]

    def check_runner(self, model: ModelSpec, runner: RunnerConfig) -> None:
        """KeyedError where a runner could not plan the steps that this run took."""
        attends = self.model.image_attention
        if self.model != model and self.model == replace(model, image_attention=attends):
            raise KeyedError(
                "image_attention", f"{self.origin.run_id} ran with {attends}: set it to {attends}"
            )
        if self.model != model:
            raise KeyedError("model", f"{self.origin.run_id} was run with {self.model.name}: use that model")
        if runner.num_speculative_tokens or self.runner.get("num_speculative_tokens"):
            raise KeyedError(
                "runner.num_speculative_tokens",
                "which drafts are right changes the steps: set it to 0, here and in the run to be recorded",
            )
        for name in _SAME:
            if (was := self.runner.get(name)) != getattr(runner, name):
                raise KeyedError(f"runner.{name}", f"{self.origin.run_id} ran with {was}: set it to {was}")
        for name in _ENOUGH:
            if (was := self.runner.get(name)) is None or int(str(was)) > getattr(runner, name):
                raise KeyedError(
                    f"runner.{name}", f"{self.origin.run_id} ran with {was}: set as much, or more"
                )
        self._check_blocks(runner)

    def _check_blocks(self, runner: RunnerConfig) -> None:
        sizes = (self.runner.get("num_blocks"), self.runner.get("block_size"))
        recorded = int(str(sizes[0])) * int(str(sizes[1]))
        if runner.num_blocks * runner.block_size < recorded:
            raise KeyedError(
                "runner.num_blocks",
                f"{self.origin.run_id} ran with {recorded} positions in blocks: have as many, or more",
            )

    @property
    def notes(self) -> tuple[str, ...]:
        return (
            f"the {len(self.steps)} steps that {self.origin.run_id} recorded (traffic.steps), in every arm; "
            "latencies are counted from when its requests came then, in steps",
        )


def read_recorded(folder: Path, run_id: str) -> Recorded:
    """KeyedError where there is no such folder or run, or no list of steps can be made of it."""
    with path_errors(folder / RUNS):
        file = folder / RUNS
        stamp = file.stat().st_mtime_ns if file.is_file() else 0
    return _read(folder, run_id, stamp)


@lru_cache(maxsize=8)
def _read(folder: Path, run_id: str, stamp: int) -> Recorded:
    """Once for a folder as it is at the time of `stamp`: a scenario's cases are planned several times."""
    try:
        loaded = load_run(folder)
    except SuiteError as error:
        raise KeyedError(_FOLDER, str(error)) from None
    if loaded.why_thinned is not None:
        raise KeyedError(_FOLDER, loaded.why_thinned)
    run = _find(loaded, run_id)
    config = _configuration(loaded, run)
    steps = sorted(loaded.step_records(run_id), key=lambda step: step.step_id)
    begun = [step.start_ns for step in steps]
    requests = loaded.request_records(run_id)
    if any(request.error or request.first_scheduled_ns is None for request in requests):
        raise KeyedError(_RUN, "a request of it was refused: choose a run that served all of its requests")
    return Recorded(
        origin=Origin(run_id, _traffic(folder, config), run.seed, run.workload_hash),
        asks=tuple(bisect_right(begun, request.sent_ns) for request in requests),
        steps=_listed(steps, run),
        model=_model(config),
        runner=dict(config.get("runner") or {}),
    )


def _find(loaded: LoadedRun, run_id: str) -> RunRecord:
    usable = [run for run in loaded.runs if run.status is Status.COMPLETED and run.rotation is None]
    found = next((run for run in usable if run.run_id == run_id), None)
    if found is not None:
        return found
    names = [run.run_id for run in usable if not run.is_warmup and not run.repeats]
    guess = nearest(run_id, names)
    hint = f"did you mean {guess}? " if guess else ""
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    known = f"{listed(names[:_MAX_LISTED])}{more}" if names else "none"
    raise KeyedError(_RUN, f"no completed run has this id; {hint}there are: {known}")


def _configuration(loaded: LoadedRun, run: RunRecord) -> Mapping[str, Any]:
    """The scenario that a run was of, with the values that its sweep gave it."""
    config = next((one for one in loaded.config if one.get("name") == run.scenario), None)
    if config is None:
        raise KeyedError(_FOLDER, f"its {CONFIG} does not hold the scenario {run.scenario}")
    source = Source(loaded.path / CONFIG, dict(config))
    for key, value in run.case_values.items():
        source = source.replaced(tuple(key.split(".")), value, Place(f"{loaded.path / CONFIG}: in the sweep"))
    return source.data


def _model(config: Mapping[str, Any]) -> ModelSpec:
    found = config.get("model")
    try:
        source = found if isinstance(found, str) else Checkpoint.model_validate(found)
        return spec_of(source, config.get("image_attention"))
    except (RunnerError, ValueError) as error:
        raise KeyedError(_FOLDER, f"the model that it was run with cannot be had: {error}") from None


def _traffic(folder: Path, config: Mapping[str, Any]) -> Traffic:
    found = config.get("traffic")
    if not isinstance(found, Mapping):
        raise KeyedError(_FOLDER, f"its {CONFIG} holds the traffic {show(found)}")
    try:
        return validated(Traffic, Source(folder / CONFIG, dict(found)))
    except SuiteError as error:
        raise KeyedError(_FOLDER, f"its traffic cannot be made again: {error}") from None


def _listed(steps: Sequence[StepRecord], run: RunRecord) -> tuple[ListedStep, ...]:
    lead_in = run.step_list.lead_in if run.step_list is not None else ()
    has_rows = named_arm(run.arm).prompt_embeds
    return tuple(
        ListedStep(
            num_rows=step.num_rows,
            num_decode_rows=step.num_decode_rows,
            num_prefill_tokens=step.num_prefill_tokens,
            num_image_rows=step.num_image_rows,
            num_images_encoded=step.num_images_encoded,
            num_supplied_rows=step.num_supplied_rows if has_rows else None,
            is_lead_in=any(first <= step.step_id < end for first, end in lead_in),
        )
        for step in steps
    )
