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
from suite.report.comparison_text import METRIC_WORDS, change_text, interval_text, size_text, used_rounds
from suite.report.tables import Cell, Line, Mark, Table, text
from suite.report.wording import quantity
from suite.verdict import Word

_MARKS: Mapping[Word, Mark] = {Word.FASTER: "right", Word.SLOWER: "wrong", Word.CANNOT_TELL: "doubt"}
_OUTCOME_MARKS: Mapping[Outcome, Mark] = {
    Outcome.BROKEN: "wrong",
    Outcome.NO_DATA: "wrong",
    Outcome.CANNOT_TELL: "doubt",
    Outcome.HELD: "right",
}
_ABSENT = "n/a"


class _Reasons:
    """Every reason once, numbered as it is first met: cells show its number, and one table its words."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def mark(self, reason: str | None) -> str:
        """ "[2]"; nothing for no reason."""
        if not reason:
            return ""
        return f"[{self._numbers.setdefault(reason, len(self._numbers) + 1)}]"

    def absent(self, reason: str | None) -> Cell:
        return text(f"{_ABSENT} {self.mark(reason)}".rstrip())

    def table(self) -> Table:
        rows = tuple((text(f"[{number}]"), text(reason)) for reason, number in self._numbers.items())
        return Table("Why: the numbers in brackets", ("", "Reason"), rows, "None: nothing was compared")


def render(result: RunComparison) -> str:
    """The whole page. Pure: the same comparison gives the same text."""
    reasons = _Reasons()
    found = (_gate(result, reasons), _differing(result, reasons), _alike(result, reasons))
    return (
        _environment()
        .get_template("compare.html.j2")
        .render(
            result=result,
            title=_title(result),
            caveats=tuple(result.caveats()),
            tables=[*(one for one in found if one is not None), reasons.table()],
            folders=_folders(result),
            definitions=_definitions(result),
            style=_style(),
        )
    )


def _title(result: RunComparison) -> str:
    """ "stepcost: B now (commit 4567) against A v1.2 (commit 0123)"."""
    letters = result.letters()
    heads = ", ".join(f"{letters[head.name]} {head.title}" for head in result.heads)
    return f"stepcost: {heads} against {letters[result.base.name]} {result.base.title}"


def _gate(result: RunComparison, reasons: _Reasons) -> Table | None:
    if not result.judged:
        return None
    order = list(Outcome)
    judged = sorted(result.judged, key=lambda one: order.index(one.outcome))
    columns = ("Outcome", "Limit", "Case", "Arm", "Change", "95 % interval")
    return Table("Limits (--fail-on)", columns, tuple(_gate_row(one, reasons) for one in judged))


def _gate_row(one: Judged, reasons: _Reasons) -> tuple[Cell, ...]:
    outcome = text(f"{one.outcome.value} {reasons.mark(one.reason)}".rstrip(), _OUTCOME_MARKS[one.outcome])
    if one.difference is None:
        absent = text(_ABSENT)
        case, arm = (text(one.missing.case), text(one.missing.arm)) if one.missing else (absent, absent)
        return (outcome, text(one.limit.text), case, arm, absent, absent)
    named = (text(one.difference.case), text(one.difference.arm))
    return (outcome, text(one.limit.text), *named, *_change(one.difference, reasons))


def _differing(result: RunComparison, reasons: _Reasons) -> Table:
    found = [one for one in result.differences if one.verdict.word in (Word.SLOWER, Word.FASTER)]
    return _table("What differs", result, found, reasons, "None: no difference was decided")


def _alike(result: RunComparison, reasons: _Reasons) -> Table:
    found = [one for one in result.differences if one.verdict.word not in (Word.SLOWER, Word.FASTER)]
    why = "all that was compared differs" if result.differences else "nothing was compared"
    return _table("What is equal, or cannot be told", result, found, reasons, f"None: {why}")


def _table(
    caption: str, result: RunComparison, found: list[Difference], reasons: _Reasons, reason: str
) -> Table:
    base, *heads = result.letters().values()
    columns = (
        *(("Run",) if len(heads) > 1 else ()),
        *("Verdict", "Case", "Arm", "Metric", f"{base} (base)", heads[0] if len(heads) == 1 else "Now"),
        *("Change", "95 % interval", "Noise floor", "Smallest effect", "p, by Holm"),
    )
    return Table(caption, columns, tuple(_row(result, one, reasons) for one in found), reason=reason)


def _row(result: RunComparison, one: Difference, reasons: _Reasons) -> tuple[Cell, ...]:
    run = (text(result.letters()[one.head]),) if len(result.heads) > 1 else ()
    word = f"{result.verdict_text(one)} {reasons.mark(one.verdict.reason)}".rstrip()
    metric = text(METRIC_WORDS.get(one.metric, one.metric))
    smallest, floor = one.smallest_effect, one.floor.value
    return (
        *run,
        text(word, _MARKS.get(one.verdict.word, "")),
        *(text(one.case), text(one.arm), metric),
        *(_middle(one.base_middle, one, reasons), _middle(one.head_middle, one, reasons)),
        *_change(one, reasons),
        reasons.absent(one.floor.reason) if floor is None else text(size_text(floor)),
        reasons.absent("no noise floor") if smallest is None else text(size_text(smallest)),
        reasons.absent("no p value") if one.adjusted_p is None else text(f"{one.adjusted_p:.2g}"),
    )


def _change(one: Difference, reasons: _Reasons) -> tuple[Cell, Cell]:
    mean, interval = one.ratio.mean_log, one.ratio.interval
    if mean is None or interval is None:
        absent = reasons.absent((one.ratio.reason or one.verdict.reason).removeprefix("cannot tell: "))
        return absent, absent
    notes = "; ".join((one.pairing, *one.ratio.all_notes))
    shown = Cell((Line(change_text(mean), one.ratio.value),), is_number=True)
    return shown, Cell((Line(interval_text(interval), note=notes),))


def _middle(middle: Middle, one: Difference, reasons: _Reasons) -> Cell:
    if middle.value is None:
        return reasons.absent("no round has a value" if middle.left_out is None else str(middle.left_out))
    unit = DEFINITIONS[one.metric].unit
    note = used_rounds(middle.num_rounds, middle.left_out)
    return Cell((Line(quantity(middle.value, unit), middle.value, note),), is_number=True)


def _folders(result: RunComparison) -> Table:
    letters = result.letters()
    return Table(
        "The runs",
        ("", "Named", "Folder", "Code", "Started"),
        tuple(
            (text(letters[one.name]), text(one.ref or "—"), *map(text, (one.name, one.code, one.started_utc)))
            for one in (result.base, *result.heads)
        ),
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
