"""A scenario: one YAML file, checked strictly, and the cases its sweep expands to.

Every mistake is a SuiteError that names the file and line (or the option), the key, the value and the fix.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import psutil
from pydantic import Field, field_validator, model_validator
from ruamel.yaml import YAML

from runner.config import Attention, Fence, RunnerConfig
from runner.core import ITEM_BYTES, MAX_LOGPROBS, FloatType, RunnerError, usable_cores
from runner.models import ImageAttention, ModelSpec, with_image_attention
from suite.arms import named_arm, twice, why_not
from suite.arrival_kinds import Ramp, TraceReplay, process_of
from suite.case_label import case_label
from suite.demand import plan_demand
from suite.errors import KeyedError, SuiteError
from suite.goodput import Goodput
from suite.model_source import ModelSource, model_digest, spec_of, weight_bytes
from suite.need import Demand, image_positions
from suite.repeatable import MAX_REPEATS, repeatable_spans
from suite.sampling import check_token_ids
from suite.scenario_source import (
    combinations,
    overridden,
    with_first_values,
    with_option,
    with_paths,
)
from suite.schema import (
    AsTuple,
    Count,
    PositiveNumber,
    Seed,
    StrictModel,
    broken_rule,
    listed,
    one_of,
    validated,
    value_error,
)
from suite.store import REQUESTS, STEPS
from suite.tolerance import rule_in_words
from suite.traces.servegen import client_files, is_servegen
from suite.traffic import Traffic
from suite.yaml_source import KeyPath, Source, read_source, show

_DEFAULTS = RunnerConfig()
_ID_BYTES = 4
_LARGE_WEIGHTS = 2**30  # bytes: those of a preset made for a CPU never decide
# Not in a case's id while they have their default, so that ids from before there were any stay as they are.
_YOUNG_ARRIVAL_KEYS: Mapping[str, object] = {
    "failed_requests": "skip",
    "max_concurrency": None,
    "process": None,
}

_LATE_FENCE = (
    "runner.fence: embeddings: the host writes a step's inputs once the embedding and encoder work of the "
    "one before is done, as vLLM does"
)
ISOLATED = "isolation: process: every run was made in a fresh process with a device of its own"
_YOUNG_RUNNER_KEYS: Mapping[str, object] = {
    "attention": "auto",
    "cuda_graphs": True,
    "fence": "uploads",
    "torch_compile": False,
    "dtype": "float32",
}

Repeats = Annotated[int, Field(ge=1, le=MAX_REPEATS)]


class Requires(StrictModel):
    """What a machine must have for the scenario to be run on it; elsewhere it is skipped."""

    device: Literal["any", "cuda"] = "any"
    min_cores: Count | None = None
    min_memory_gib: PositiveNumber | None = None


class RunnerSection(StrictModel):
    """The sizes of runner.config.RunnerConfig, by the same names."""

    max_num_seqs: Count = _DEFAULTS.max_num_seqs
    max_num_batched_tokens: Count = _DEFAULTS.max_num_batched_tokens
    max_model_len: Count = _DEFAULTS.max_model_len
    block_size: Count = _DEFAULTS.block_size
    num_blocks: Count = _DEFAULTS.num_blocks
    num_encoder_slots: Count = _DEFAULTS.num_encoder_slots
    max_images_per_step: Count = _DEFAULTS.max_images_per_step
    max_encoder_tokens_per_step: Count = _DEFAULTS.max_encoder_tokens_per_step
    num_resident_rows: Count = _DEFAULTS.num_resident_rows
    num_threads: Annotated[int, Field(ge=1, le=1_024)] = _DEFAULTS.num_threads
    host_work_us: Annotated[int, Field(ge=0, le=10_000_000)] = _DEFAULTS.host_work_us
    prefix_caching: bool = _DEFAULTS.prefix_caching
    num_speculative_tokens: Annotated[int, Field(ge=0, le=256)] = _DEFAULTS.num_speculative_tokens
    prompt_lookup_min: Annotated[int, Field(ge=1, le=256)] = _DEFAULTS.prompt_lookup_min
    prompt_lookup_max: Annotated[int, Field(ge=1, le=256)] = _DEFAULTS.prompt_lookup_max
    attention: Attention = _DEFAULTS.attention
    cuda_graphs: bool = _DEFAULTS.cuda_graphs
    fence: Fence = _DEFAULTS.fence
    torch_compile: bool = _DEFAULTS.torch_compile
    dtype: FloatType = _DEFAULTS.dtype


class ScenarioKeys(StrictModel):
    """Everything a scenario file may say.

    A sweep maps dotted keys to lists of values; every combination is a case. Each case runs every arm once
    a round, after `warmup_rounds` that are kept out of the statistics; a run ends after `timeout_s`.
    `amplify` names spans whose commands are then repeated, that many times, in rounds of their own: the slope
    of the step's time is what one of them costs.
    Arms are compared with `baseline`, by default the first right sync arm. With `aa` it runs twice a round,
    so that the noise is known, and ratios to it have less; where that is not said, it does if there are
    rounds enough for a verdict.
    `goodput` names the gates, in ms, that a request must meet to count as good.
    `image_attention`: the rows of one image attend to one another in both directions, as a Gemma 3 checkpoint
    does by default, or causally, as all others do.
    `isolation`: one warm worker makes all runs of a case (`worker`), or each run gets a fresh process with a
    device of its own (`process`); runs of `amplify` share one in any case, for they replay each other.
    """

    name: Annotated[str, Field(min_length=1, max_length=100, examples=["my-scenario"])]
    description: str = ""
    model: Annotated[ModelSource, Field(examples=["tiny-gemma3-vl"])]
    image_attention: ImageAttention | None = None
    requires: Requires = Requires()
    runner: RunnerSection = RunnerSection()
    traffic: Annotated[
        Traffic,
        Field(examples=["{num_requests: 16, prompt_tokens: 32, output_tokens: 16}"]),
    ]
    sweep: Mapping[str, Annotated[tuple[object, ...], AsTuple]] = Field(default_factory=dict)
    arms: Annotated[tuple[str, ...], AsTuple, Field(min_length=1)] = ("sync-ids",)
    baseline: str | None = None
    aa: bool | None = None
    goodput: Annotated[Goodput | None, Field(examples=["{ttft: 200, tpot: 20}"])] = None
    rounds: Annotated[int, Field(ge=1, le=10_000)] = 3
    warmup_rounds: Annotated[int, Field(ge=0, le=10_000)] = 1
    seed: Seed = 0
    isolation: Literal["worker", "process"] = "worker"
    timeout_s: PositiveNumber = 300.0
    amplify: Annotated[
        Mapping[str, Annotated[tuple[Repeats, ...], AsTuple]],
        Field(examples=["{upload.is_token_ids: [1, 33, 257]}"]),
    ] = Field(default_factory=dict)

    @field_validator("name")
    @classmethod
    def _is_printable(cls, value: str) -> str:
        if not value.strip() or not value.isprintable():
            raise broken_rule("it must be readable text without line breaks or control characters")
        return value

    @field_validator("arms")
    @classmethod
    def _are_arms(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            try:
                named_arm(name)
            except SuiteError as error:
                raise broken_rule(str(error)) from None
        if (reason := twice(value)) is not None:
            raise broken_rule(reason)
        return value

    @field_validator("amplify")
    @classmethod
    def _can_be_amplified(cls, value: Mapping[str, tuple[int, ...]]) -> Mapping[str, tuple[int, ...]]:
        for span, ks in value.items():
            if span not in repeatable_spans():
                raise broken_rule(
                    f"{show(span)} is no span whose commands may be repeated; "
                    f"{one_of(span, repeatable_spans())}"
                )
            if 1 not in ks or len(set(ks)) != len(ks) or len(ks) < 2:
                raise broken_rule(
                    f"{span} has {list(ks)}; they must be at least two different numbers, 1 among them, "
                    "such as [1, 33, 257]"
                )
        return value

    @model_validator(mode="after")
    def _baseline_is_a_right_arm(self) -> Self:
        if self.baseline is None:
            return self
        if self.baseline not in self.arms:
            raise broken_rule(f"it must be one of the scenario's arms: {listed(self.arms)}", key="baseline")
        if not named_arm(self.baseline).is_right:
            raise broken_rule("it is wrong by design: compare with a right arm", key="baseline")
        return self


class Scenario(ScenarioKeys):
    """A checked scenario and the file it came from. Paths in it are absolute."""

    path: Path


@dataclass(frozen=True, slots=True)
class Case:
    """One combination of the sweep: a scenario with nothing left to sweep.

    `case_id` is a hash of what is run (name, model, runner, traffic, seed, the bytes of a trace and of
    files of embeddings), the same in every process and on every machine; how often and by which arms it is
    run is not part of it.
    """

    scenario: Scenario
    label: str
    values: Mapping[str, object]
    case_id: str

    @property
    def model_spec(self) -> ModelSpec:
        return spec_of(self.scenario.model, self.scenario.image_attention)

    @property
    def image_attention(self) -> ImageAttention | None:
        """How the rows of one image attend to one another; None for a text model."""
        model = self.model_spec
        return model.image_attention if model.is_multimodal else None

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know of how it is run."""
        runner = self.scenario.runner
        isolated = (ISOLATED,) if self.scenario.isolation == "process" else ()
        late = (_LATE_FENCE,) if runner.fence == "embeddings" else ()
        judged = () if runner.dtype == "float32" else (rule_in_words(runner.dtype),)
        return (*isolated, *late, *judged)

    @property
    def runner_config(self) -> RunnerConfig:
        return _runner_config(self.scenario.runner)


