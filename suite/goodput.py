"""Gates of goodput, as vLLM spells them: what a request must meet to count, in ms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Self

from pydantic import model_validator

from suite.errors import SuiteError
from suite.metrics import GATES
from suite.schema import PositiveNumber, StrictModel, broken_rule, listed, one_of


class Goodput(StrictModel):
    """The most a request may take: to its first token, per output token after it, and to its last."""

    ttft: PositiveNumber | None = None
    tpot: PositiveNumber | None = None
    e2el: PositiveNumber | None = None

    @model_validator(mode="after")
    def _has_a_gate(self) -> Self:
        if not self.gates:
            raise broken_rule(f"name at least one of {listed(GATES)}, such as {{ttft: 200, tpot: 20}}")
        return self

    @property
    def gates(self) -> Mapping[str, float]:
        """Name -> ms, of those that are set."""
        return {name: float(limit) for name, limit in self.model_dump(exclude_none=True).items()}


def goodput_override(texts: Sequence[str]) -> str:
    """ "ttft:200 tpot:20" in one or several texts, as the override of a scenario's key."""
    gates: dict[str, str] = {}
    for text in " ".join(texts).split():
        name, colon, limit = text.partition(":")
        option = f"--goodput {text}"
        if not colon:
            raise SuiteError(f"{option}: write a name and milliseconds, such as ttft:200")
        if name not in GATES:
            raise SuiteError(f"{option}: {one_of(name, GATES)}")
        if name in gates:
            raise SuiteError(f"{option}: {name} stands twice; name each once")
        if not _is_positive(limit):
            raise SuiteError(f"{option}: it must be a number of milliseconds above 0, such as {name}:200")
        gates[name] = limit
    if not gates:
        raise SuiteError("--goodput '': it is empty; write for instance --goodput 'ttft:200 tpot:20'")
    return f"goodput={{{', '.join(f'{name}: {float(limit)!r}' for name, limit in gates.items())}}}"


def _is_positive(text: str) -> bool:
    try:
        value = float(text)
    except ValueError:
        return False
    return math.isfinite(value) and 0 < value <= 1e9
