"""How numbers are written on the page: digits, units, sample counts, and "n/a" with its reason."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np


def number(value: float) -> str:
    """Four significant digits, thousands grouped: 12,345 · 412.3 · 0.01234 · 1.234e-06."""
    if not math.isfinite(value):
        return "n/a"
    if value == 0:
        return "0"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    if size < 0.001:
        return f"{value:.3e}"
    decimals = max(0, 3 - math.floor(math.log10(size)))
    return f"{value:.{decimals}f}"


def quantity(value: float, unit: str) -> str:
    """A number and its unit, with a space that does not break."""
    return f"{number(value)}\u00a0{unit}" if unit else number(value)


def undefined(reason: str) -> str:
    return f"n/a: {reason}"


def plural(count: int, noun: str) -> str:
    """ "1 round", "5 rounds"; for nouns that take an s."""
    return f"{count:,}\u00a0{noun}" if count == 1 else f"{count:,}\u00a0{noun}s"


def sample_count(count: int, noun: str) -> str:
    """ "n = 5 rounds", in one piece."""
    return f"n\u00a0=\u00a0{plural(count, noun)}"


def count_range(counts: Iterable[int], noun: str) -> str:
    """ "5 rounds", or "3 to 5 rounds" where counts differ; of none "0 rounds"."""
    known = sorted(counts) or [0]
    low, high = known[0], known[-1]
    return plural(low, noun) if low == high else f"{low:,} to {plural(high, noun)}"


def rounds_used(count: int, num_rounds: int, num_invalid: int, rules: Sequence[str]) -> str:
    """ "n = 6 rounds", or "n = 6 of 8 rounds: 2 INVALID (foreign-load)" where some count for nothing."""
    if not num_invalid:
        return sample_count(count, "round")
    invalid = f"{num_invalid:,}\u00a0INVALID ({', '.join(rules)})"
    return f"n\u00a0=\u00a0{count:,} of {plural(num_rounds, 'round')}: {invalid}"


def about(seconds: float) -> str:
    """A time to come, roughly: "about 40 s", "about 3 min", "about 1.5 h"."""
    if seconds < 90:
        return f"about {max(10, 10 * math.ceil(seconds / 10))}\u00a0s"
    if seconds < 5400:
        return f"about {math.ceil(seconds / 60)}\u00a0min"
    return f"about {math.ceil(seconds / 360) / 10:g}\u00a0h"


def spread(values: Sequence[float], unit: str) -> str:
    """The lowest and highest of some values; one value alone has no spread."""
    low, high = min(values), max(values)
    if len(values) == 1:
        return "no spread"
    if low == high:
        return f"{quantity(low, unit)} each time"
    return f"{number(low)} to {quantity(high, unit)}"


def median(values: Sequence[float]) -> float:
    return float(np.median(np.asarray(values, dtype=np.float64)))


def cut(text: str, limit: int) -> str:
    """The text itself, or its beginning and how much was cut."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}… ({len(text) - limit:,} more characters)"


def listed(names: Sequence[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
