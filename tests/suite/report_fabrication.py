"""Run folders made up for the report's tests: what `suite.store` would load, without a disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from runner.config import RunnerConfig
from runner.measure import StepRecord
from runner.models import ImageAttention
from suite.metrics import DEFINITIONS, run_metrics
from suite.record import Failure, LogprobVerdict, RequestRecord, RunRecord, Status, TokenVerdict

MS = 1_000_000


@dataclass
class FakeLoaded:
    """Holds what a run folder holds."""

    runs: list[RunRecord] = field(default_factory=list)
    config: Sequence[Mapping[str, Any]] = ()
    environment: Mapping[str, Any] = field(
        default_factory=lambda: {
            "command_line": "python -m suite run scenarios/smoke.yaml",
            "cpu_model": "A processor",
            "num_cores": 2,
            "packages": {"torch": "2.13.0", "nvtx": None},
        }
    )
    invocation: Mapping[str, Any] = field(default_factory=lambda: {"seed": 7, "device": "process"})
    summary: Mapping[str, Any] | None = None
    skipped: Sequence[tuple[str, str]] = ()
    warnings: Sequence[str] = ()
    is_interrupted: bool = False
    one_in: int = 1
    step_frames: dict[str, pd.DataFrame] = field(default_factory=dict)
    request_frames: dict[str, pd.DataFrame] = field(default_factory=dict)

    def steps(self, run_id: str) -> pd.DataFrame:
        return self.step_frames.get(run_id, pd.DataFrame())

    def requests(self, run_id: str) -> pd.DataFrame:
        return self.request_frames.get(run_id, pd.DataFrame())

    def add(self, run: RunRecord, steps: pd.DataFrame, requests: pd.DataFrame) -> None:
        self.runs.append(run)
        self.step_frames[run.run_id] = steps
        self.request_frames[run.run_id] = requests


def request(index: int, num_output: int = 8, error: str | None = None, seed: int = 0) -> RequestRecord:
    """Arrives 5 ms after the one before; its first token takes some 20 ms, the others less."""
    random = np.random.default_rng([seed, index])
    scheduled = index * 5 * MS
    gaps = random.lognormal(0.9, 0.35, num_output)
    gaps[0] += 15 + random.exponential(8)
    times = tuple(int(t) for t in scheduled + np.cumsum(gaps) * MS) if error is None else ()
    is_image = index % 3 == 0
    return RequestRecord(
        request_id=f"request-{index}",
        kind="image" if is_image else "text",
        num_prompt_tokens=40,
        num_image_tokens=16 if is_image else 0,
        num_images=int(is_image),
        requested_output_tokens=num_output,
        num_output_tokens=len(times),
        scheduled_ns=scheduled,
        sent_ns=scheduled + MS // 10,
        first_scheduled_ns=scheduled + MS if error is None else None,
        token_ns=times,
        finished_ns=times[-1] if times else None,
        finish_reason="max_tokens" if error is None else "error",
        error=error,
        num_preemptions=0,
        num_recomputed_tokens=0,
        output_ids=tuple(range(len(times))),
        num_tokens_right=len(times) if error is None else None,
        num_tokens_wrong=0 if error is None else None,
        num_tokens_tied=0 if error is None else None,
    )


def step_frame(count: int, seed: int = 0) -> pd.DataFrame:
    """`count` steps of all three kinds, the columns as the store flattens them."""
    random = np.random.default_rng(seed)
    kind = np.array(["prefill", "mixed", *["decode"] * 6])[np.arange(count) % 8]
    prefill = np.where(kind == "decode", 0, random.integers(20, 180, count))
    decode = np.where(kind == "prefill", 0, random.integers(1, 16, count))
    device = (2e6 + 3e4 * prefill + 1e5 * random.random(count)).astype(np.int64)
    host = (3e5 + 1e5 * random.random(count)).astype(np.int64)
    end = np.cumsum(device + host + 100_000)
    tokens = prefill + decode
    values: dict[str, Any] = {item.name: 0 for item in fields(StepRecord)}
    del values["copies"], values["bytes"]
    values |= {
        "step_id": np.arange(count),
        "kind": kind,
        "ids_route": "host",
        "embeds_route": "lookup",
        "num_rows": decode + (prefill > 0),
        "num_tokens": tokens,
        "num_decode_rows": decode,
        "num_prefill_tokens": prefill,
        "num_image_rows": np.where(prefill > 60, 16, 0),
        "num_waiting": random.integers(0, 9, count),
        "num_free_blocks": random.integers(100, 400, count),
        "start_ns": end - device - host - 100_000,
        "end_ns": end,
        "device_start_ns": end - device,
        "device_end_ns": end,
        "schedule_ns": host,
        "host_ns": host,
        "device_ns": device,
        "copies.metadata": 1,
        "copies.pixels": (prefill > 60).astype(int),
        "bytes.metadata": 4 * tokens + 64,
        "bytes.pixels": np.where(prefill > 60, 56 * 56 * 3 * 4, 0),
    }
    return pd.DataFrame(values, index=range(count))


def request_frame(requests: Sequence[RequestRecord]) -> pd.DataFrame:
    """One row a request; token times as lists, whole numbers nullable, as the store reads them."""
    frame = pd.DataFrame([asdict(one) for one in requests], columns=[f.name for f in fields(RequestRecord)])
    for name in ("first_scheduled_ns", "finished_ns", "num_tokens_right", "num_tokens_wrong", "first_wrong"):
        frame[name] = pd.array(frame[name].tolist(), dtype="Int64")
    return frame


def verdict(requests: Sequence[RequestRecord], num_wrong: int = 0) -> TokenVerdict:
    checked = sum(one.num_output_tokens for one in requests)
    return TokenVerdict(
        num_checked=checked,
        num_right=checked - num_wrong,
        num_wrong=num_wrong,
        num_ties=0,
        num_requests_right=len(requests) - bool(num_wrong),
        num_requests_wrong=int(bool(num_wrong)),
        first_wrong=(requests[0].request_id, 3) if num_wrong else None,
    )


def run_record(
    run_id: str,
    requests: Sequence[RequestRecord] = (),
    *,
    scenario: str = "smoke",
    case: str | None = None,
    arm: str = "sync-ids",
    round_number: int = 0,
    status: Status = Status.COMPLETED,
    failure: Failure | None = None,
    is_warmup: bool = False,
    duration_s: float = 1.0,
    num_wrong: int = 0,
    notes: Sequence[str] = (),
    num_steps: int = 0,
    is_control: bool = False,
    scheduling: Literal["sync", "async"] | None = None,
    scheduling_reason: str | None = None,
    image_attention: ImageAttention | None = None,
) -> RunRecord:
    is_completed = status is Status.COMPLETED
    metrics = run_metrics(requests, (), duration_s) if is_completed else {}
    if is_completed:
        metrics["steps"] = DEFINITIONS["steps"].of(float(num_steps), num_steps)
    return RunRecord(
        run_id=run_id,
        scenario=scenario,
        case_id=f"id-{case or scenario}",
        case_label=case or scenario,
        case_values={},
        arm=arm,
        round=round_number,
        is_warmup=is_warmup,
        status=status,
        device="process",
        seed=7,
        workload_hash="abc",
        started_utc="2026-01-01T00:00:00Z",
        duration_s=duration_s,
        metrics=metrics,
        tokens=verdict(requests, num_wrong) if is_completed and requests else None,
        failure=failure,
        notes=tuple(notes),
        num_steps=num_steps,
        num_requests=len(requests),
        is_control=is_control,
        scheduling=scheduling,
        scheduling_reason=scheduling_reason,
        image_attention=image_attention,
    )


HOSTILE = "a</script><img src=x onerror=alert(1)><!-- \"q' & &lt; %{x} 日本 Łukasz 🙂 \u2028 end"


def failure(message: str = "the device process died") -> Failure:
    return Failure(kind="worker_died", message=message, detail="Traceback: step 7, forward")


def all_failed() -> FakeLoaded:
    """Three rounds, none completed."""
    result = FakeLoaded(config=[{"name": "smoke"}])
    for number in range(3):
        run = run_record(f"failed-{number}", round_number=number, status=Status.FAILED, failure=failure())
        result.runs.append(run)
    return result


def interrupted() -> FakeLoaded:
    """One measured round completed, the next was cut off."""
    result = loaded(num_rounds=1)
    result.is_interrupted = True
    result.runs.append(
        run_record("cut-off", round_number=1, status=Status.INTERRUPTED, failure=failure("stopped by SIGINT"))
    )
    return result


def with_features(warnings: Sequence[str] = ()) -> FakeLoaded:
    """Two cases: nothing on, and prefix caching, speculation and log-probabilities, over two rounds each."""
    config = RunnerConfig(prefix_caching=True, num_speculative_tokens=3)
    result = FakeLoaded(config=[{"name": "smoke"}])
    for case, is_on in (("off", False), ("on", True)):
        for number in range(2):
            shares = {"num_cached_tokens": 16, "num_drafted_tokens": 6, "num_accepted_tokens": 2}
            requests = [replace(request(index), **(shares if is_on else {})) for index in range(4)]
            run = run_record(f"{case}-{number}", requests, case=case, round_number=number, num_steps=8)
            steps = step_frame(8)
            if is_on:
                steps["hash_ns"] = [2_000_000] + 7 * [0]
                steps["num_accepted_tokens"] = 1
                records = [StepRecord(**row, copies={}, bytes={}) for row in _step_rows(steps)]
                run = run.model_copy(
                    update={
                        "metrics": run_metrics(requests, records, 1.0, config),
                        "logprobs": LogprobVerdict(num_checked=32, num_wrong=number, max_error=0.5),
                        "warnings": tuple(warnings),
                    }
                )
            result.add(run, steps, request_frame(requests))
    return result


def _step_rows(steps: pd.DataFrame) -> list[dict[str, Any]]:
    names = {item.name for item in fields(StepRecord)} - {"copies", "bytes"}
    rows = steps[sorted(names)].to_dict("records")
    return [{str(name): value for name, value in row.items()} for row in rows]


def none_finished() -> FakeLoaded:
    """A completed run in which every request failed before its first token, and no step was made."""
    requests = [request(index, error=f"request-{index} needs 9 blocks, there are 8") for index in range(6)]
    result = FakeLoaded(config=[{"name": "smoke"}])
    result.add(run_record("none", requests), step_frame(0), request_frame(requests))
    return result


def hostile() -> FakeLoaded:
    """Markup, quotes, other scripts and line separators wherever a user's text can stand."""
    result = loaded(scenario=HOSTILE, cases=(HOSTILE, HOSTILE + "2"), arms=(HOSTILE,), num_rounds=2)
    result.skipped = [(HOSTILE, HOSTILE)]
    result.warnings = [HOSTILE]
    result.environment = {"command_line": HOSTILE, HOSTILE: HOSTILE}
    result.config = [{"name": HOSTILE, "description": HOSTILE, HOSTILE: [HOSTILE]}]
    run = run_record("h", scenario=HOSTILE, status=Status.FAILED, failure=failure(HOSTILE), round_number=9)
    result.runs.append(run)
    result.summary = {
        "findings": [
            {"run_id": "h", "rule": HOSTILE, "message": HOSTILE, "remedy": HOSTILE, "is_timing": False}
        ]
    }
    return result


