"""The spans we recorded beside what a profiler saw of the same run: counts and times by name. Stdlib only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from runner.ranges import STEP_RANGE
from runner.spans import Lane, Span
from suite.profile.capture import WINDOW, Capture, CapturedRange, Total, totals
from suite.profile.scopes import covers, our_spans

TOLERANCE_RATIO = 0.05
TOLERANCE_NS_A_RANGE = 2000
Verdict = Literal["equal", "differs", "count differs", "open ranges", "not captured", "not recorded"]

APART_RATIO = 0.25
APART_NS = 100_000
MIN_PAIRS = 3


@dataclass(frozen=True, slots=True)
class Compared:
    """One span name: how often and how long (ns) by our records, and by the capture."""

    name: str
    lane: Lane | None  # None: only the capture has it
    ours: Total
    captured: Total

    @property
    def difference_ns_a_range(self) -> float | None:
        """By how much a range of the capture is longer than ours.

        None where the numbers differ or are 0, or where a range has no end: how long it is nobody knows.
        """
        ours, captured = self.ours.mean_ns, self.captured.mean_ns
        is_open = self.ours.num_open or self.captured.num_open
        if self.ours.num_ranges != self.captured.num_ranges or is_open or ours is None or captured is None:
            return None
        return captured - ours

    @property
    def verdict(self) -> Verdict:
        """`equal`: as many ranges, and the totals within 5 % or 2 us a range, whichever is more."""
        if not self.captured.num_ranges:
            return "not captured"
        if not self.ours.num_ranges:
            return "not recorded"
        if self.ours.num_ranges != self.captured.num_ranges:
            return "count differs"
        difference, mean = self.difference_ns_a_range, self.ours.mean_ns
        if difference is None or mean is None:
            return "open ranges"
        allowed = max(TOLERANCE_RATIO * mean, TOLERANCE_NS_A_RANGE)
        return "equal" if abs(difference) <= allowed else "differs"


@dataclass(frozen=True, slots=True)
class Comparison:
    """`num_pairs`: spans and ranges of one name and step that can be told from all others; `num_apart` of
    them are so different in length that they are not of one run.
    """

    rows: tuple[Compared, ...]
    num_steps_ours: int
    num_steps_captured: int
    num_pairs: int = 0
    num_apart: int = 0

    @property
    def is_matched(self) -> bool:
        """Whether anything of the capture is in the records as well."""
        return any(row.ours.num_ranges and row.captured.num_ranges for row in self.rows)

    @property
    def is_of_another_run(self) -> bool:
        """Whether most of what should be equally long is not, as where the same work was done twice."""
        return self.num_pairs >= MIN_PAIRS and 2 * self.num_apart > self.num_pairs

    @property
    def is_equal(self) -> bool:
        return self.num_steps_ours == self.num_steps_captured and all(
            row.verdict == "equal" for row in self.rows
        )

    @property
    def lacks_device_process(self) -> bool:
        """Whether the host's ranges were captured and none of the device's: its process was not followed."""
        device = [row for row in self.rows if row.lane in ("compute", "output")]
        host = [row for row in self.rows if row.lane == "host"]
        return (
            bool(device)
            and not any(row.captured.num_ranges for row in device)
            and any(row.captured.num_ranges for row in host)
        )


def compare(spans: Sequence[Span], capture: Capture, is_window: bool = False) -> Comparison:
    """By span name. A span of which there is no time counts as open.

    Where the capture is a window of the run, only what belongs to a step well within it is compared: of the
    first and the last one it has a part only. A CUDA device's spans lie on its streams, where NVTX has none:
    there the host's enqueue of the same name is compared. A torch trace is of the device alone, where that
    is a process of its own: what only the host does is not compared.
    """
    steps = _inner_steps(capture) if is_window else None
    num_steps = sum(span.lane == "steps" for span in spans if steps is None or span.step_id in steps)
    chosen = _of_the_device(spans) if capture.tool == "torch" else _of_the_host(spans)
    spans = [span for span in chosen if steps is None or span.step_id in steps]
    own = [item for item in capture.own if steps is None or item.step_id in steps]
    ours, captured = totals(map(_as_range, spans)), totals(own)
    lanes = {span.name: span.lane for span in spans}
    nothing = Total(0, 0, 0)
    names = dict.fromkeys((*ours, *captured))
    pairs = _pairs(spans, own)
    return Comparison(
        tuple(
            Compared(name, lanes.get(name), ours.get(name, nothing), captured.get(name, nothing))
            for name in names
            if name != WINDOW and not name.startswith(STEP_RANGE)
        ),
        num_steps_ours=num_steps,
        num_steps_captured=sum(item.is_step for item in own),
        num_pairs=len(pairs),
        num_apart=sum(abs(theirs - mine) > max(APART_RATIO * mine, APART_NS) for mine, theirs in pairs),
    )


def _pairs(spans: Sequence[Span], own: Sequence[CapturedRange]) -> list[tuple[int, int]]:
    """How long (ns) a span is by our records and by the capture, where both have its name once in its step.

    Those that are too short to be apart are left out.
    """
    ours, captured = _lengths(map(_as_range, spans)), _lengths(own)
    both = (
        (ours[key][0], captured[key][0])
        for key in ours.keys() & captured.keys()
        if len(ours[key]) == len(captured[key]) == 1
    )
    return [pair for pair in both if max(pair) > APART_NS]


def _lengths(ranges: Iterable[CapturedRange]) -> dict[tuple[str, int | None], list[int]]:
    found: dict[tuple[str, int | None], list[int]] = {}
    for item in ranges:
        if item.duration_ns is not None:
            found.setdefault((item.name, item.step_id), []).append(item.duration_ns)
    return found


def _inner_steps(capture: Capture) -> frozenset[int]:
    ids = sorted({item.step_id for item in capture.steps if item.step_id is not None})
    return frozenset(ids[1:-1])


def _of_the_host(spans: Iterable[Span]) -> list[Span]:
    """Without the spans of streams whose enqueue is a span of the host's as well."""
    found = list(spans)
    enqueued = {span.name for span in found if span.lane == "host"}
    return [span for span in found if span.lane in ("host", "steps") or span.name not in enqueued]


