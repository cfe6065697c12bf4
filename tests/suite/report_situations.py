"""What a report may have to show, from one arm to a sweep, a broken run and a large one: data, ready-made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import report_fabrication as fabricate
from report_fabrication import FakeLoaded

from suite.amplification import AmplifiedCost, CommandTimes, Estimate
from suite.attribution import Line
from suite.bill import ArmBill
from suite.comparison import compare
from suite.ratios import ratio_of_logs
from suite.report.data import ReportData, from_loaded
from suite.validity.rule import Finding
from suite.verdict import Floor, Word

ARMS = ("gated", "refresh", "async-rows", "skip")
SPEEDS = {"gated": 1.0, "refresh": 1.15, "async-rows": 1.2, "skip": 1.22, "sync-ids": 1.0, "ids": 1.1}
ROWS = (0.25, 0.5, 0.75, 1.0, 2.0)
"""Of either axis of the sweep."""


def compared(loaded: FakeLoaded) -> ReportData:
    """Arms a known factor apart, the reference arm run twice a round."""
    random = np.random.default_rng(3)
    runs = []
    for run in loaded.runs:
        metric = run.metrics["output_throughput"]
        value = (
            (metric.value or 0.0) * SPEEDS.get(run.arm, 1.0) * float(np.exp(0.003 * random.standard_normal()))
        )
        changed = metric.model_copy(update={"value": value})
        runs.append(run.model_copy(update={"metrics": {**run.metrics, "output_throughput": changed}}))
    loaded.runs = runs
    first = next(run.arm for run in runs)
    again = [
        run.model_copy(update={"is_aa": True, "run_id": f"{run.run_id}-aa"})
        for run in runs
        if run.arm == first and not run.is_warmup
    ]
    findings = [Finding(**item) for item in (loaded.summary or {}).get("findings", ())]
    return from_loaded(loaded, comparisons=compare([*runs, *again], {}, findings))


def estimate(mean_us: float, half_us: float) -> Estimate:
    return Estimate(mean_us, mean_us - half_us, mean_us + half_us, 12)


def bill(arm: str) -> ArmBill:
    """Flag upload and merge of decode and mixed steps, one of them too small to decide."""
    lines = [
        AmplifiedCost(
            span,
            kind,
            (1, 33),
            20,
            step_us,
            estimate(mean, half),
            CommandTimes(1.0, mean, None, None, "not recorded"),
        )
        for span, kind, step_us, mean, half in (
            ("upload.is_token_ids", "decode", 7_300.0, 3.1, 0.7),
            ("merge", "decode", 7_300.0, 41.0, 3.0),
            ("upload.is_token_ids", "mixed", 11_000.0, 2.0, 3.0),
        )
    ]
    return ArmBill("smoke", "id-smoke", "smoke", arm, 12, tuple(lines))


def attribution() -> tuple[Line, ...]:
    """Disabling async costs about 15 %: 9 % overlap, the rest the embedding copy."""

    def line(name: str, over: str, under: str, log: float, factors: tuple[Line, ...] = ()) -> Line:
        ratio = ratio_of_logs(log + 0.002 * np.array([-1.0, 0.5, 0.0, 1.0, -0.5]), ())
        return Line(
            *("smoke", "id-smoke", "smoke", name, over, under, "decode", ratio, Word.FASTER, "seen"),
            floor=Floor(0.005, 5),
            factors=factors,
        )

    factors = (
        line("embedding copy under async", "refresh", "async-rows", 0.0),
        line("overlap", "async-rows", "sync-rows", -0.0943),
        line("embedding copy under sync, undone", "sync-rows", "gated", -0.0682),
    )
    return (line("price of disabling async", "refresh", "gated", -0.1625, factors),)


def arms() -> ReportData:
    """Every kind of arm: right, wrong by design, billed, with an attribution on equal steps."""
    loaded = fabricate.loaded(arms=ARMS, num_rounds=6)
    controls = fabricate.with_controls()
    for run in controls.runs:
        if run.is_control:
            loaded.add(run, controls.step_frames[run.run_id], controls.request_frames[run.run_id])
    loaded.config = [{"name": "smoke", "description": "Made up", "arms": [*ARMS, "stale", "overwrite"]}]
    data = compared(loaded)
    (scenario,) = data.scenarios
    series = tuple(
        replace(one, bill=bill("refresh")) if one.arm == "refresh" else one for one in scenario.series
    )
    return replace(data, scenarios=(replace(scenario, series=series, attribution=attribution()),))


def sweep() -> ReportData:
    """Five by five cases of two arms."""
    cases = [f"multimodal_ratio={image}, embeds_ratio={embeds}" for image in ROWS for embeds in ROWS]
    return compared(
        fabricate.loaded(cases=cases, arms=("sync-ids", "ids"), num_rounds=5, num_requests=6, num_steps=16)
    )


def cost_folder() -> ReportData:
    """A folder of `suite cost`: runs with repeats, and no round of its own."""
    loaded = fabricate.loaded(arms=("refresh",), num_rounds=3, has_warmup=False)
    loaded.runs = [run.model_copy(update={"repeats": {"merge": 33}}) for run in loaded.runs]
    return from_loaded(loaded, bills=[bill("refresh")])


def no_valid_run() -> ReportData:
    """Every measured round broke a rule."""
    loaded = fabricate.loaded(num_rounds=3)
    loaded.summary = {
        "findings": [
            {
                "run_id": run.run_id,
                "rule": "foreign-load",
                "message": "another process took 80 % of a core",
                "remedy": "run it on a quiet machine",
                "is_timing": True,
            }
            for run in loaded.runs
        ]
    }
    return from_loaded(loaded)


SITUATIONS: Mapping[str, Callable[[], ReportData]] = {
    "one": lambda: from_loaded(fabricate.loaded()),
    "arms": arms,
    "sweep": sweep,
    "nothing": lambda: from_loaded(FakeLoaded()),
    "all-failed": lambda: from_loaded(fabricate.all_failed()),
    "no-valid-run": no_valid_run,
    "interrupted": lambda: from_loaded(fabricate.interrupted()),
    "none-finished": lambda: from_loaded(fabricate.none_finished()),
    "cost": cost_folder,
    "features": lambda: from_loaded(fabricate.with_features(["repeated prompts, said at length"])),
    "hostile": lambda: from_loaded(fabricate.hostile()),
    "large": lambda: from_loaded(fabricate.large()),
}
