"""`python -m mutants`: plant every fault of the catalogue, one at a time, and see that a test notices.

Exit code 0 when all are noticed; 1 when one survives, no longer applies or cannot be tried; 2 for a wrong
option; 130 when interrupted.
"""

from __future__ import annotations

import argparse
import difflib
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.console import Console

from mutants.catalogue import CATALOGUE
from mutants.mutant import Mutant
from mutants.report import print_catalogue, print_verdicts
from mutants.trials import Bench, Verdict, preload, trials, unmutated

_ROOT = Path(__file__).resolve().parents[1]
_UNMUTATED_TIMEOUT_S = 900.0


def main() -> int:
    options = _options()
    console = Console(width=160 if not sys.stdout.isatty() else None)
    mutants = [CATALOGUE[name] for name in options.only] if options.only else list(CATALOGUE.values())
    if options.list:
        print_catalogue(console, mutants)
        return 0
    preload()
    return run(_ROOT, mutants, console, options.jobs, options.timeout)


def run(root: Path, mutants: Sequence[Mutant], console: Console, num_jobs: int, timeout_s: float) -> int:
    """Try the mutants on a tree; the exit code."""
    stale = [(mutant.name, why) for mutant in mutants if (why := mutant.stale(root)) is not None]
    for name, why in stale:
        console.print(f"mutant {name} is stale: {why}; write it anew", markup=False, soft_wrap=True)
    if stale:
        return 1
    started = time.monotonic()
    try:
        with Bench(root, num_jobs) as bench:
            ending = unmutated(bench, mutants, _UNMUTATED_TIMEOUT_S)
            if ending.code != 0:
                text = f"without any fault the tests do not pass: {ending.test} {ending.text}"
                console.print(text, markup=False, soft_wrap=True)
                return 1
            console.print(f"without any fault all selected tests pass ({ending.seconds:.0f} s)")
            verdicts = _try_all(bench, mutants, console, timeout_s)
    except KeyboardInterrupt:
        console.print("interrupted")
        return 130
    print_verdicts(console, verdicts)
    console.print(f"{time.monotonic() - started:.0f} s")
    return 0 if all(verdict.outcome in ("killed", "timeout") for verdict in verdicts) else 1


def _try_all(bench: Bench, mutants: Sequence[Mutant], console: Console, timeout_s: float) -> list[Verdict]:
    verdicts = {}
    with closing(trials(bench, mutants, timeout_s)) as coming:
        for verdict in coming:
            verdicts[verdict.mutant.name] = verdict
            count = f"{len(verdicts)}/{len(mutants)}"
            name, outcome = verdict.mutant.name, verdict.outcome
            console.print(
                f"{count} {name}: {outcome}, {verdict.seconds:.1f} s", markup=False, highlight=False
            )
    return [verdicts[mutant.name] for mutant in mutants]


def _options() -> Any:
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", nargs="+", action="extend", metavar="NAME", help="these mutants alone")
    parser.add_argument("--list", action="store_true", help="print the catalogue and try nothing")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="trials at once (default 2)")
    parser.add_argument(
        "--timeout", type=float, default=60.0, metavar="SECONDS", help="a trial is cut after it (default 60)"
    )
    options = parser.parse_args()
    if options.jobs < 1 or not options.timeout > 0:
        parser.error("--jobs must be at least 1 and --timeout above 0")
    for name in options.only or ():
        if name not in CATALOGUE:
            near = difflib.get_close_matches(name, CATALOGUE, 3) or ["see --list"]
            parser.error(f"no mutant {name!r}; near: {', '.join(near)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
