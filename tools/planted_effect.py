"""How often a real experiment finds what is there, and how often what is not.

    python tools/planted_effect.py [--runs 20] [--rounds 20] [--slowdown 10] [--only aa|slowdown]

Each experiment runs one arm against itself, in two spellings, in a worker of its own; in one kind nothing is
planted (A/A), in the other a busy wait of so many percent of a step after every forward pass of the twin.
Prints each, and the tallies. Accepted: a winner in at most 1 of 20 A/A, the twin slower in at least 19 of 20
with the slowdown. Exit code 1 where it is not so. Wants two idle cores.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "suite")]

MAX_FALSE = 1 / 20
MIN_FOUND = 19 / 20


def main() -> None:
    options = _options()
    kinds = {"aa": 0.0, "slowdown": options.slowdown / 100}
    with tempfile.TemporaryDirectory() as folder:
        told = [
            _series(name, share, options, Path(folder))
            for name, share in kinds.items()
            if options.only in (None, name)
        ]
    print("\n".join(["", *(text for text, _ in told)]))
    sys.exit(0 if all(is_accepted for _, is_accepted in told) else 1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--slowdown", type=float, default=10.0, metavar="PERCENT")
    parser.add_argument("--only", choices=("aa", "slowdown"))
    parser.add_argument("--seed", type=int, default=0, help="of the first experiment")
    return parser.parse_args()


def _series(name: str, share: float, options: argparse.Namespace, folder: Path) -> tuple[str, bool]:
    from planted_experiment import planted_experiment

    from suite.verdict import Word

    words: list[Word] = []
    longest_s = 0.0
    for seed in range(options.seed, options.seed + options.runs):
        begin = time.monotonic()
        found = planted_experiment(folder, share, options.rounds, seed)
        took_s = time.monotonic() - begin
        longest_s = max(longest_s, took_s)
        words.append(found.word)
        print(f"{name} {seed}: {_line(found.comparison)}, {took_s:.1f} s", flush=True)
    num_winners = sum(word in (Word.FASTER, Word.SLOWER) for word in words)
    num_slower = words.count(Word.SLOWER)
    if share:
        is_accepted = num_slower >= MIN_FOUND * len(words)
        told = f"slowdown of {100 * share:g} %: found in {num_slower} of {len(words)}"
    else:
        is_accepted = num_winners <= MAX_FALSE * len(words)
        told = f"A/A: a winner in {num_winners} of {len(words)}"
    accepted = "accepted" if is_accepted else "NOT ACCEPTED"
    return (
        f"{told}: {accepted}; {options.rounds} rounds each, the longest took {longest_s:.0f} s",
        is_accepted,
    )


def _line(one) -> str:
    ratio, floor = one.ratio, one.floor.value
    seen = "no interval"
    if ratio.interval is not None:
        ends = (ratio.interval.low, ratio.interval.high)
        low, high = (100 * math.expm1(end) for end in ends)
        seen = f"{100 * math.expm1(ratio.mean_log):+.2f} % [{low:+.2f}, {high:+.2f}]"
    noise = "no floor" if floor is None else f"floor {100 * math.expm1(floor):.2f} %"
    return f"{one.verdict.word.value}: throughput {seen}, {noise}"


if __name__ == "__main__":
    main()