def load_scenario(path: Path, overrides: Sequence[str] = (), seed: int | None = None) -> Scenario:
    """The scenario of a file with `key=value` overrides and a seed put in, all its cases checked."""
    source = read_source(path)
    for text in overrides:
        source = overridden(source, text)
    if seed is not None:
        source = with_option(source, ("seed",), seed, f"--seed {seed}")
    source = with_paths(source)
    keys = validated(ScenarioKeys, with_first_values(source))
    scenario = Scenario(path=path, **dict(keys))
    for _ in _cases(source, path):  # an error in any of them is the scenario's
        pass
    return scenario


def expand(scenario: Scenario) -> tuple[Case, ...]:
    """The cases of the sweep, its last key changing fastest; one case where nothing is swept."""
    data = scenario.model_dump(exclude={"path"}, exclude_none=True)
    return tuple(_cases(Source(scenario.path, data), scenario.path))


def dump_scenario(scenario: Scenario) -> str:
    """The scenario with every default filled in, as YAML that load_scenario reads back to the same."""
    text = io.StringIO()
    yaml = YAML(typ="rt")
    yaml.default_flow_style = False
    yaml.dump(scenario.model_dump(mode="json", exclude={"path"}, exclude_none=True), text)
    return text.getvalue()


def json_schema() -> dict[str, Any]:
    """The schema of a scenario file, for editors and other tools."""
    schema = ScenarioKeys.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "Scenario"}