def _of_the_device(spans: Iterable[Span]) -> list[Span]:
    """Commands alone, once each: where the host enqueues them, that is what a trace of it has."""
    found = [span for span in _of_the_host(spans) if span.lane != "steps"]
    commands = {span.name for span in spans if span.lane in ("compute", "output")}
    return [span for span in found if span.name in commands]


def _as_range(span: Span) -> CapturedRange:
    return CapturedRange(span.name, None, 0, 0, span.start_ns or 0, span.end_ns, True, span.step_id)


@dataclass(frozen=True, slots=True)
class ScopeBeside:
    """A scope of vLLM's in a capture, and our spans of the same work in records or another capture."""

    scope: str
    theirs: Total
    our_names: tuple[str, ...]
    ours: Total


def beside_vllm(capture: Capture, own: Mapping[str, Total]) -> tuple[ScopeBeside, ...]:
    """Every vLLM scope of the capture beside our totals. One that we do not know stands beside none."""
    rows = []
    for scope, theirs in totals(capture.vllm).items():
        spans = our_spans(scope)
        names = tuple(name for name in own if covers(spans, name))
        found = [own[name] for name in names]
        ours = Total(
            max((total.num_ranges for total in found), default=0),
            sum(total.num_open for total in found),
            sum(total.total_ns for total in found),
        )
        rows.append(ScopeBeside(scope, theirs, names, ours))
    return tuple(rows)


def span_totals(spans: Iterable[Span]) -> Mapping[str, Total]:
    """Of our records, by name."""
    return totals(map(_as_range, spans))
