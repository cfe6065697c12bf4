"""The page as text: one strict, self-contained file whatever the run folder held."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import report_fabrication as fabricate
from cost_fabrication import cell
from records import failed_request, make_request, make_run, make_step
from report_fabrication import HOSTILE
from report_situations import SITUATIONS

from suite.publish import publish
from suite.report.data import ReportData, from_loaded
from suite.report.page import json_block, points_of_a_curve, render
from suite.report.panels import TITLES, Panel, in_order
from suite.store import RunFolder
from suite.verdict import Word

MADE: dict[str, Callable[[], ReportData]] = {
    **{name: make for name, make in SITUATIONS.items() if name not in ("sweep", "large")},
    "controls": lambda: from_loaded(fabricate.with_controls()),
    "one-token": lambda: from_loaded(fabricate.loaded(num_output=1)),
}
BLOCK = re.compile(r'<script type="application/json" id="([\w-]+)">(.*?)</script>', re.DOTALL)


class Reader(HTMLParser):
    """What a reader sees: text outside scripts and styles, and the addresses a browser would fetch."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text = ""
        self.addresses: list[str] = []
        self.numbers: dict[str, str] = {}
        self._element = ""
        self._value: str | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._element = tag
        given = dict(attrs)
        self._value = given.get("value") if tag == "data" else None
        self.addresses += [str(given[name]) for name in ("src", "href", "srcset", "data") if name in given]

    def handle_endtag(self, tag: str) -> None:
        self._element = ""

    def handle_data(self, data: str) -> None:
        if self._element in ("script", "style"):
            return
        self.text += data
        if self._value is not None:
            self.numbers[data.replace("\u00a0", " ")] = self._value
            self._value = None


@pytest.fixture(scope="module", params=MADE)
def page(request: pytest.FixtureRequest) -> str:
    return render(MADE[request.param]())


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} in a JSON block")


def test_every_json_block_is_strict_and_cannot_end_its_element(page: str) -> None:
    blocks = BLOCK.findall(page)
    assert len(blocks) == page.count('type="application/json"') > 0
    for _, text in blocks:
        json.loads(text, parse_constant=refuse)
        assert not set(text) & set("<>&\u2028\u2029")


def test_every_figure_has_its_block_and_every_chart_a_figure_or_a_reason(page: str) -> None:
    ids = [name for name, _ in BLOCK.findall(page)]
    assert len(ids) == len(set(ids))
    assert re.findall(r'data-figure="([\w-]+)"', page) == [name for name in ids if name != "theme"]
    for chart in re.findall(r'<figure class="chart">(.*?)</figure>', page, re.DOTALL):
        assert ('class="plot"' in chart) != ('class="reason"' in chart)


def test_nothing_is_fetched(page: str) -> None:
    addresses = Reader(page).addresses
    assert addresses and all(address.startswith(("#", "data:")) for address in addresses)
    assert "default-src 'none'" in page and "@import" not in page


def test_plotly_is_embedded_once(page: str) -> None:
    assert page.count("* plotly.js v") == 1


def test_the_same_data_gives_the_same_page() -> None:
    data = from_loaded(fabricate.loaded(num_rounds=2))
    assert render(data) == render(data)


def test_numbers_on_the_page_are_those_of_the_data() -> None:
    loaded = fabricate.loaded(num_rounds=2, num_requests=7)
    numbers = Reader(render(from_loaded(loaded))).numbers
    for name, shown in (("output_throughput", "{:.2f} tok/s"), ("p99_ttft_ms", "p99 {:.2f} ms")):
        values = [run.metrics[name].value for run in loaded.runs if not run.is_warmup]
        middle = statistics.median(value for value in values if value is not None)
        assert float(numbers[shown.format(middle)]) == middle


def test_charts_of_speed_leave_out_wrong_arms_and_say_so() -> None:
    loaded = fabricate.with_controls()
    page = render(from_loaded(loaded))
    text = " ".join(Reader(page).text.split())
    assert "Not drawn here: smoke · stale (wrong by design, speed not judged); smoke · overwrite" in text
    assert "rounds of ids" in page and "rounds of stale" not in page and "rounds of overwrite" not in page
    assert "Not drawn here" not in render(from_loaded(fabricate.loaded(num_rounds=1)))
    loaded.runs = [run for run in loaded.runs if run.is_control]
    assert "Not drawn here" in render(from_loaded(loaded))


def test_hostile_names_are_shown_literally() -> None:
    page = render(from_loaded(fabricate.hostile()))
    text = Reader(page).text
    # The scenario, description, case, arm, note, environment, command, configuration, failure, rule...
    assert text.count(HOSTILE) > 15
    assert "<img" not in page.split("* plotly.js v")[0]
    drawn = [json.loads(block) for name, block in BLOCK.findall(page) if name != "theme"]
    assert any(HOSTILE in str(trace.get("meta")) for figure in drawn for trace in figure["data"])