def missing_requirements(scenario: Scenario, device_kind: str) -> str | None:
    """Why this machine and device cannot run the scenario, or None where they can."""
    requires = scenario.requires
    if requires.device == "cuda" and device_kind != "cuda":
        return f"needs a CUDA device; this run uses the device {device_kind}"
    cores = usable_cores()
    if requires.min_cores is not None and cores < requires.min_cores:
        return f"needs {requires.min_cores} cores; this process may use {cores}"
    memory_gib = psutil.virtual_memory().total / 2**30
    if requires.min_memory_gib is not None and memory_gib < requires.min_memory_gib:
        return f"needs {requires.min_memory_gib:g} GiB of memory; this machine has {memory_gib:.1f}"
    return None


def _cases(source: Source, path: Path) -> Iterator[Case]:
    seen: dict[str, str] = {}
    for values, case_source in combinations(source):
        case = _case(case_source, path, values, case_label(values, _sweep_of(source)))
        if case.case_id in seen:
            rule = f"the cases {seen[case.case_id]} and {case.label} are the same: remove one"
            raise SuiteError(value_error(source, ("sweep",), rule))
        seen[case.case_id] = case.label
        yield case


def _sweep_of(source: Source) -> Mapping[str, Sequence[object]]:
    """The sweep, which `combinations` has checked."""
    return source.data.get("sweep") or {}


def _case(source: Source, path: Path, values: Mapping[str, object], label: str) -> Case:
    keys = validated(ScenarioKeys, source)
    scenario = Scenario(path=path, **dict(keys))
    label = label or scenario.name
    try:
        _check_together(scenario)
        case_id = _case_id(scenario)
    except KeyedError as error:
        place = f" (in the case {label})" if values else ""
        text = value_error(source, _path_of(error.key), str(error))
        raise SuiteError(f"{text}{place}") from None
    return Case(scenario, label, values, case_id)


