"""The timeline in a real browser: two arms chosen by mouse and by keyboard, and their lanes drawn."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace

import cost_fabrication as make
import pytest
import report_fabrication as fabricate

from suite.report import page as report_page
from suite.report.data import ReportData, from_loaded

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")

if os.environ.get("CI") == "true":
    import playwright.sync_api as playwright
else:
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no chromium on the PATH", allow_module_level=True)

ARMS = ("sync-ids", "ids", "<b>fused</b>")


def report() -> ReportData:
    """Each arm of another number of steps, so that it can be told which is drawn."""
    data = from_loaded(fabricate.loaded(arms=ARMS, num_rounds=1, num_requests=2))
    (scenario,) = data.scenarios
    rows = (make.span_row("forward", serial=10), make.span_row("schedule", "host", idle=3))
    series = tuple(
        make.with_costs(one, make.step_costs(rows, make.lanes(num_steps)))
        for num_steps, one in enumerate(scenario.series, 3)
    )
    return replace(data, scenarios=(replace(scenario, series=series),))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[playwright.Page]:
    path = tmp_path_factory.mktemp("timeline") / "report.html"
    path.write_text(report_page.render(report()), encoding="utf-8")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        view = browser.new_page(viewport={"width": 1000, "height": 900})
        view.set_default_timeout(60_000)
        view.complaints = []  # type: ignore[attr-defined]
        view.on("pageerror", lambda error: view.complaints.append(str(error)))  # type: ignore[attr-defined]
        view.goto(path.as_uri())
        view.locator("#panel-timeline .plot").first.scroll_into_view_if_needed()
        view.locator("#panel-timeline .plot svg.main-svg").first.wait_for(state="attached")
        yield view
        browser.close()


def drawn(page: playwright.Page) -> list[tuple[str, int]]:
    """Above and below: the arm's name and how many forward passes are drawn."""
    return page.evaluate(
        """() => {
          const host = document.querySelector('#panel-timeline .plot');
          return ['y', 'y2'].map((axis, index) => [
            host.layout.annotations[index].text,
            host.data.filter((trace) => trace.yaxis === axis && trace.name.startsWith('model'))[0].x.length,
          ]);
        }"""
    )


def test_two_arms_lie_above_one_another_and_each_can_be_chosen(page: playwright.Page) -> None:
    name = page.locator("#panel-timeline .annotation-text")
    assert [count for _, count in drawn(page)] == [3, 5]
    playwright.expect(name.nth(1)).to_have_text("<b>fused</b>")
    page.locator("#panel-timeline .pair select").nth(1).select_option(label="ids")
    playwright.expect(name.nth(1)).to_have_text("ids")
    assert drawn(page)[1][1] == 4
    above = page.locator("#panel-timeline .pair select").nth(0)
    above.focus()
    page.keyboard.press("ArrowDown")
    playwright.expect(name.nth(0)).to_have_text("ids")
    assert drawn(page)[0][1] == 4
    assert page.complaints == []  # type: ignore[attr-defined]


def test_an_arm_can_be_held_against_itself(page: playwright.Page) -> None:
    for number in range(2):
        page.locator("#panel-timeline .pair select").nth(number).select_option(label="ids")
    assert [count for _, count in drawn(page)] == [4, 4]


def test_a_name_of_the_legend_hides_its_bars_above_and_below(page: playwright.Page) -> None:
    legend = page.locator("#panel-timeline .legend button", has_text="model")
    legend.click()
    shown = page.evaluate(
        "() => document.querySelector('#panel-timeline .plot').data"
        ".filter((trace) => trace.name.startsWith('model')).map((trace) => trace.visible)"
    )
    assert shown == [False, False]
    legend.click()