def test_every_median_of_a_written_run_folder_is_on_its_page_exactly(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "page")
    folder.write_config({"scenarios": [{"name": "smoke"}], "invocation": {}, "cases": [], "skipped": []})
    folder.write_environment({"command_line": "python -m suite run"})
    for number, gap_ms in enumerate((7.3, 9.1, 8.7, 99.0)):
        times = [20 + gap_ms * index for index in range(6)]
        requests = [
            make_request("a", token_ms=times),
            make_request("b", 3.0, token_ms=times),
            *([failed_request()] if number == 3 else []),  # that round is shown, and in no time
        ]
        counts = {"num_rows": 2, "bytes": {"ids": 64 + number}, "copies": {"ids": 1}}
        steps = [make_step(i, 9.0 * i, 9.0 * i + 8, num_tokens=2 if i else 16, **counts) for i in range(6)]
        run_id = f"run-{number}"
        folder.write_steps(run_id, steps)
        folder.write_requests(run_id, requests)
        duration_s = 0.1 + number / 70
        folder.append_run(make_run(requests, steps, duration_s, run_id=run_id, round=number))
    published = publish(folder.path)
    page = published.report.read_text(encoding="utf-8")
    shown = {float(value) for value in re.findall(r'<data value="([^"]+)"', page)}
    assert published.arms[0].metrics["max_itl_ms"].values == pytest.approx((7.3, 9.1, 8.7))
    medians = [metric.median for metric in published.arms[0].metrics.values() if metric.median is not None]
    assert len(medians) > 40 and set(medians) <= shown
    text = Reader(page).text
    assert "too long" in text and "requests-failed" in text
    assert "n/a: no prefill step" in text


def test_an_interrupted_run_is_marked() -> None:
    assert "Interrupted." in Reader(render(from_loaded(fabricate.interrupted()))).text
    assert "Interrupted." not in Reader(render(from_loaded(fabricate.loaded(num_rounds=1)))).text


def test_the_page_holds_environment_command_config_notes_and_definitions() -> None:
    text = Reader(render(from_loaded(fabricate.loaded(num_rounds=1)))).text
    for piece in (
        "A processor",
        "python -m suite run scenarios/smoke.yaml",
        '"description": "Made up"',
        "one gap of 604,800 s cut to 5 s",
        "time to first token of a completed request",
    ):
        assert piece in text


def test_a_large_run_makes_a_page_of_at_most_ten_megabytes() -> None:
    page = render(from_loaded(fabricate.large()))
    assert len(page.encode()) <= 10e6
    assert "means of 200 steps in a row" in page


def test_a_wide_sweep_makes_a_page_of_at_most_ten_megabytes() -> None:
    cases = [f"ratio={ratio}" for ratio in range(25)]
    loaded = fabricate.loaded(cases=cases, num_rounds=1, num_requests=40, num_steps=400)
    assert len(render(from_loaded(loaded)).encode()) <= 10e6


@pytest.mark.parametrize(("num_series", "points"), [(0, 2000), (1, 2000), (25, 500), (10_000, 60)])
def test_curves_share_the_points_of_the_page(num_series: int, points: int) -> None:
    assert points_of_a_curve(num_series) == points


def test_what_is_not_finite_becomes_null() -> None:
    assert json_block({"x": [1.5, float("nan"), float("inf")]}) == '{"x":[1.5,null,null]}'


def test_panels_stand_in_the_pages_order_each_once_and_known() -> None:
    panels = [Panel(name, TITLES[name], "One sentence.", reason="nothing ran") for name in reversed(TITLES)]
    assert [panel.id for panel in in_order(panels)] == list(TITLES)
    for wrong in ([panels[0], panels[0]], [Panel("panel-new", "New", "One sentence.")]):
        with pytest.raises(ValueError, match="is unknown or stands twice"):
            in_order(wrong)


def test_every_scenario_has_every_panel_under_an_id_of_its_own() -> None:
    loaded = fabricate.loaded(num_rounds=1)
    other = fabricate.loaded(scenario="other", num_rounds=1)
    for run in other.runs:
        loaded.add(run, other.step_frames[run.run_id], other.request_frames[run.run_id])
    page = render(from_loaded(loaded))
    ids = re.findall(r'<section class="panel" id="([\w-]+)"', page)
    assert ids == [*TITLES, *(f"{name}-2" for name in TITLES)]
    assert all(f'href="#{name}"' in page for name in ids)


def test_the_tables_of_attribution_and_break_even_stand_once() -> None:
    data = SITUATIONS["arms"]()
    (scenario,) = data.scenarios
    swept = replace(scenario, break_even=(cell(0.1, Word.FASTER, rows=8), cell(0.1, Word.FASTER, rows=64)))
    text = Reader(render(replace(data, scenarios=(swept,)))).text
    for caption in ("Attribution: what one choice costs", "Break-even: where async scheduling pays"):
        assert text.count(caption) == 1, caption
