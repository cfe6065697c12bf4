"""Hand-made requests, steps and runs with times a reader can add up; one step or token every 10 ms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

from runner.measure import StepRecord
from suite.metrics import run_metrics
from suite.record import RequestRecord, RunRecord, Status, TokenVerdict

MS = 1_000_000
START_NS = 5_000_000_000_000_000_000  # past 2**62: a float in between would lose nanoseconds

_FIELDS: Mapping[str, object] = {
    "step_id": 0,
    "kind": "decode",
    "ids_route": "host",
    "embeds_route": "lookup",
    "copies": {},
    "bytes": {},
}


def make_step(
    step_id: int, start_ms: float, end_ms: float, kind: str = "decode", **changes: object
) -> StepRecord:
    """A step from `start_ms` to `end_ms` after START_NS; what is not given is 0."""
    values = {item.name: 0 for item in fields(StepRecord)} | dict(_FIELDS)
    values |= {
        "step_id": step_id,
        "kind": kind,
        "start_ns": START_NS + round(start_ms * MS),
        "end_ns": START_NS + round(end_ms * MS),
    }
    return StepRecord(**(values | changes))  # type: ignore[arg-type]


def make_request(
    request_id: str = "a",
    scheduled_ms: float = 0.0,
    sent_ms: float | None = None,
    first_ms: float | None = 5.0,
    token_ms: Sequence[float] = (10.0, 20.0, 30.0),
    **changes: object,
) -> RequestRecord:
    """A completed request whose output tokens came at `token_ms` after START_NS."""
    tokens = tuple(START_NS + round(at * MS) for at in token_ms)
    sent = scheduled_ms if sent_ms is None else sent_ms
    request = RequestRecord(
        request_id=request_id,
        kind="text",
        num_prompt_tokens=8,
        num_image_tokens=0,
        num_images=0,
        requested_output_tokens=len(tokens),
        num_output_tokens=len(tokens),
        scheduled_ns=START_NS + round(scheduled_ms * MS),
        sent_ns=START_NS + round(sent * MS),
        first_scheduled_ns=None if first_ms is None else START_NS + round(first_ms * MS),
        token_ns=tokens,
        finished_ns=tokens[-1] if tokens else None,
        finish_reason="max_tokens",
        error=None,
        num_preemptions=0,
        num_recomputed_tokens=0,
        output_ids=tuple(range(100, 100 + len(tokens))),
    )
    return replace(request, **changes)  # type: ignore[arg-type]


def failed_request(request_id: str = "bad", error: str = "too long") -> RequestRecord:
    return make_request(
        request_id, first_ms=None, token_ms=(), finish_reason="error", error=error, num_output_tokens=0
    )


def make_run(
    requests: Sequence[RequestRecord] = (),
    steps: Sequence[StepRecord] = (),
    duration_s: float = 1.0,
    num_wrong: int = 0,
    **changes: object,
) -> RunRecord:
    """A completed run of these requests, all checked, `num_wrong` of their tokens wrong."""
    checked = sum(request.num_output_tokens for request in requests)
    verdict = TokenVerdict(
        num_checked=checked,
        num_right=checked - num_wrong,
        num_wrong=num_wrong,
        num_ties=0,
        num_requests_right=len(requests) - bool(num_wrong),
        num_requests_wrong=int(bool(num_wrong)),
        first_wrong=("a", 1) if num_wrong else None,
    )
    values: dict[str, object] = {
        "run_id": "smoke-12345678-sync-ids-r0",
        "scenario": "smoke",
        "case_id": "1234567890abcdef",
        "case_label": "smoke",
        "case_values": {},
        "arm": "sync-ids",
        "round": 0,
        "is_warmup": False,
        "status": Status.COMPLETED,
        "device": "inline",
        "seed": 0,
        "workload_hash": "00",
        "started_utc": "2026-01-01T00:00:00Z",
        "duration_s": duration_s,
        "metrics": run_metrics(requests, steps, duration_s),
        "tokens": verdict,
        "num_steps": len(steps),
        "num_requests": len(requests),
    }
    return RunRecord.model_validate(values | changes)
