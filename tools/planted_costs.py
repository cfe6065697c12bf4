"""How often amplification recovers a wait planted in one upload of the device process.

    python tools/planted_costs.py [--runs 20] [--rounds 12] [--costs 5,20,100] [--arm refresh]

Every run has rounds of its own; those of a cost share a device. Prints each, and the tally: how many 95 %
intervals hold the wait itself, how many what it cost (by the device's own clock around upload and wait, and
by what the rest of a step loses after such waits made as one: the interval of the difference holds 0), how
many exclude 0, and the longest run. Wants two idle cores: there a wait by the clock is what is lost.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "suite")]

STEP_US = 7000


def main() -> None:
    from planting import planted_case

    options = _options()
    with tempfile.TemporaryDirectory() as folder:
        case = planted_case(Path(folder))
        tallies = [_series(case, cost_us, options) for cost_us in options.costs]
    print("\n".join(["", *tallies]))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument(
        "--costs", type=lambda text: [float(part) for part in text.split(",")], default="5,20,100"
    )
    parser.add_argument("--arm", default="refresh")
    return parser.parse_args()


def _series(case, cost_us: float, options: argparse.Namespace) -> str:
    from planting import MODEL, PlantedDevice, Steps, recovered, repeats_for

    num_held = num_agreed = num_decided = 0
    longest_s = 0.0
    k = repeats_for(cost_us, STEP_US)
    with PlantedDevice(MODEL, case.runner_config, cost_us, k) as device:
        steps = Steps(device, case)
        for seed in range(options.runs):
            begin = time.monotonic()
            found = recovered(device, steps, options.arm, k, seed, options.rounds)
            longest_s = max(longest_s, time.monotonic() - begin)
            is_held = found.planted.low_us <= cost_us <= found.planted.high_us
            is_agreed = found.beyond.low_us <= 0 <= found.beyond.high_us
            num_held += is_held
            num_agreed += is_agreed
            num_decided += found.planted.low_us > 0
            print(f"{cost_us:g} us: {found}{'' if is_agreed else '  MISSED'}", flush=True)
    return (
        f"{cost_us:g} us: {num_held} of {options.runs} intervals hold it, {num_agreed} hold what it cost, "
        f"{num_decided} exclude 0; the longest run took {longest_s:.0f} s"
    )


if __name__ == "__main__":
    main()
