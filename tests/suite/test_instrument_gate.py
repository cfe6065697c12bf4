"""What the instrument costs a step of 64 rows: ns per span x spans per step / time of a step.

The limits are the product's own; on an idle machine the cost is a tenth of them, which is the margin here.
tests/benchmarks/test_instrument_cost.py shows the figures beside the measured ratios of throughput.
"""

from __future__ import annotations

import pytest
from full_batch import full_batch_device, serve_full_batch
from records import make_step

from runner.spans import HOST_PHASES, Level, Span
from suite.micro.instrument import span_cost_ns
from suite.micro.median import Estimate
from suite.micro.span_cost import SpanCost, SpansPerStep, instrument_share, spans_per_step

LIMITS: dict[Level, float] = {"nvtx": 0.005, "events": 0.02}


def test_the_instrument_costs_little_of_a_step_of_64_rows() -> None:
    with full_batch_device() as (device, config):
        plain = serve_full_batch(device, config, "refresh", "off", num_outputs=10)
        seen = serve_full_batch(device, config, "refresh", "events", num_outputs=10)
    counted = spans_per_step(seen.spans, seen.steps)
    assert counted.host >= len(HOST_PHASES) - 1  # `hash` is for the prefix cache alone
    assert 6 <= counted.command <= 20
    for level, limit in LIMITS.items():
        share = instrument_share(span_cost_ns(level), counted, plain.step_ns)
        assert 0 < share <= limit, f"{level}: {share:.3%} of a step of {plain.step_ns / 1e6:.2f} ms"


def test_a_span_costs_more_with_every_level() -> None:
    nvtx, host, events = (span_cost_ns(level, num_samples=9) for level in ("nvtx", "host", "events"))
    assert 0 < nvtx.host.value < host.host.value
    assert 0 < nvtx.command.value < events.command.value
    assert nvtx.read.value == host.read.value == 0 < events.read.value
    for cost in (nvtx, host, events):
        assert cost.host.value < 50_000 and cost.command.value < 50_000


def test_spans_are_counted_a_step_and_only_those_of_the_steps_asked_for() -> None:
    spans = [
        Span(1, "launch", "host", 0, 1),
        Span(1, "step decode slice/merge", "steps", 0, 9),
        Span(1, "forward", "compute", 1, 2),
        Span(1, "download", "output", 2, 3),
        Span(2, "launch", "host", 4, 5),
        Span(2, "forward", "compute", None, None, "it had not run"),
        Span(7, "launch", "host", 4, 5),
    ]
    steps = [make_step(step_id, 0, 10) for step_id in (1, 2)]
    assert spans_per_step(spans, steps) == SpansPerStep(host=1.5, command=1.5)
    with pytest.raises(ValueError, match="no step"):
        spans_per_step(spans, [])


def test_the_share_by_hand() -> None:
    """10 x 400 ns on the host, 5 x (600 + 200) ns for commands, of 1 ms: 0.8 %."""

    def of(value: float) -> Estimate:
        return Estimate(value, None, None, 1, value)

    cost = SpanCost("events", of(400), of(600), of(200))
    assert instrument_share(cost, SpansPerStep(10, 5), 1_000_000) == pytest.approx(0.008)
