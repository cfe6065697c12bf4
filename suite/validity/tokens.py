"""Rules about tokens: right, checked, their log-probabilities right; and no cache that gives them away."""

from __future__ import annotations

from collections.abc import Iterable

from suite.record import RunRecord
from suite.validity.rule import MAX_UNASKED_HIT_RATE, Finding, broken


def tokens(run: RunRecord) -> Iterable[Finding]:
    verdict = run.tokens
    if verdict is None or verdict.num_checked == 0:
        yield broken("tokens-unchecked", run, "no output token was checked")
    elif verdict.num_wrong and not run.is_control:
        message = f"{verdict.num_wrong} of {verdict.num_checked} output tokens are wrong"
        yield broken("tokens-wrong", run, f"{message}{_first(verdict.first_wrong)}")


def logprobs(run: RunRecord) -> Iterable[Finding]:
    found = run.logprobs
    if found is not None and found.num_wrong and not run.is_control:
        error = "missing or no number" if found.max_error is None else f"off by up to {found.max_error:.2g}"
        message = (
            f"the log-probabilities of {found.num_wrong} of {found.num_checked} output tokens are wrong, "
            f"{error}{_first(found.first_wrong)}"
        )
        yield broken("logprobs-wrong", run, message)


def cache_hits(run: RunRecord) -> Iterable[Finding]:
    """Prompts that repeat although nobody asked for it; of an older record nobody knows."""
    rate = run.metrics.get("prefix_cache_hit_rate")
    if run.begins_alike is not False or rate is None or rate.value is None:
        return
    if rate.value > MAX_UNASKED_HIT_RATE:
        message = (
            f"the prefix cache gave {rate.value:.1f} % of prompt positions, though traffic.shared_prefix is "
            "not set"
        )
        yield broken("cache-hits", run, message)


def _first(where: tuple[str, int] | None) -> str:
    return f"; the first: request {where[0]}, output token {where[1]}" if where else ""
