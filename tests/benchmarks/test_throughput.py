"""Output throughput of the runner beside transformers' `generate` and `generate_batch`, interleaved.

A row counts only if its tokens are right: the oracle judges every contender's. The runner on a process of its
own is held to a share of `generate`: a small one where nothing is padded, more than all where lengths differ.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import pytest
import torch
from contenders import NUM_THREADS, Contender, Generate, Outcome, Runner, open_contenders

from runner.core import Prompt, Request, SamplingParams
from runner.measure import StepRecord
from runner.models import TINY_QWEN3
from suite.oracle import Oracle, verdict

HOST_PHASES = ("schedule", "update_batch", "compile", "launch", "retire")
NUM_SHOWN_OPERATIONS = 8


@dataclass(frozen=True)
class Case:
    """Requests of seeded lengths, drawn from [low, high] for prompts and for outputs."""

    name: str
    num_requests: int
    prompt_lengths: tuple[int, int]
    output_lengths: tuple[int, int]
    num_rounds: int
    least: float  # of the throughput of `generate`, the median over rounds

    def requests(self) -> tuple[Request, ...]:
        draw = random.Random(self.name)
        ids = [i for i in range(TINY_QWEN3.vocab_size) if i not in TINY_QWEN3.reserved_ids]
        return tuple(
            Request(
                f"{index}",
                Prompt(tuple(draw.choices(ids, k=draw.randint(*self.prompt_lengths)))),
                SamplingParams(draw.randint(*self.output_lengths), ignore_eos=True),
            )
            for index in range(self.num_requests)
        )


UNIFORM = Case("A: 16 x 64 in, 64 out", 16, (64, 64), (64, 64), num_rounds=5, least=0.8)
MIXED = Case("B: 64 x 16-256 in, 16-128 out", 64, (16, 256), (16, 128), num_rounds=3, least=1.3)


@pytest.fixture(scope="module")
def contenders() -> Iterator[tuple[Contender, ...]]:
    threads = torch.get_num_threads()
    with open_contenders() as opened:
        yield opened
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    return Oracle(TINY_QWEN3, num_threads=NUM_THREADS)


@pytest.mark.parametrize("case", [UNIFORM, MIXED], ids=lambda case: case.name[0])
def test_throughput_beside_transformers(
    case: Case,
    contenders: tuple[Contender, ...],
    oracle: Oracle,
    capsys: pytest.CaptureFixture[str],
) -> None:
    requests = case.requests()
    warm_up(contenders, requests[:4])
    outcomes = interleave(contenders, requests, case.num_rounds)
    for name, runs in outcomes.items():
        check_tokens(name, requests, runs, oracle)
    with capsys.disabled():
        print(f"\n\n{case.name}; float32, {NUM_THREADS} compute thread, {case.num_rounds} rounds")
        print("\n".join(throughput_table(requests, outcomes)))
        for contender in contenders:
            if isinstance(contender, Runner):
                print(where_the_time_goes(contender.name, contender.steps))
        print(computed_by_generate(requests))
    assert median(of_generate(outcomes, "runner, process")) >= case.least


def warm_up(contenders: Sequence[Contender], requests: Sequence[Request]) -> None:
    for contender in contenders:
        contender.serve(requests)


def interleave(
    contenders: Sequence[Contender], requests: Sequence[Request], num_rounds: int
) -> dict[str, list[Outcome]]:
    """Every contender once a round, each round starting with the next one."""
    outcomes: dict[str, list[Outcome]] = {contender.name: [] for contender in contenders}
    for first in range(num_rounds):
        for turn in range(len(contenders)):
            contender = contenders[(first + turn) % len(contenders)]
            outcomes[contender.name].append(contender.serve(requests))
    return outcomes


def check_tokens(name: str, requests: Sequence[Request], runs: Sequence[Outcome], oracle: Oracle) -> None:
    """Every request has its whole length, and the oracle finds every token right or a tie."""
    for run in runs:
        pairs = list(zip(requests, run.outputs, strict=True))
        assert all(len(output) == request.sampling.max_tokens for request, output in pairs), name
        checks = {request.request_id: oracle.check(request, output) for request, output in pairs}
        tokens, note = verdict(checks)
        assert tokens.is_right, f"{name}: {tokens}, {note}"


def throughput_table(requests: Sequence[Request], outcomes: Mapping[str, Sequence[Outcome]]) -> list[str]:
    """Tokens a second, and the ratio to `generate` within each round."""
    num_tokens = sum(request.sampling.max_tokens for request in requests)
    lines = [f"{'':18}{'tok/s':>8}{'min':>8}{'max':>8}{'/ generate':>12}{'min':>7}{'max':>7}"]
    for name, runs in outcomes.items():
        rates = [num_tokens / run.seconds for run in runs]
        ratios = of_generate(outcomes, name)
        lines.append(
            f"{name:18}{median(rates):8.0f}{min(rates):8.0f}{max(rates):8.0f}"
            f"{median(ratios):12.2f}{min(ratios):7.2f}{max(ratios):7.2f}"
        )
    return lines


def of_generate(outcomes: Mapping[str, Sequence[Outcome]], name: str) -> list[float]:
    """By round, a contender's throughput over that of `generate`."""
    pairs = zip(outcomes[name], outcomes[Generate.name], strict=True)
    return [other.seconds / run.seconds for run, other in pairs]


