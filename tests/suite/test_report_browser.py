"""The page in a real browser, offline: charts drawn, no error, no request, wide, narrow, light, dark.

Screenshots are kept in the git-ignored folder screenshots/ for a look.
"""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import report_fabrication as fabricate
from records import make_request, make_run, make_step
from report_fabrication import HOSTILE
from report_situations import SITUATIONS

from suite.publish import publish
from suite.report import page as report_page
from suite.report.data import ReportData, from_loaded
from suite.report.panels import TITLES
from suite.store import RunFolder

SCREENSHOTS = Path(__file__).parents[2] / "screenshots"
IS_CI = os.environ.get("CI") == "true"
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")

if IS_CI:
    import playwright.sync_api as playwright
else:
    playwright = pytest.importorskip("playwright.sync_api")

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
SETTINGS = ((1400, "light"), (1400, "dark"), (400, "dark"), (400, "light"))  # one change at a time
LOOKS = ((1400, "light"), (400, "dark"))  # of which a picture is kept
WHOLE = ("one", "arms", "sweep")  # situations of which the whole page is pictured
MAX_UNFOLDED = 2  # of a page's folded parts, so that a sweep of many arms is done soon
MAX_OPENING_S = 3.0  # on a quiet machine; the test allows for others at work

# Scrolls every chart on show to the screen, one after the other, until each is drawn.
DRAW_ALL = """async () => {
  const isFolded = (plot) => plot.closest('details:not([open]), [hidden]');
  const isDrawn = (plot) => plot.querySelector('svg.main-svg') || isFolded(plot);
  const deadline = Date.now() + 60_000;
  for (const plot of document.querySelectorAll('.plot')) {
    if (!isDrawn(plot)) plot.scrollIntoView();
    while (!isDrawn(plot)) {
      if (Date.now() > deadline) throw new Error(`not drawn: ${plot.dataset.name}`);
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
  }
  window.scrollTo(0, 0);
}"""

# Of every chart on show: its name, the extent of what its traces drew inside it, and its width.
EXTENTS = """() => [...document.querySelectorAll('.plot')]
  .filter(plot => !plot.closest('details:not([open]), [hidden]')).map(plot => {
  const frame = plot.getBoundingClientRect();
  const marks = [...plot.querySelectorAll('.plot-container .trace path, .plot-container .points path, '
    + '.plot-container .heatmaplayer image, .plot-container .barlayer path')]
    .map(mark => mark.getBoundingClientRect());
  const inside = marks.filter(mark => mark.left >= frame.left - 1 && mark.right <= frame.right + 1);
  const extent = inside.map(mark => mark.width + mark.height).reduce((a, b) => a + b, 0);
  return [plot.getAttribute('aria-label'), extent, frame.width];
})"""


@pytest.fixture(scope="module")
def browser() -> Iterator[playwright.Browser]:
    if CHROMIUM is None:
        missing = "no chromium on the PATH: apt-get install chromium, or set CHROMIUM"
        if IS_CI:
            pytest.fail(missing)
        pytest.skip(missing)
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


