"""A fabricated run folder of any size, through the store's own writers: rounds of two arms, all alike."""

from __future__ import annotations

import shutil
from pathlib import Path

from records import make_request, make_run, make_step

from suite.store import REQUESTS, STEPS, RunFolder

ARMS = ("sync-rows", "async-rows")
REFERENCE = ARMS[0]
TOKENS = 100
BUFFERS = ("staging", "is_token_ids", "inputs_embeds")


def make_large_run(parent: Path, num_rounds: int, num_steps: int, num_requests: int) -> Path:
    """A folder of `num_rounds` rounds of both arms, each run of so many steps and requests.

    A request is computed in one prefill step and `TOKENS` - 1 decode steps of its batch.
    """
    folder = RunFolder.create(parent, "large")
    cases = [
        {
            "scenario": "smoke",
            "case_id": make_run().case_id,
            "reference": REFERENCE,
            "primary_metrics": ["output_throughput"],
        }
    ]
    folder.write_config({"scenarios": [{"name": "smoke"}], "cases": cases, "skipped": []})
    folder.write_environment({})
    first: str | None = None
    for number in range(num_rounds):
        for arm in ARMS:
            run_id = f"{arm}-r{number}"
            if first is None:
                first = _write_tables(folder, run_id, num_steps, num_requests)
            else:  # the same bytes as the writers would write again
                for kind in (STEPS, REQUESTS):
                    shutil.copy(folder.path / kind / first, folder.path / kind / f"{run_id}.parquet")
            folder.append_run(_record(run_id, arm, number, num_steps, num_requests))
    return folder.path


def _record(run_id, arm, number, num_steps, num_requests):
    sample = make_run([make_request()], [make_step(0, 0, 10)], run_id=run_id, arm=arm, round=number)
    throughput = sample.metrics["output_throughput"]
    value = {"sync-rows": 100.0, "async-rows": 130.0}[arm] + number % 3
    completed = sample.metrics["completed_requests"].model_copy(update={"value": float(num_requests)})
    metrics = {
        **sample.metrics,
        "output_throughput": throughput.model_copy(update={"value": value}),
        "completed_requests": completed,
    }
    changes = {"num_steps": num_steps, "num_requests": num_requests, "metrics": metrics}
    return sample.model_copy(update=changes)


def _write_tables(folder, run_id, num_steps, num_requests):
    per_batch = num_requests * TOKENS // num_steps
    assert per_batch * num_steps == num_requests * TOKENS, "steps hold whole batches"
    prompt = 8
    steps = []
    for step_id in range(num_steps):
        is_first = step_id % TOKENS == 0
        steps.append(
            make_step(
                step_id,
                step_id,
                step_id + 1,
                "prefill" if is_first else "decode",
                num_rows=per_batch,
                num_tokens=per_batch * (prompt if is_first else 1),
                schedule_ns=20_000 + step_id % 7,
                device_start_ns=step_id * 1_000_000,
                device_end_ns=step_id * 1_000_000 + 900_000,
                copies=dict.fromkeys(BUFFERS, 1),
                bytes=dict.fromkeys(BUFFERS, 4 * per_batch),
            )
        )
    folder.write_steps(run_id, steps)
    requests = [
        make_request(
            f"q{index}",
            scheduled_ms=index // per_batch * TOKENS,
            first_ms=index // per_batch * TOKENS,
            token_ms=[index // per_batch * TOKENS + token + 1 for token in range(TOKENS)],
            num_prompt_tokens=prompt,
            num_tokens_right=TOKENS,
            num_tokens_wrong=0,
            num_tokens_tied=0,
        )
        for index in range(num_requests)
    ]
    folder.write_requests(run_id, requests)
    return f"{run_id}.parquet"
