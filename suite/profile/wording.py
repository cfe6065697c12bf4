"""Captures and comparisons in words and as JSON: pure functions. Times in ms and us; null where undefined."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from suite.profile.capture import Capture, Total, device_totals, totals
from suite.profile.comparison import Compared, Comparison, ScopeBeside
from suite.profile.versions import may_lose_ranges

NOTHING = "-"
FORKSERVER = (
    "no range of the device's process was captured: a forkserver started it, which nsys does not follow; put "
    "the whole `python -m suite run` under nsys, and it is started by spawn"
)


def capture_lines(capture: Capture) -> list[str]:
    """What was captured, and what was not."""
    tool = {"nsys": "Nsight Systems", "torch": "the torch profiler"}[capture.tool]
    version = f" {capture.tool_version}" if capture.tool_version else ""
    lines = [f"capture of {tool}{version}: {len(capture.ranges)} ranges, {len(capture.own)} of them ours"]
    lines += [f"  process {item.pid}: {item.name or 'its name is not told'}" for item in capture.processes]
    if capture.num_open:
        lines.append(f"  {capture.num_open} ranges have no end: they were open when the capture ended")
    lines += [f"  {text}" for text in capture.absent]
    if capture.tool == "nsys" and not capture.own and may_lose_ranges(capture.tool_version):
        lines.append(
            f"  nvtx 0.2.12 and later lose every range under nsys {capture.tool_version}; use 0.2.11"
        )
    return lines


def range_lines(capture: Capture) -> list[str]:
    """A row a name, of all ranges."""
    device = device_totals(capture.work)
    rows = [
        [name, _count(total), _total(total), *_device_cells(device, name)]
        for name, total in totals(capture.ranges).items()
    ]
    outside = device.get("")
    if outside is not None:
        rows.append(["(no range)", NOTHING, NOTHING, str(outside[0]), _ms(outside[1])])
    header = ["range", "n", "total ms", "GPU n", "GPU ms"]
    return table(header if device else header[:3], [row[: 5 if device else 3] for row in rows])


def _device_cells(device: Mapping[str, tuple[int, int]], name: str) -> list[str]:
    found = device.get(name)
    return [str(found[0]), _ms(found[1])] if found else [NOTHING, NOTHING]


def comparison_lines(comparison: Comparison, is_torch: bool = False) -> list[str]:
    """A row a span; `is_torch`: the capture is of torch's profiler."""
    header = ["span", "lane", "n ours", "n capture", "ms ours", "ms capture", "us a range", "verdict"]
    rows = [
        [
            row.name,
            row.lane or NOTHING,
            *_counts(row),
            _total(row.ours),
            _total(row.captured),
            NOTHING if row.difference_ns_a_range is None else f"{row.difference_ns_a_range / 1e3:+.2f}",
            row.verdict,
        ]
        for row in comparison.rows
    ]
    return [
        *table(header, rows, num_left=2),
        *([FORKSERVER] if comparison.lacks_device_process else []),
        *(["torch's ranges hold their own cost, which is what is longer here"] if is_torch else []),
        f"steps: {comparison.num_steps_ours} recorded, {comparison.num_steps_captured} captured",
        *match_warnings(comparison),
        "us a range: by how much a captured range is longer than ours; equal: within 5 % or 2 us a range",
    ]


def match_warnings(comparison: Comparison) -> list[str]:
    """What speaks against the capture being one of this run."""
    if not comparison.is_matched:
        return ["warning: nothing of the capture is in the records of this run: it is not a capture of it"]
    warnings = []
    if comparison.num_steps_captured and comparison.num_steps_ours != comparison.num_steps_captured:
        warnings.append("warning: the steps are not as many: it is a capture of a part, or of another run")
    if comparison.is_of_another_run:
        warnings.append(
            f"warning: {comparison.num_apart} of {comparison.num_pairs} spans of one name and step differ by "
            "more than a quarter: it looks like a capture of another run"
        )
    return warnings