class Opened:
    """A page opened from a file without a network, with everything it complained of or asked for."""

    def __init__(self, browser: playwright.Browser, path: Path, width: int = 1400) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._context = browser.new_context(viewport={"width": width, "height": 900}, offline=True)
        self.page = self._context.new_page()
        self.page.on("console", lambda message: self._note(message.type, message.text))
        self.page.on("pageerror", lambda error: self._note("error", str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        begin_s = time.monotonic()
        self.page.goto(path.as_uri())
        self.opening_s = time.monotonic() - begin_s

    def _note(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(f"{kind}: {text}")

    def draw(self) -> None:
        """Wait until every chart on show is drawn."""
        self.page.evaluate(DRAW_ALL)

    def undrawn(self) -> list[str]:
        """Charts without a mark, or too narrow; they follow a resize after a short pause."""
        for _ in range(50):
            self.page.wait_for_timeout(200)
            extents = self.page.evaluate(EXTENTS)
            found = [str(label) for label, extent, frame in extents if extent < 20 or frame < 250]
            if not found:
                break
        return found

    def unfold(self, limit: int = MAX_UNFOLDED) -> None:
        folded = self.page.locator("details:not([open]) > summary:visible")
        for _ in range(limit):
            if not folded.count():
                break
            folded.first.click()
        self.draw()

    def close(self) -> None:
        self._context.close()


def written(data: ReportData, path: Path) -> Path:
    path.write_text(report_page.render(data), encoding="utf-8")
    return path


@pytest.fixture(scope="module", params=SITUATIONS)
def opened(
    request: pytest.FixtureRequest, browser: playwright.Browser, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Opened]]:
    name: str = request.param
    path = written(SITUATIONS[name](), tmp_path_factory.mktemp("report") / f"{name}.html")
    opened = Opened(browser, path)
    yield name, opened
    opened.close()


# every situation


def test_every_chart_is_drawn_at_every_width_and_in_both_schemes(opened: tuple[str, Opened]) -> None:
    name, view = opened
    SCREENSHOTS.mkdir(exist_ok=True)
    view.unfold()
    num_charts = len(view.page.evaluate(EXTENTS))
    for width, scheme in SETTINGS:
        view.page.set_viewport_size({"width": width, "height": 900})
        view.page.emulate_media(color_scheme=scheme)
        view.draw()
        assert len(view.page.evaluate(EXTENTS)) == num_charts
        assert view.undrawn() == []
        assert view.page.evaluate("document.documentElement.scrollWidth") <= width
        if (width, scheme) in LOOKS:
            picture = SCREENSHOTS / f"{name}-{width}-{scheme}.png"
            view.page.screenshot(path=picture, full_page=name in WHOLE)
    assert view.complaints == []
    assert [url for url in view.requests if not url.startswith(("file:", "data:", "blob:"))] == []


def test_every_panel_is_there_and_holds_a_figure_a_table_or_its_reason(opened: tuple[str, Opened]) -> None:
    _, view = opened
    for panel_id in TITLES if view.page.locator("#scenario-1").count() else ():
        panel = view.page.locator(f"#{panel_id}")
        assert panel.count() == 1
        assert panel.locator("figure, table, .reason, pre").count() > 0, panel_id
    for chart in view.page.locator("figure.chart").all():
        has_plot = chart.locator(".plot").count() == 1
        assert has_plot or chart.locator(".reason").text_content().startswith("n/a: ")


def test_the_first_screen_says_which_arm_how_sure_and_what_the_flag_upload_costs(
    opened: tuple[str, Opened],
) -> None:
    name, view = opened
    view.page.set_viewport_size({"width": 1400, "height": 900})
    if not view.page.locator("#scenario-1").count():
        assert "Cannot tell: no run was started." in view.page.locator("#answer").inner_text()
        return
    labels = view.page.locator("#answer dl").first.locator("dt").all()
    shown = {label.inner_text().lstrip("✓✗? ").splitlines()[0]: label.bounding_box() for label in labels}
    assert all(box is not None and box["y"] < 900 for box in shown.values())
    assert set(shown) & {"Which arm", "Speed", "What this is", "Answer"}
    assert "Flag upload" in shown or name in ("all-failed",)


# opening


def test_the_largest_page_answers_within_seconds(browser: playwright.Browser, tmp_path: Path) -> None:
    """Its charts are drawn later: until then headings sort and links jump."""
    view = Opened(browser, written(SITUATIONS["large"](), tmp_path / "large.html"))
    begin_s = time.monotonic()
    view.page.locator("#theme-toggle").click()
    assert view.page.locator("html").get_attribute("data-theme") == "dark"
    took_s = view.opening_s + time.monotonic() - begin_s
    print(f"interactive after {took_s:.2f} s")
    assert took_s < 4 * MAX_OPENING_S
    view.close()


# what a reader does


@pytest.fixture(scope="module")
def arms(browser: playwright.Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield written(SITUATIONS["arms"](), tmp_path_factory.mktemp("arms") / "arms.html")


def first_column(view: Opened, table: str) -> list[str]:
    return view.page.locator(f"{table} tbody tr").evaluate_all(
        "rows => rows.map(row => row.cells[0].querySelector('.line').textContent.trim())"
    )


def values_of(view: Opened, column: int) -> list[float | None]:
    texts = view.page.locator("#answer table tbody tr").evaluate_all(
        "(rows, column) => rows.map(row => row.cells[column].querySelector('data')?.value ?? null)", column
    )
    return [None if text is None else float(text) for text in texts]


@pytest.mark.parametrize("width", [1400, 400])
@pytest.mark.parametrize("is_keyboard", [False, True])
def test_the_verdicts_sort_by_click_and_by_keyboard_with_undefined_ones_last(
    browser: playwright.Browser, arms: Path, width: int, is_keyboard: bool
) -> None:
    view = Opened(browser, arms, width)
    heading = view.page.get_by_role("columnheader", name="Output throughput")
    button = heading.get_by_role("button")
    before = first_column(view, "#answer table")
    for direction in ("ascending", "descending"):
        if is_keyboard:
            button.focus()
            view.page.keyboard.press("Enter")
        else:
            button.click()
        assert heading.get_attribute("aria-sort") == direction
        found = values_of(view, 2)
        known = [value for value in found if value is not None]
        assert known == sorted(known, reverse=direction == "descending") and len(known) > 2
        assert found[len(known) :] == [None] * (len(found) - len(known)) and None in found
    assert sorted(first_column(view, "#answer table")) == sorted(before)
    view.page.get_by_role("columnheader", name="Arm").get_by_role("button").first.click()
    assert heading.get_attribute("aria-sort") == "none"
    assert first_column(view, "#answer table") == sorted(before)
    view.close()


@pytest.mark.parametrize("key", [None, "Enter"])
def test_a_button_changes_light_to_dark_and_charts_follow(
    browser: playwright.Browser, arms: Path, key: str | None
) -> None:
    view = Opened(browser, arms)
    view.page.emulate_media(color_scheme="light")
    view.draw()
    tick = view.page.locator("#panel-requests .xtick text").first
    playwright.expect(tick).to_have_css("fill", "rgb(27, 31, 36)")
    for name, colour in (("Dark", "rgb(230, 233, 237)"), ("Light", "rgb(27, 31, 36)")):
        button = view.page.locator("#theme-toggle")
        assert button.inner_text() == name
        if key:
            button.focus()
            view.page.keyboard.press(key)
        else:
            button.click()
        playwright.expect(tick).to_have_css("fill", colour)
    view.close()


def test_text_on_charts_follows_the_colour_scheme(browser: playwright.Browser, arms: Path) -> None:
    view = Opened(browser, arms)
    view.draw()
    for scheme, colour in (("light", "rgb(27, 31, 36)"), ("dark", "rgb(230, 233, 237)")):
        view.page.emulate_media(color_scheme=scheme)
        playwright.expect(view.page.locator(".xtick text").first).to_have_css("fill", colour)
    view.close()


@pytest.mark.parametrize("width", [1400, 400])
def test_a_legend_hides_and_shows_a_curve_by_keyboard_and_by_click(
    browser: playwright.Browser, tmp_path: Path, width: int
) -> None:
    data = from_loaded(fabricate.loaded(cases=("a", "b"), num_rounds=2))
    view = Opened(browser, written(data, tmp_path / "legend.html"), width)
    view.draw()
    chart = view.page.locator("figure.chart", has_text="Time to first token").first
    button = chart.locator(".legend button").first
    count = chart.locator(".trace").count()
    for act, is_shown in (
        (lambda: view.page.keyboard.press("Enter"), False),
        (lambda: view.page.keyboard.press("Space"), True),
        (button.click, False),
        (button.click, True),
    ):
        button.focus()
        act()
        assert button.get_attribute("aria-pressed") == str(is_shown).lower()
        assert (chart.locator(".trace").count() == count) == is_shown
    view.close()


@pytest.mark.parametrize("width", [1400, 400])
def test_the_reader_chooses_a_case_of_a_sweep_by_keyboard_and_by_click(
    browser: playwright.Browser, tmp_path: Path, width: int
) -> None:
    data = from_loaded(fabricate.loaded(cases=("r=1", "r=2 <b>", "r=3"), arms=("ids",), num_rounds=2))
    view = Opened(browser, written(data, tmp_path / "cases.html"), width)
    panel = view.page.locator("#panel-uploads")
    select = panel.get_by_label("Case:")
    assert select.locator("option").all_inner_texts() == ["r=1", "r=2 <b>", "r=3"]

    def shown() -> list[str]:
        view.draw()
        folds = panel.locator(".cases > details:visible")
        assert folds.count() == 1 and folds.locator(".plot svg.main-svg").count() > 0
        return folds.locator("> summary").all_inner_texts()

    assert shown() == ["r=1"]
    select.focus()
    view.page.keyboard.press("ArrowDown")
    assert shown() == ["r=2 <b>"]
    select.select_option(label="r=3")
    assert shown() == ["r=3"]
    assert view.page.locator("#panel-tokens .cases > details:visible > summary").all_inner_texts() == ["r=1"]
    assert view.undrawn() == [] and view.complaints == []
    view.close()


def test_every_button_and_link_is_reached_by_keyboard(browser: playwright.Browser, arms: Path) -> None:
    view = Opened(browser, arms)
    reached = set()
    for _ in range(12):
        view.page.keyboard.press("Tab")
        reached.add(
            view.page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()")
        )
    assert {"theme-toggle", "CSV", "Arm", "Tokens"} <= reached
    assert view.page.locator("button:not([type=button]), [tabindex='-1']").count() == 0
    unnamed = view.page.locator("button").evaluate_all(
        "all => all.filter(one => !one.textContent.trim() && !one.ariaLabel).length"
    )
    assert unnamed == 0
    view.close()


# downloads


def saved(view: Opened, button: playwright.Locator) -> tuple[str, bytes]:
    with view.page.expect_download() as download:
        button.click()
    return download.value.suggested_filename, Path(download.value.path()).read_bytes()


def test_a_table_and_a_chart_are_saved_as_csv_and_png(browser: playwright.Browser, arms: Path) -> None:
    view = Opened(browser, arms)
    name, content = saved(view, view.page.locator("#answer .savers button").first)
    rows = list(csv.reader(io.StringIO(content.decode("utf-8-sig"))))
    assert name.endswith(".csv") and rows[0][0] == "Arm"
    shown = [value for value in values_of(view, 2) if value is not None]
    column = rows[0].index("Output throughput")
    assert [float(row[column]) for row in rows[1:] if not row[column].startswith("n/a")] == shown
    chart = view.page.locator("figure.chart", has=view.page.locator(".plot")).first
    title = chart.locator(".plot").get_attribute("data-name") or ""
    figure = json.loads(chart.locator("script").text_content() or "")
    name, content = saved(view, chart.locator(".save", has_text="CSV"))
    rows = list(csv.reader(io.StringIO(content.decode("utf-8-sig"))))
    assert rows[0][0] == "trace" and len(rows) > len(figure["data"])
    assert all(len(row) == len(rows[0]) for row in rows)
    assert name.endswith(".csv") and title.split()[0].lower() in name
    name, content = saved(view, chart.locator(".save", has_text="PNG"))
    assert name.endswith(".png") and content.startswith(b"\x89PNG") and len(content) > 5_000
    assert view.complaints == []
    view.close()


def test_the_csv_of_a_chart_has_the_figures_numbers_and_hostile_names(
    browser: playwright.Browser, tmp_path: Path
) -> None:
    view = Opened(browser, written(from_loaded(fabricate.hostile()), tmp_path / "hostile.html"))
    chart = view.page.locator("figure.chart", has_text="Output throughput, every round").first
    figure = json.loads(chart.locator("script").text_content() or "")
    _, content = saved(view, chart.locator(".save", has_text="CSV"))
    rows = list(csv.reader(io.StringIO(content.decode("utf-8-sig"))))
    mine = [row for row in rows[1:] if row[0] == figure["data"][0]["meta"]]
    assert any(HOSTILE.split("\u2028")[0] in row[0] for row in rows)
    x = [heading.split(":")[0] for heading in rows[0]].index("x")
    assert [float(row[x]) for row in mine] == figure["data"][0]["x"]
    view.close()


# names, numbers, paper


def test_hostile_names_appear_literally_in_text_charts_and_legends(
    browser: playwright.Browser, tmp_path: Path
) -> None:
    view = Opened(browser, written(from_loaded(fabricate.hostile()), tmp_path / "hostile.html"))
    view.draw()
    assert view.page.locator("img").count() == 0
    squeezed = "".join(HOSTILE.split())
    for texts in (
        view.page.locator("h2").all_text_contents(),
        view.page.locator(".legend button").all_text_contents(),
        view.page.locator("td").all_text_contents(),
        view.page.locator("pre").all_text_contents(),
        [view.page.title()],
        view.page.locator("[data-label]").evaluate_all("all => all.map(one => one.textContent)"),
    ):
        assert any(squeezed in "".join(text.split()) for text in texts)
    labels = view.page.locator("[aria-label], [data-name]").evaluate_all(
        "all => all.flatMap(one => [one.getAttribute('aria-label'), one.getAttribute('data-name')])"
    )
    assert not any(label and ("&lt;" in label.replace("& &lt;", "") or "&quot;" in label) for label in labels)
    ticks = ["".join(text.split()) for text in view.page.locator(".ytick text").all_text_contents()]
    assert any(text.startswith(squeezed[:40]) for text in ticks)
    assert view.complaints == []
    view.close()


def written_folder(tmp_path: Path) -> RunFolder:
    """Two arms of three rounds each, on a disk."""
    folder = RunFolder.create(tmp_path, "page")
    folder.write_config({"scenarios": [{"name": "smoke"}], "invocation": {}, "cases": [], "skipped": []})
    folder.write_environment({"command_line": "python -m suite run"})
    for arm, slowness in (("sync-ids", 1.0), ("ids", 0.9)):
        for number, gap_ms in enumerate((7.3, 9.1, 8.7)):
            times = [20 + slowness * gap_ms * index for index in range(6)]
            requests = [make_request("a", token_ms=times), make_request("b", 3.0, token_ms=times)]
            steps = [
                make_step(i, 9.0 * i, 9.0 * i + 8, num_tokens=2 if i else 16, num_rows=2, bytes={"ids": 64})
                for i in range(6)  # 2 prompts of 8, then 5 tokens of each
            ]
            run_id = f"{arm}-{number}"
            folder.write_steps(run_id, steps)
            folder.write_requests(run_id, requests)
            run = make_run(
                requests, steps, slowness * (0.1 + number / 70), run_id=run_id, round=number, arm=arm
            )
            folder.append_run(run)
    return folder


def test_the_numbers_on_the_page_are_those_of_summary_json(
    browser: playwright.Browser, tmp_path: Path
) -> None:
    published = publish(written_folder(tmp_path).path)
    view = Opened(browser, published.report)
    summary = json.loads((published.path / "summary.json").read_text(encoding="utf-8"))
    wanted = {arm["arm"]: arm["metrics"] for arm in summary["arms"]}
    assert first_column(view, "#answer table") == list(wanted)
    cells = view.page.locator("#answer table tbody tr").evaluate_all(
        """rows => rows.map(row => [...row.cells].map(
            cell => [...cell.querySelectorAll('data')].map(one => one.value)))"""
    )
    for row, metrics in zip(cells, wanted.values(), strict=True):
        shown = [[float(value) for value in cell] for cell in row[2:5]]
        names = (("output_throughput",), ("median_ttft_ms", "p99_ttft_ms"), ("median_itl_ms", "p99_itl_ms"))
        assert shown == [[metrics[name]["median"] for name in group] for group in names]
    view.close()


def test_paper_is_light_unfolded_and_charts_fit_it(browser: playwright.Browser, tmp_path: Path) -> None:
    data = from_loaded(fabricate.loaded(cases=("a", "b"), num_rounds=2))
    view = Opened(browser, written(data, tmp_path / "paper.html"))
    view.page.emulate_media(color_scheme="dark", media="print")
    num_folded = view.page.locator("details:not([open])").count()
    assert num_folded > 0
    view.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    folded = view.page.locator("details:not([open])")
    num_hidden = view.page.locator("[hidden] details:not([open]), details[hidden]:not([open])").count()
    assert folded.count() == num_hidden > 0  # the case that was not chosen
    playwright.expect(view.page.locator(".xtick text").first).to_have_css("fill", "rgb(27, 31, 36)")
    undrawn = view.page.locator(".plot").evaluate_all(
        "all => all.filter(one => !one.closest('[hidden]') && !one.querySelector('svg')).length"
    )
    assert undrawn == 0
    widths = view.page.locator(".plot svg.main-svg").evaluate_all("all => all.map(svg => svg.clientWidth)")
    assert widths and max(widths) <= 700
    assert view.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    view.page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert view.page.locator("details:not([open])").count() == num_folded
    assert view.complaints == []
    view.close()


def test_without_javascript_the_answer_and_every_table_are_there(
    browser: playwright.Browser, arms: Path
) -> None:
    context = browser.new_context(java_script_enabled=False, offline=True)
    page = context.new_page()
    page.goto(arms.as_uri())
    assert page.locator("#answer table tbody tr").count() > 3
    assert "Charts need JavaScript" in page.locator("body").inner_text()
    assert page.locator("button:visible, select:visible").count() == 0
    context.close()
