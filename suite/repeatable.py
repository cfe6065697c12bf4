"""The spans whose commands may be repeated in a step, by name. Knows buffers and operations; no scenario."""

from __future__ import annotations

from collections.abc import Sequence

from runner.commands import buffer_table, is_repeatable
from runner.config import RunnerConfig
from runner.models import MODELS
from runner.spans import command_spans, upload_span

MAX_REPEATS = 4096

_ONLY_DOWNLOADED = ("sampled_ids", "logprobs", "logprob_ids", "accepted_ids", "draft_ids")


def repeatable_spans() -> tuple[str, ...]:
    """Every span that `amplify` may name, on whatever model; an arm's steps have only some of them."""
    config = RunnerConfig(num_speculative_tokens=1)
    buffers = dict.fromkeys(name for model in MODELS.values() for name in buffer_table(config, model))
    downloads = {upload_span(name) for name in _ONLY_DOWNLOADED}
    spans = command_spans(tuple(buffers))
    return tuple(span for span in spans if is_repeatable(span) and span not in downloads)


def in_order(spans: Sequence[str]) -> list[str]:
    """Spans as a step runs them, more or less: uploads, then operations."""
    order = {span: place for place, span in enumerate(repeatable_spans())}
    return sorted(spans, key=lambda span: order.get(span, len(order)))