def _path_of(key: str) -> KeyPath:
    """A dotted key as a path; numbers in it are places in lists."""
    return tuple(int(part) if part.isdigit() else part for part in key.split("."))


def _check_together(scenario: Scenario) -> None:
    """What no key can tell alone: sizes and arms against the model, requests against the sizes."""
    model = _model(scenario)
    try:
        config = _runner_config(scenario.runner)
        config.check_model(model)
    except RunnerError as error:
        raise _keyed(error) from None
    _check_encoder_budget(scenario, model)
    _check_whole_images(scenario, model)
    _check_lookup(scenario.runner)
    _check_memory(scenario, model)
    check_token_ids(scenario.traffic.sampling, model)
    _check_last_arrival(scenario, plan_demand(scenario.traffic, model, config, scenario.seed))
    for name in scenario.arms:
        reason = why_not(named_arm(name), model, scenario.traffic)
        if reason is not None:
            raise KeyedError("arms", reason)


def _model(scenario: Scenario) -> ModelSpec:
    try:
        model = spec_of(scenario.model)
    except RunnerError as error:
        raise KeyedError("model", str(error)) from None
    try:
        return with_image_attention(model, scenario.image_attention)
    except RunnerError as error:
        raise _keyed(error) from None


def _check_encoder_budget(scenario: Scenario, model: ModelSpec) -> None:
    rows = model.vision.rows_per_image if model.vision is not None else 0
    if scenario.runner.max_encoder_tokens_per_step < rows:
        raise KeyedError(
            "runner.max_encoder_tokens_per_step",
            f"one image of {model.name} has {rows} rows and could never be encoded: raise it",
        )


def _check_whole_images(scenario: Scenario, model: ModelSpec) -> None:
    """Refuse images that must be computed in one step, and fit none."""
    rows = model.vision.rows_per_image if model.vision is not None and model.attends_both_ways else 0
    if scenario.runner.max_num_batched_tokens < rows:
        raise KeyedError(
            "runner.max_num_batched_tokens",
            f"one image of {model.name} has {rows} rows, which attend in both directions and so are computed "
            "in one step: raise it, or set image_attention: causal",
        )


def _check_lookup(sizes: RunnerSection) -> None:
    """Refuse drafts that could never be: nothing as long as the shortest lookup occurs twice in a request."""
    if sizes.num_speculative_tokens and sizes.prompt_lookup_min >= sizes.max_model_len:
        raise KeyedError(
            "runner.prompt_lookup_min",
            f"a request has runner.max_model_len {sizes.max_model_len} tokens at most, so that nothing would "
            "ever be drafted: lower it",
        )


def _check_last_arrival(scenario: Scenario, demand: Demand) -> None:
    last_s = demand.needs[-1].arrival_s
    if scenario.traffic.steps is not None or last_s < scenario.timeout_s:
        return
    arrivals, key, mend = scenario.traffic.arrivals, "", "raise the rate or timeout_s, or lower "
    process = process_of(arrivals)
    if isinstance(process, TraceReplay):
        key, mend = "time_scale", "lower it or raise timeout_s, or lower "
    else:
        key = "to_rate" if isinstance(process, Ramp) else "rate"
    if process is not arrivals:
        key = f"process.{key}"
    count = "traffic.arrivals.limit" if isinstance(arrivals, TraceReplay) else "traffic.num_requests"
    raise KeyedError(
        f"traffic.arrivals.{key}",
        f"the last of {len(demand.needs)} requests would come after {last_s:,.6g} s, and a run ends "
        f"after timeout_s, {scenario.timeout_s:g} s: {mend}{count}",
    )


