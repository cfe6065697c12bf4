"""Findings as lines of text and as one document. Pure functions; no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from suite.ceilings import Ceilings, Point
from suite.micro.catalogue import Row
from suite.micro.median import METHOD
from suite.micro.session import Findings
from suite.report.wording import number

SCHEMA_VERSION = 1

SAMPLES = (
    "a sample is as many calls as take 1 ms; cold: buffers rotated over more memory than the cache; the "
    "empty loop's own time is in every figure, and is the first row"
)


def document(findings: Findings) -> dict[str, object]:
    """What --json prints and micro.json holds."""
    order, ceilings = findings.order, findings.ceilings
    return {
        "schema_version": SCHEMA_VERSION,
        "device": order.device,
        "model": order.model,
        "num_threads": order.num_threads,
        "method": f"{METHOD}; {SAMPLES}",
        "ceilings": ceilings.model_dump(mode="json") if ceilings else None,
        "is_cached": findings.is_cached,
        "rows": [row.model_dump(mode="json") for row in findings.rows],
        "notes": notes(findings),
        "failure": findings.failure,
    }


def lines(findings: Findings) -> Iterator[str]:
    """Ceilings, then the table, then the method."""
    if findings.ceilings is not None:
        yield from _ceiling_lines(findings.ceilings, findings.is_cached)
    if findings.rows:
        yield from _row_lines(findings.rows)
        yield ""
        yield f"{METHOD};"
        yield SAMPLES
    yield from (f"note: {note}" for note in notes(findings))


def notes(findings: Findings) -> list[str]:
    caveat = findings.ceilings.caveat if findings.ceilings else None
    return [*findings.notes, *([caveat] if caveat else [])]


def _ceiling_lines(ceilings: Ceilings, is_cached: bool) -> Iterator[str]:
    where = "kept from" if is_cached else "measured"
    yield (
        f"Ceilings of {ceilings.device} ({ceilings.device_name}, threads: {ceilings.num_threads}, torch "
        f"{ceilings.torch_version}), {where} {ceilings.measured_utc}"
    )
    yield f"copies are {ceilings.copies}"
    yield "GB/s: the best sample, median [interval], n"
    copied = (ceilings.upload_pinned, ceilings.upload_pageable, ceilings.device_copy)
    yield from _aligned(
        [
            ("bytes", "pinned", "pageable", "within the device, read + written"),
            *(
                (_bytes(points[0]), *(_rates(point, point.size) for point in points))
                for points in zip(*copied, strict=True)
            ),
        ]
    )
    yield ""
    yield "us: the best sample, median [interval], n"
    launch = ceilings.launch
    yield f"an empty step there and back  {_times(ceilings.handoff)}"
    yield f"a launch                      {_times(launch) if launch else 'n/a: the device is a CPU'}"
    yield f"a span around nothing         {_times(ceilings.event_floor)}"
    yield ""
    yield (
        f"GFLOP/s of the linear layers of {ceilings.model} in {ceilings.dtype}; all: one pass over the "
        "weights of all layers"
    )
    yield from _aligned(_matmul_table(ceilings))
    yield ""


def _matmul_table(ceilings: Ceilings) -> list[Sequence[str]]:
    heading = ("tokens", "all", *(f"{shape.inner} to {shape.outer}" for shape in ceilings.shapes))
    table: list[Sequence[str]] = [heading]
    for index, point in enumerate(ceilings.matmul):
        cells = [_rates(point, 2 * ceilings.linear_parameters * point.size)]
        for shape in ceilings.shapes:
            of_shape = shape.points[index]
            work = 2 * shape.inner * shape.outer * of_shape.size
            cells.append(f"{_rate(work, of_shape.best_ns)}, {_rate(work, of_shape.median_ns)}")
        table.append((str(point.size), *cells))
    return table


def _bytes(point: Point) -> str:
    return f"{point.size:,}" if point.memory == "cold" else f"{point.size:,} {point.memory}"


def _rates(point: Point, work: float) -> str:
    interval = ""
    if point.low_ns is not None and point.high_ns is not None:
        interval = f" [{_rate(work, point.high_ns)}, {_rate(work, point.low_ns)}]"
    return f"{_rate(work, point.best_ns)}, {_rate(work, point.median_ns)}{interval}, {point.n}"


def _rate(work: float, duration_ns: float) -> str:
    return number(work / duration_ns) if duration_ns > 0 else "n/a"


def _times(point: Point) -> str:
    interval = ""
    if point.low_ns is not None and point.high_ns is not None:
        interval = f" [{number(point.low_ns / 1000)}, {number(point.high_ns / 1000)}]"
    return f"{number(point.best_ns / 1000)}, {number(point.median_ns / 1000)}{interval}, {point.n}"


def _row_lines(rows: Sequence[Row]) -> Iterator[str]:
    is_queued = any(row.enqueue_ns is not None for row in rows)
    columns: list[tuple[str, Callable[[Row], str]]] = [
        ("name", lambda row: row.name),
        ("size", lambda row: row.size),
        ("median us", lambda row: number(row.median_ns / 1000)),
        ("interval", _interval),
        ("rate", lambda row: "" if row.rate is None else f"{number(row.rate)} {row.unit}"),
        ("n", lambda row: str(row.n)),
        ("memory", lambda row: row.memory),
    ]
    if is_queued:
        columns += [
            ("queueing us", lambda row: "" if row.enqueue_ns is None else number(row.enqueue_ns / 1000)),
            ("", lambda row: "launch-bound" if row.launch_bound else ""),
        ]
    heading = tuple(title for title, _ in columns)
    yield from _aligned([heading, *(tuple(show(row) for _, show in columns) for row in rows)])


def _interval(row: Row) -> str:
    if row.low_ns is None or row.high_ns is None:
        return f"n/a: {row.interval_reason}"
    return f"[{number(row.low_ns / 1000)}, {number(row.high_ns / 1000)}]"


def _aligned(table: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for cells in table:
        padded = (f"{cell:{width}}" for cell, width in zip(cells, widths, strict=True))
        yield "  ".join(padded).rstrip()