def large() -> FakeLoaded:
    """10,000 requests and 100,000 steps in one run."""
    return loaded(num_rounds=1, num_requests=10_000, num_output=16, num_steps=100_000, has_warmup=False)


def with_controls() -> FakeLoaded:
    """Arm ids right; stale, a negative control, wrong; overwrite, another, never exercised."""
    result = loaded(arms=("ids",), num_rounds=2, has_warmup=False)
    for arm, num_wrong in (("stale", 5), ("overwrite", 0)):
        requests = [request(index) for index in range(4)]
        for number in range(2):
            record = run_record(
                f"{arm}-{number}",
                requests,
                arm=arm,
                round_number=number,
                num_wrong=num_wrong,
                num_steps=8,
                is_control=True,
                scheduling="async",
                scheduling_reason="asked for",
            )
            result.add(record, step_frame(8), request_frame(requests))
    return result


def loaded(
    *,
    cases: Sequence[str | None] = (None,),
    arms: Sequence[str] = ("sync-ids",),
    scenario: str = "smoke",
    num_rounds: int = 5,
    num_requests: int = 24,
    num_output: int = 8,
    num_steps: int = 64,
    has_warmup: bool = True,
) -> FakeLoaded:
    """Every arm of every case with a warm-up and some measured rounds, all right."""
    result = FakeLoaded(config=[{"name": scenario, "description": "Made up", "rounds": num_rounds}])
    for case_index, case in enumerate(cases):
        for arm in arms:
            for number in range(-int(has_warmup), num_rounds):
                add_run(result, scenario, case, case_index, arm, number, num_requests, num_output, num_steps)
    return result


def add_run(
    result: FakeLoaded,
    scenario: str,
    case: str | None,
    case_index: int,
    arm: str,
    number: int,
    num_requests: int,
    num_output: int,
    num_steps: int,
) -> None:
    seed = 1000 * case_index + number + 1
    requests = [request(index, num_output, seed=seed) for index in range(num_requests)]
    record = run_record(
        f"{scenario}-{case}-{arm}-{number}",
        requests,
        scenario=scenario,
        case=case,
        arm=arm,
        round_number=max(number, 0),
        is_warmup=number < 0,
        duration_s=1.0 + 0.02 * number + 0.3 * case_index,
        notes=["lengths scaled by 1/64", "one gap of 604,800 s cut to 5 s"],
        num_steps=num_steps,
    )
    result.add(record, step_frame(num_steps, seed), request_frame(requests))