def _check_memory(scenario: Scenario, model: ModelSpec) -> None:
    """Refuse a size that alone needs more memory than this machine has, or than is required of one."""
    sizes, item_bytes = scenario.runner, ITEM_BYTES[scenario.runner.dtype]
    hidden_bytes = model.hidden_size * item_bytes
    cache = sizes.num_blocks * sizes.block_size
    row_bytes = 2 * model.num_layers * model.num_kv_heads * model.head_dim * item_bytes
    image_rows = image_positions(model) if model.vision is not None else 0
    sampled = 2 * (1 + sizes.num_speculative_tokens) * (2 + 2 * (1 + MAX_LOGPROBS))  # of two steps
    needed = {
        "max_num_seqs": (
            sizes.max_num_seqs * (sizes.max_model_len + sampled) * _ID_BYTES,
            "the ids and samples of each sequence",
        ),
        "num_blocks": (cache * row_bytes, f"{cache:,} cached positions (with runner.block_size)"),
        "num_resident_rows": (sizes.num_resident_rows * hidden_bytes, "the rows kept"),
        "num_encoder_slots": (sizes.num_encoder_slots * image_rows * hidden_bytes, "the images kept"),
        "max_num_batched_tokens": (2 * sizes.max_num_batched_tokens * hidden_bytes, "the rows of a step"),
    }
    required_gib = scenario.requires.min_memory_gib or 0.0
    limit = max(psutil.virtual_memory().total, int(required_gib * 2**30))
    for name, (num_bytes, what) in needed.items():
        if num_bytes > limit:
            raise KeyedError(
                f"runner.{name}",
                f"{what} would need {num_bytes:,} bytes of memory, and there are {limit:,}: lower it",
            )
    if scenario.requires.device == "any":
        _check_weights(model, sizes.dtype, limit)


def _check_weights(model: ModelSpec, dtype: FloatType, limit: int) -> None:
    """The device holds them in the runner's type; the oracle, which computes in float32, in that."""
    of_device, of_oracle = weight_bytes(model, dtype), weight_bytes(model, "float32")
    if of_oracle > _LARGE_WEIGHTS and of_device + of_oracle > limit:
        raise KeyedError(
            "model",
            f"its weights take {of_device:,} bytes for the device, in {dtype}, and {of_oracle:,} for the "
            f"oracle, in float32, and there are {limit:,}: take a smaller model, or say what is needed with "
            "requires: {device: cuda}",
        )


def _keyed(error: RunnerError) -> KeyedError:
    """A runner's refusal begins with the key it is about and its value."""
    found = re.match(r"(runner\.\w+|image_attention) is [^ ,;]+[;,]? ?", str(error))
    if found is None:
        return KeyedError("runner", str(error))
    return KeyedError(found.group(1), str(error)[found.end() :])


def _runner_config(section: RunnerSection) -> RunnerConfig:
    return RunnerConfig(**section.model_dump())


def _case_id(scenario: Scenario) -> str:
    content = scenario.model_dump(mode="json", include={"name", "model", "runner", "traffic", "seed"})
    try:
        content["model"] = model_digest(scenario.model)
    except RunnerError as error:
        raise KeyedError("model", str(error)) from None
    if (attention := _model(scenario).image_attention) != spec_of(scenario.model).image_attention:
        content["image_attention"] = attention
    if isinstance(scenario.traffic.arrivals, TraceReplay):
        content["traffic"]["arrivals"]["path"] = _trace_digest(Path(scenario.traffic.arrivals.path))
    for name, default in _YOUNG_ARRIVAL_KEYS.items():
        if content["traffic"]["arrivals"].get(name, default) == default:
            content["traffic"]["arrivals"].pop(name, None)
    for name, default in _YOUNG_RUNNER_KEYS.items():
        if content["runner"].get(name, default) == default:
            content["runner"].pop(name, None)
    steps = content["traffic"].pop("steps")
    if steps is not None:
        content["traffic"]["steps"] = _recorded_digest(steps) if "recorded" in steps else steps
    content["traffic"]["embeds_files"] = [_digest(Path(path)) for path in scenario.traffic.embeds_files]
    text = json.dumps(content, sort_keys=True, ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _recorded_digest(steps: Mapping[str, str]) -> list[str]:
    """Of the files that a recorded run's steps and requests are read from; a folder may move."""
    folder, run = Path(steps["recorded"]), steps["run"]
    return [_digest(folder / name / f"{run}.parquet") for name in (STEPS, REQUESTS)]


def _trace_digest(path: Path) -> str | list[str]:
    """Of a trace's bytes; clients are several files, and it is drawn for each by its name."""
    if not is_servegen(path):
        return _digest(path)
    return [f"{file.name} {_digest(file)}" for file in client_files(path)]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