def _counts(row: Compared) -> tuple[str, str]:
    return _count(row.ours), _count(row.captured)


def _count(total: Total) -> str:
    return f"{total.num_ranges} ({total.num_open} open)" if total.num_open else str(total.num_ranges)


def _total(total: Total) -> str:
    """Nothing where no range has an end: its time is not 0."""
    return NOTHING if total.mean_ns is None else _ms(total.total_ns)


def beside_lines(rows: Sequence[ScopeBeside]) -> list[str]:
    """vLLM's scopes and our spans of the same work, each with its own n and total."""
    cells = [
        [
            row.scope,
            str(row.theirs.num_ranges),
            _us_each(row.theirs),
            ", ".join(row.our_names) or NOTHING,
            str(row.ours.num_ranges) if row.our_names else NOTHING,
            _us_each(row.ours) if row.our_names else NOTHING,
        ]
        for row in rows
    ]
    header = ["scope of vLLM", "n", "us each", "our spans of that work", "n", "us a step"]
    return table(header, cells)


def _us_each(total: Total) -> str:
    return NOTHING if total.mean_ns is None else f"{total.mean_ns / 1e3:.1f}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], num_left: int = 1) -> list[str]:
    """Columns as wide as what is in them; the first `num_left`, and those of words, to the left."""
    cells = [list(header), *map(list, rows)]
    widths = [max(len(row[index]) for row in cells) for index in range(len(header))]
    is_left = [index < num_left or not _are_numbers(cells[1:], index) for index in range(len(header))]
    return [
        "  ".join(
            cell.ljust(width) if left else cell.rjust(width)
            for cell, width, left in zip(row, widths, is_left, strict=True)
        ).rstrip()
        for row in cells
    ]


def _are_numbers(rows: Sequence[Sequence[str]], index: int) -> bool:
    return all(row[index] == NOTHING or row[index].lstrip("+-")[:1].isdigit() for row in rows)


def _ms(time_ns: int) -> str:
    return f"{time_ns / 1e6:.3f}"


# ---- as JSON


def capture_document(capture: Capture) -> dict[str, object]:
    device = device_totals(capture.work)
    return {
        "tool": capture.tool,
        "tool_version": capture.tool_version,
        "processes": [{"pid": item.pid, "name": item.name} for item in capture.processes],
        "num_ranges": len(capture.ranges),
        "num_own_ranges": len(capture.own),
        "num_open_ranges": capture.num_open,
        "num_steps": len(capture.steps),
        "absent": list(capture.absent),
        "ranges": [
            {"name": name, **_total_document(total), **_device_document(device.get(name))}
            for name, total in totals(capture.ranges).items()
        ],
        "work_outside_ranges": _device_document(device.get("")),
    }


def _total_document(total: Total) -> dict[str, object]:
    total_ns = None if total.mean_ns is None else total.total_ns
    return {"n": total.num_ranges, "num_open": total.num_open, "total_ns": total_ns}


def _device_document(found: tuple[int, int] | None) -> dict[str, object]:
    return {"gpu_n": found[0] if found else 0, "gpu_total_ns": found[1] if found else 0}


def comparison_document(comparison: Comparison) -> dict[str, object]:
    return {
        "is_equal": comparison.is_equal,
        "lacks_device_process": comparison.lacks_device_process,
        "warnings": match_warnings(comparison),
        "num_steps": {"ours": comparison.num_steps_ours, "capture": comparison.num_steps_captured},
        "spans": [
            {
                "name": row.name,
                "lane": row.lane,
                "ours": _total_document(row.ours),
                "capture": _total_document(row.captured),
                "difference_ns_a_range": row.difference_ns_a_range,
                "verdict": row.verdict,
            }
            for row in comparison.rows
        ],
    }


def beside_document(rows: Sequence[ScopeBeside]) -> list[dict[str, object]]:
    return [
        {
            "scope": row.scope,
            "vllm": _total_document(row.theirs),
            "our_spans": list(row.our_names),
            "ours": _total_document(row.ours),
        }
        for row in rows
    ]