def where_the_time_goes(name: str, steps: Sequence[StepRecord]) -> str:
    """The last run's wall time by host phase, device, and what lies between them."""
    wall_ns = steps[-1].end_ns - steps[0].start_ns
    device_ns = sum(step.device_ns for step in steps)
    phases_ns = {phase: sum(getattr(step, f"{phase}_ns") for step in steps) for phase in HOST_PHASES}
    if name == "runner, inline":  # there the commands run within the launch
        phases_ns["launch"] -= device_ns
    other_ns = wall_ns - device_ns - sum(phases_ns.values())
    parts = {"device": device_ns, **phases_ns, "hand-off and rest": other_ns}
    shares = " · ".join(f"{part} {spent / wall_ns:.1%}" for part, spent in parts.items())
    return f"{name}: {len(steps)} steps of {wall_ns / len(steps) / 1e6:.2f} ms: {shares}"


def computed_by_generate(requests: Sequence[Request]) -> str:
    """How many positions `generate` computes for those that anybody wants."""
    prompts = [len(request.prompt) for request in requests]
    outputs = [request.sampling.max_tokens for request in requests]
    computed = len(requests) * (max(prompts) + max(outputs))
    wanted = sum(prompts) + sum(outputs)
    return f"generate computes {computed} positions for {wanted} wanted (padding, finished rows)"


def test_operations_behind_the_device_time(
    contenders: tuple[Contender, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Own time by operation, one run each of the uniform case under torch's profiler."""
    requests = UNIFORM.requests()
    for contender in contenders:
        if contender.name not in ("runner, inline", Generate.name):
            continue
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            contender.serve(requests)
        events = [event for event in profile.key_averages() if event.key.startswith(("aten::", "mkldnn::"))]
        spent_us = {event.key: event.self_cpu_time_total for event in events}
        calls = sum(event.count for event in events)
        assert spent_us.get("aten::mm", 0) + spent_us.get("mkldnn::_linear_pointwise", 0) > 0
        with capsys.disabled():
            print(operations_line(contender.name, spent_us, calls))


def operations_line(name: str, spent_us: Mapping[str, float], calls: int) -> str:
    total_us = sum(spent_us.values())
    longest = sorted(spent_us, key=lambda key: -spent_us[key])[:NUM_SHOWN_OPERATIONS]
    shares = " · ".join(f"{key.split('::')[-1]} {spent_us[key] / total_us:.0%}" for key in longest)
    return f"\n{name}: {calls} operations, {total_us / 1e6:.2f} s of their own time: {shares}"
