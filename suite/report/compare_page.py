"""Several runs on one page that works offline, what differs first: pure, from a comparison to HTML."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources

import jinja2
from markupsafe import Markup

from suite.compare_result import RunComparison
from suite.compare_runs import Difference, Middle
from suite.gate import Judged, Outcome
from suite.metrics import DEFINITIONS
from suite.report.comparison_text import METRIC_WORDS, change_text, interval_text, size_text
from suite.report.tables import Cell, Line, Mark, Table, text
from suite.report.wording import plural, quantity, undefined
from suite.verdict import Word

_MARKS: Mapping[Word, Mark] = {Word.FASTER: "right", Word.SLOWER: "wrong", Word.CANNOT_TELL: "doubt"}
_OUTCOME_MARKS: Mapping[Outcome, Mark] = {
    Outcome.BROKEN: "wrong",
    Outcome.NO_DATA: "wrong",
    Outcome.CANNOT_TELL: "doubt",
    Outcome.HELD: "right",
}
_COLUMNS = (
    *("Verdict", "Case", "Arm", "Metric", "Base", "Now", "Change", "95 % interval", "Noise floor"),
    *("Smallest effect", "p, by Holm"),
)


def render(result: RunComparison) -> str:
    """The whole page. Pure: the same comparison gives the same text."""
    return (
        _environment()
        .get_template("compare.html.j2")
        .render(
            result=result,
            caveats=tuple(result.caveats()),
            tables=[one for one in (_gate(result), _differing(result), _alike(result)) if one is not None],
            folders=_folders(result),
            definitions=_definitions(result),
            style=_style(),
        )
    )


def _gate(result: RunComparison) -> Table | None:
    if not result.judged:
        return None
    order = list(Outcome)
    judged = sorted(result.judged, key=lambda one: order.index(one.outcome))
    columns = ("Outcome", "Limit", "Case", "Arm", "Change", "95 % interval")
    return Table("Limits (--fail-on)", columns, tuple(map(_gate_row, judged)))


def _gate_row(one: Judged) -> tuple[Cell, ...]:
    outcome = Cell((Line(one.outcome.value, note=one.reason),), _OUTCOME_MARKS[one.outcome])
    if one.difference is None:
        absent = text(undefined(one.reason))
        case, arm = (text(one.missing.case), text(one.missing.arm)) if one.missing else (absent, absent)
        return (outcome, text(one.limit.text), case, arm, absent, absent)
    named = (text(one.difference.case), text(one.difference.arm))
    return (outcome, text(one.limit.text), *named, *_change(one.difference))


def _differing(result: RunComparison) -> Table:
    found = [one for one in result.differences if one.verdict.word in (Word.SLOWER, Word.FASTER)]
    return _table("What differs", result, found, "None: no difference was decided")


def _alike(result: RunComparison) -> Table:
    found = [one for one in result.differences if one.verdict.word not in (Word.SLOWER, Word.FASTER)]
    why = "all that was compared differs" if result.differences else "nothing was compared"
    return _table("What is equal, or cannot be told", result, found, f"None: {why}")


def _table(caption: str, result: RunComparison, found: list[Difference], reason: str) -> Table:
    columns = ("Run", *_COLUMNS) if len(result.heads) > 1 else _COLUMNS
    return Table(caption, columns, tuple(_row(result, one) for one in found), reason=reason)


def _row(result: RunComparison, one: Difference) -> tuple[Cell, ...]:
    run = (text(one.head),) if len(result.heads) > 1 else ()
    mark = _MARKS.get(one.verdict.word, "")
    metric = text(METRIC_WORDS.get(one.metric, one.metric))
    smallest, floor = one.smallest_effect, one.floor.value
    return (
        *run,
        Cell((Line(result.verdict_text(one), note=one.verdict.reason),), mark),
        *(text(one.case), text(one.arm), metric),
        *(_middle(one.base_middle, one), _middle(one.head_middle, one)),
        *_change(one),
        text(undefined(one.floor.reason or "") if floor is None else size_text(floor)),
        text(undefined("no noise floor") if smallest is None else size_text(smallest)),
        text(undefined("no p value") if one.adjusted_p is None else f"{one.adjusted_p:.2g}"),
    )


def _change(one: Difference) -> tuple[Cell, Cell]:
    mean, interval = one.ratio.mean_log, one.ratio.interval
    if mean is None or interval is None:
        absent = text(undefined((one.ratio.reason or one.verdict.reason).removeprefix("cannot tell: ")))
        return absent, absent
    notes = "; ".join((one.pairing, *one.ratio.notes))
    shown = Cell((Line(change_text(mean), one.ratio.value),), is_number=True)
    return shown, Cell((Line(interval_text(interval), note=notes),))


def _middle(middle: Middle, one: Difference) -> Cell:
    if middle.value is None:
        return text(undefined("no round has a value"))
    unit = DEFINITIONS[one.metric].unit
    note = plural(middle.num_rounds, "round")
    return Cell((Line(quantity(middle.value, unit), middle.value, note),), is_number=True)


def _folders(result: RunComparison) -> Table:
    rows = [("base", result.base), *(("compared", head) for head in result.heads)]
    return Table(
        "The runs",
        ("", "Folder", "Code", "Started"),
        tuple((text(role), text(one.name), text(one.code), text(one.started_utc)) for role, one in rows),
    )


def _definitions(result: RunComparison) -> Table:
    names = dict.fromkeys(one.metric for one in result.compared.differences)
    rows = ((name, DEFINITIONS[name]) for name in names)
    return Table(
        "The metrics",
        ("Metric", "Unit", "Better", "Definition"),
        tuple(tuple(map(text, (name, of.unit, of.better, of.text))) for name, of in rows),
        reason="None: nothing was compared",
    )


@cache
def _style() -> Markup:
    return Markup(_template("page.css"))


def _template(name: str) -> str:
    return (resources.files("suite.report") / "templates" / name).read_text(encoding="utf-8")


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.DictLoader({"compare.html.j2": _template("compare.html.j2")}),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
