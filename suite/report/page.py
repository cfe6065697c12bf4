"""The report as one HTML string that works offline: template, style, script, plotly and data in one file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import jinja2
import plotly
import plotly.offline
from markupsafe import Markup

from suite.report import chart, span_tables, tables
from suite.report.answer import points
from suite.report.chart import Chart
from suite.report.data import ReportData, ScenarioData
from suite.report.panels import Panel
from suite.report.point import Point
from suite.report.scenario_panels import of_scenario
from suite.report.wording import undefined

_SCRIPTS = (
    "theme.js",
    "pairs.js",
    "charts.js",
    "cases.js",
    "tables.js",
    "downloads.js",
    "page.js",
)  # what a later one uses first
MAX_POINTS = 100_000  # on the whole page: about 3 MB of text
CURVES_PER_SERIES = 8  # three ECDFs and five lines over time
POINTS_OF_A_CURVE = (60, 2000)
LIGHT_THEME = {"text": "#1b1f24", "grid": "#d9dee4", "axis": "#59636e", "paper": "#ffffff"}
_DEVICES = {"process": "process (on a CPU, no GPU)", "inline": "inline (on a CPU, no GPU)"}
DARK_THEME = {"text": "#e6e9ed", "grid": "#333b45", "axis": "#9aa4af", "paper": "#15191e"}


@dataclass(frozen=True, slots=True)
class Section:
    """One scenario's part of the page: its answer, and its panels in order."""

    scenario: ScenarioData
    points: tuple[Point, ...]
    panels: tuple[Panel, ...]


class _Blocks:
    """Figures as they are met by the template, each a JSON block with an id."""

    def __init__(self) -> None:
        self._count = 0

    def add(self, drawn: Chart) -> Mapping[str, Any]:
        self._count += 1
        assert drawn.figure is not None
        figure = drawn.figure.to_plotly_json()
        figure["layout"].pop("template", None)  # the page's script dresses it
        name = f"figure-{self._count}"
        return {"id": name, "json": json_block(figure), "height": figure["layout"]["height"]}


def render(data: ReportData) -> str:
    """The whole page. Pure: the same data gives the same text."""
    max_points = points_of_a_curve(len(data.series))
    sections = [_section(scenario, max_points) for scenario in data.scenarios]
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            data=data,
            title=_title(data),
            setting=_setting(data),
            sections=sections,
            verdicts=tables.verdicts(data),
            runs=(tables.unmeasured_runs(data), tables.skipped_scenarios(data), tables.failed_requests(data)),
            validity=tables.findings(data),
            environment=tables.facts(
                "Environment",
                {key: value for key, value in data.environment.items() if key != "command_line"},
                absent=undefined("not known"),
            ),
            invocation=tables.facts(
                "Options given", data.invocation, absent="not given: as each scenario says"
            ),
            command=str(data.environment.get("command_line") or undefined("not recorded")),
            definitions=tables.definitions(data),
            silent_waits=span_tables.silent_waits(data),
            num_warmup=sum(one.num_warmup for one in data.series),
            num_instrumented=sum(one.num_instrumented for one in data.series),
            blocks=_Blocks(),
            theme=json_block(
                {"light": _theme(LIGHT_THEME, chart.LIGHT), "dark": _theme(DARK_THEME, chart.DARK)}
            ),
            plotly_version=plotly.__version__,
            **_assets(),
        )
    )


def points_of_a_curve(num_series: int) -> int:
    """How many points a curve may have so that the page stays small however many curves there are."""
    low, high = POINTS_OF_A_CURVE
    return max(low, min(high, MAX_POINTS // (CURVES_PER_SERIES * max(1, num_series))))


def json_block(value: object) -> Markup:
    """Strict JSON that is safe inside a script element: no character there can end or open anything."""
    text = json.dumps(_finite(value), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _finite(value: object) -> object:
    """Lists, dicts and plain values; what is not finite is null."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _section(scenario: ScenarioData, max_points: int) -> Section:
    return Section(scenario, points(scenario), of_scenario(scenario, max_points))


def _title(data: ReportData) -> str:
    names: Sequence[str] = [scenario.name for scenario in data.scenarios]
    return "stepcost: " + (", ".join(names) if names else "no scenario ran")


def _setting(data: ReportData) -> str:
    """Where and when, in one line: device, type of number, machine, start. Empty where nothing is known."""
    environment = data.environment
    device = environment.get("device")
    name = device.get("name") if isinstance(device, Mapping) else None
    machine = name or environment.get("cpu_model")
    cores = environment.get("num_usable_cores") or environment.get("num_cores")
    records = [record for one in data.series for record in one.records]
    kinds = dict.fromkeys(record.device for record in records)
    parts = (
        f"device {', '.join(_DEVICES.get(kind, kind) for kind in kinds)}" if kinds else "",
        ", ".join(dict.fromkeys(record.dtype for record in records)),
        f"{machine}, {cores} cores" if machine and cores else str(machine or ""),
        str(environment.get("started_utc") or ""),
    )
    return " · ".join(part for part in parts if part)


def _theme(colours: Mapping[str, str], palette: Sequence[str]) -> Mapping[str, object]:
    return {**colours, "palette": list(palette)}


@cache
def _assets() -> Mapping[str, Markup]:
    """Style, script and library: our own text, which the template takes as it is."""
    folder = resources.files("suite.report") / "templates"
    return {
        "style": Markup((folder / "page.css").read_text(encoding="utf-8")),
        "script": Markup("\n".join((folder / name).read_text(encoding="utf-8") for name in _SCRIPTS)),
        "plotly_js": Markup(plotly.offline.get_plotlyjs()),
    }


@cache
def _environment() -> jinja2.Environment:
    folder = resources.files("suite.report") / "templates"
    return jinja2.Environment(
        loader=jinja2.DictLoader({"page.html.j2": (folder / "page.html.j2").read_text(encoding="utf-8")}),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
