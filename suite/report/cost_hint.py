"""How long `suite cost` of a scenario takes, told from the runs that were made of it."""

from __future__ import annotations

from collections.abc import Sequence

from suite.cost_time import cost_time_s
from suite.repeatable import repeatable_spans
from suite.report.data import ScenarioData, Series
from suite.report.span_tables import tables_of
from suite.report.wording import about, median

_FIRST = "refresh"  # the arm that it takes, where the scenario has it


def cost_time(scenario: ScenarioData) -> str:
    """ "about 4 min"; empty where no run tells how long one takes. Opening a device is not in it.

    How many commands a step can repeat only a run with instruments tells; without one this is the most.
    """
    found = [_of_case(series) for series in _by_case(scenario)]
    known = [time for time in found if time is not None]
    if not known or len(known) < len(found):
        return ""
    return f"{'' if all(is_exact for _, is_exact in known) else 'at most '}{about(sum(s for s, _ in known))}"


def _by_case(scenario: ScenarioData) -> Sequence[Sequence[Series]]:
    cases: dict[str, list[Series]] = {}
    for one in scenario.series:
        cases.setdefault(one.case_id, []).append(one)
    return list(cases.values())


def _of_case(series: Sequence[Series]) -> tuple[float, bool] | None:
    """Seconds, and whether the spans of a step are known."""
    timed = [one for one in series if one.runs and one.control is None]
    one = next((one for one in timed if one.arm == _FIRST), timed[0] if timed else None)
    if one is None:
        return None
    tables, _ = tables_of(one)
    known = {row.name for row in tables.spans} if tables is not None else None
    spans = [name for name in repeatable_spans() if known is None or name in known]
    return cost_time_s(median([run.record.duration_s for run in one.runs]), len(spans)), known is not None
