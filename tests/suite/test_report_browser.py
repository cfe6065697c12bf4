"""The page in a real browser, offline: charts drawn, no error, no request, wide, narrow, light, dark.

Screenshots are kept in the git-ignored folder screenshots/ for a look.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import report_fabrication as fabricate
from report_fabrication import HOSTILE, FakeLoaded

from suite.report import page as report_page
from suite.report.data import from_loaded

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
PAGES: dict[str, tuple[Callable[[], FakeLoaded], int]] = {  # fabrication, charts it has data for
    "one": (fabricate.loaded, 7),
    "cases": (
        lambda: fabricate.loaded(cases=("ratio=0", "ratio=1"), arms=("sync-ids", "ids"), num_rounds=3),
        16,
    ),
    "all-failed": (fabricate.all_failed, 0),
    "interrupted": (fabricate.interrupted, 7),
    "none-finished": (fabricate.none_finished, 0),
    "features": (lambda: fabricate.with_features(["repeated prompts, said at length"]), 10),
    "one-token": (lambda: fabricate.loaded(num_output=1), 6),
    "hostile": (fabricate.hostile, 10),
    "large": (fabricate.large, 7),
}
SETTINGS = [(width, scheme) for width in (1400, 400) for scheme in ("light", "dark")]
LOOKS = ((1400, "light"), (400, "dark"))  # of which a picture is kept

# Of every chart on show: its name, and the extent of all marks its traces drew inside it.
EXTENTS = """() => [...document.querySelectorAll('.plot')].map(plot => {
  const frame = plot.getBoundingClientRect();
  const marks = [...plot.querySelectorAll('.trace path')].map(mark => mark.getBoundingClientRect());
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

    def __init__(self, browser: playwright.Browser, path: Path) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._context = browser.new_context(viewport={"width": 1400, "height": 900}, offline=True)
        self.page = self._context.new_page()
        self.page.on("console", lambda message: self._note(message.type, message.text))
        self.page.on("pageerror", lambda error: self._note("error", str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        self.settle()

    def _note(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(f"{kind}: {text}")

    def settle(self) -> None:
        """Wait until every chart on show is drawn."""
        self.page.locator("html[data-drawn]").wait_for(state="attached", timeout=120_000)
        for plot in self.page.locator(".plot:visible").all():
            plot.locator("svg.main-svg").first.wait_for(state="attached", timeout=60_000)

    def unfold(self) -> None:
        folded = self.page.locator("details:not([open]) > summary")
        while folded.count():
            folded.first.click()
        self.settle()

    def close(self) -> None:
        self._context.close()


@pytest.fixture(scope="module", params=PAGES)
def opened(
    request: pytest.FixtureRequest, browser: playwright.Browser, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Opened]]:
    name: str = request.param
    path = tmp_path_factory.mktemp("report") / f"{name}.html"
    path.write_text(report_page.render(from_loaded(PAGES[name][0]())), encoding="utf-8")
    opened = Opened(browser, path)
    yield name, opened
    opened.close()


def test_every_chart_is_drawn_at_every_width_and_in_both_schemes(opened: tuple[str, Opened]) -> None:
    name, view = opened
    SCREENSHOTS.mkdir(exist_ok=True)
    view.unfold()
    for width, scheme in SETTINGS:
        view.page.set_viewport_size({"width": width, "height": 900})
        view.page.emulate_media(color_scheme=scheme)
        view.page.wait_for_timeout(400)  # the charts follow a resize after a short pause
        extents = view.page.evaluate(EXTENTS)
        assert len(extents) == PAGES[name][1]
        assert [label for label, extent, frame in extents if extent < 20 or frame < 250] == []
        assert view.page.evaluate("document.documentElement.scrollWidth") <= width
        if (width, scheme) in LOOKS:
            view.page.screenshot(path=SCREENSHOTS / f"{name}-{width}-{scheme}.png", full_page=True)
    assert view.complaints == []
    assert [url for url in view.requests if not url.startswith(("file:", "data:", "blob:"))] == []


def test_every_chart_without_data_shows_its_reason(opened: tuple[str, Opened]) -> None:
    _, view = opened
    view.unfold()
    for chart in view.page.locator("figure.chart").all():
        has_plot = chart.locator(".plot").count() == 1
        assert has_plot or chart.locator(".reason").inner_text().startswith("n/a: ")


def view_of(browser: playwright.Browser, tmp_path: Path, loaded: FakeLoaded) -> Opened:
    path = tmp_path / "report.html"
    path.write_text(report_page.render(from_loaded(loaded)), encoding="utf-8")
    return Opened(browser, path)


def test_text_on_charts_follows_the_colour_scheme(browser: playwright.Browser, tmp_path: Path) -> None:
    view = view_of(browser, tmp_path, fabricate.loaded(num_rounds=2))
    for scheme, colour in (("light", "rgb(27, 31, 36)"), ("dark", "rgb(230, 233, 237)")):
        view.page.emulate_media(color_scheme=scheme)
        playwright.expect(view.page.locator(".xtick text").first).to_have_css("fill", colour)
    view.close()


def test_a_legend_hides_and_shows_a_curve_by_keyboard(browser: playwright.Browser, tmp_path: Path) -> None:
    view = view_of(browser, tmp_path, fabricate.loaded(cases=("a", "b"), num_rounds=2))
    chart = view.page.locator("figure.chart", has_text="Time to first token").first
    button = chart.locator(".legend button").first
    assert chart.locator(".trace").count() == 2
    button.focus()
    view.page.keyboard.press("Enter")
    assert button.get_attribute("aria-pressed") == "false"
    assert chart.locator(".trace").count() == 1
    view.page.keyboard.press("Space")
    assert button.get_attribute("aria-pressed") == "true"
    assert chart.locator(".trace").count() == 2
    view.close()


def test_hostile_names_appear_literally_in_text_charts_and_legends(
    browser: playwright.Browser, tmp_path: Path
) -> None:
    view = view_of(browser, tmp_path, fabricate.hostile())
    assert view.page.locator("img").count() == 0
    squeezed = "".join(HOSTILE.split())
    for texts in (
        view.page.locator("h2").all_text_contents(),
        view.page.locator(".legend button").all_text_contents(),
        view.page.locator("td").all_text_contents(),
    ):
        assert any(squeezed in "".join(text.split()) for text in texts)
    ticks = ["".join(text.split()) for text in view.page.locator(".ytick text").all_text_contents()]
    assert any(text.startswith(squeezed[:40]) for text in ticks)
    view.close()


def test_paper_is_light_and_charts_fit_it(browser: playwright.Browser, tmp_path: Path) -> None:
    view = view_of(browser, tmp_path, fabricate.loaded(num_rounds=2))
    view.page.emulate_media(color_scheme="dark", media="print")
    view.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    playwright.expect(view.page.locator(".xtick text").first).to_have_css("fill", "rgb(27, 31, 36)")
    widths = view.page.locator(".plot svg.main-svg").evaluate_all("all => all.map(svg => svg.clientWidth)")
    assert widths and max(widths) <= 700
    assert view.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    view.close()
