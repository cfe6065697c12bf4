"""StepCosts: what the instrumented run of an arm says of its steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from runner.spans import Level
from suite.ceilings import CeilingShare
from suite.cost_tables import CostTables
from suite.lanes import Lanes
from suite.record import RunRecord

ArmKey = tuple[str, str, str]
"""scenario, case_id, arm"""


@dataclass(frozen=True, slots=True)
class StepCosts:
    """`tables` is None exactly when `reason` says why. `num_spans` were recorded in `num_steps` steps.

    `shares`: of the machine's ceilings; empty exactly when `no_shares` says why.

    `clock_uncertainty_ns`: of device times on the host's clock; 0 where both have one clock.
    """

    run_id: str
    level: Level
    num_steps: int
    num_spans: int
    clock_uncertainty_ns: int | None
    tables: CostTables | None
    reason: str | None = None
    shares: tuple[CeilingShare, ...] = ()
    no_shares: str | None = None
    caveat: str | None = None  # of the ceilings
    instrument_us: float | None = None  # of a step, by arithmetic: what a span costs x spans a step
    no_instrument_us: str | None = None  # why there is none
    lanes: Lanes | None = None  # of a few steady steps; in no document

    def document(self) -> dict[str, object]:
        """For JSON."""
        return {
            "run_id": self.run_id,
            "level": self.level,
            "num_steps": self.num_steps,
            "num_spans": self.num_spans,
            "clock_uncertainty_ns": self.clock_uncertainty_ns,
            "reason": self.reason,
            "tables": self.tables.document() if self.tables else None,
            "ceiling_shares": [share._asdict() for share in self.shares],
            "no_ceiling_shares": self.no_shares,
            "ceilings_caveat": self.caveat,
            "instrument_us": self.instrument_us,
            "no_instrument_us": self.no_instrument_us,
        }


def of_arm(costs: Mapping[ArmKey, StepCosts], run: RunRecord) -> StepCosts | None:
    return costs.get((run.scenario, run.case_id, run.arm))
