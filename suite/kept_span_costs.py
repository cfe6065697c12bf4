"""What a span costs, from the micro.json that `suite micro --output` writes into a run's folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import TypeAdapter, ValidationError

from runner.measure import StepRecord
from runner.spans import Level, Span
from suite.micro.catalogue import Row
from suite.micro.session import span_cost
from suite.micro.span_cost import instrument_ns, spans_per_step

NOT_KEPT = "`python -m suite micro --only instrument --output RUN` measures what a span costs"

_ROWS: TypeAdapter[list[Row]] = TypeAdapter(list[Row])


def instrument_us(
    document: Mapping[str, object], level: Level, spans: Sequence[Span], steps: Sequence[StepRecord]
) -> float | None:
    """µs that a step's spans take: ns a span x spans a step. None where no cost of this level was kept.

    ValueError for a document that is none of ours, or without a step.
    """
    try:
        rows = _ROWS.validate_python(document.get("rows", []))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(f"micro.json: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    by_name = {(row.name, row.size): row for row in rows}
    if ("span.host", level) not in by_name:
        return None
    return instrument_ns(span_cost(level, by_name), spans_per_step(spans, steps)) / 1e3
