"""Steps and spans as Chrome trace events, which Perfetto and chrome://tracing show: a pure function.

Times are us since the first one, with three decimals: the records' nanoseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from runner.measure import StepRecord
from runner.spans import Lane, Span, step_label

Event = dict[str, object]

# Of each run: what its processes and threads are in the viewer.
_HOST, _STEPS, _DEVICE = 1, 2, 3
_PLACES: Mapping[Lane, tuple[int, int]] = {
    "host": (_HOST, 1),
    "compute": (_DEVICE, 1),
    "output": (_DEVICE, 2),
}
_THREADS = {(_HOST, 1): "host thread", (_DEVICE, 1): "compute", (_DEVICE, 2): "output"}
_PROCESSES = {_HOST: "host", _STEPS: "steps", _DEVICE: "device"}
_PIDS_A_RUN = 10

_COUNTERS: Mapping[str, Callable[[StepRecord], int]] = {
    "rows": lambda step: step.num_rows,
    "tokens": lambda step: step.num_tokens,
    "bytes uploaded": lambda step: sum(step.bytes.values()),
    "free blocks": lambda step: step.num_free_blocks,
    "waiting requests": lambda step: step.num_waiting,
}


@dataclass(frozen=True, slots=True)
class TracedRun:
    """One run to be shown, and what to call it."""

    title: str
    steps: Sequence[StepRecord]
    spans: Sequence[Span]


@dataclass(frozen=True, slots=True)
class _Slice:
    name: str
    pid: int
    tid: int
    start_ns: int
    end_ns: int
    step_id: int
    args: Mapping[str, object]


def trace_document(runs: Sequence[TracedRun]) -> dict[str, object]:
    """A trace of the runs. A run without spans is shown by its steps alone; without steps by nothing."""
    base_ns = min((time for run in runs for time in _times(run)), default=0)
    flow_ids = count(1)
    events: list[Event] = []
    notes: list[str] = []
    for index, run in enumerate(runs):
        drawing = _Drawing(run, index * _PIDS_A_RUN, base_ns)
        events += drawing.events(flow_ids)
        notes += drawing.notes
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {"source": "stepcost", "clock_base_ns": str(base_ns), "notes": notes},
    }


def host_events(run: TracedRun, first_pid: int, base_ns: int) -> list[Event]:
    """What the host did and the steps, for a trace that has the device already. 0 in it is `base_ns`."""
    return list(_Drawing(run, first_pid, base_ns, draws_device=False).events(count(1)))


def _times(run: TracedRun) -> Iterator[int]:
    yield from (step.start_ns for step in run.steps)
    yield from (span.start_ns for span in run.spans if span.start_ns is not None)
    yield from (step.device_start_ns for step in run.steps)


class _Drawing:
    """One run's events. `notes` says what could not be drawn."""

    def __init__(self, run: TracedRun, first_pid: int, base_ns: int, draws_device: bool = True) -> None:
        self._run = run
        self._draws_device = draws_device
        self._first_pid = first_pid
        self._base_ns = base_ns
        self.notes: list[str] = []
        slices = [*self._spans(), *self._steps()]
        self._slices = sorted(slices, key=lambda item: (item.pid, item.tid, item.start_ns, -item.end_ns))

    def events(self, flow_ids: Iterator[int]) -> Iterator[Event]:
        yield from self._names()
        for item in self._slices:
            yield self._event(
                "X", item, item.start_ns, name=item.name, dur=self._us(item), args=dict(item.args)
            )
        yield from self._flows(flow_ids)
        yield from self._counters()

    # ---- slices

    def _spans(self) -> Iterator[_Slice]:
        untimed: Counter[str] = Counter()
        for span in self._run.spans:
            if span.start_ns is None or span.end_ns is None:
                untimed[span.reason or "no reason given"] += 1
            elif span.lane in _PLACES:
                pid, tid = _PLACES[span.lane]
                args = {"step": span.step_id}
                yield _Slice(span.name, pid, tid, span.start_ns, span.end_ns, span.step_id, args)
        self.notes += [
            f"{self._run.title}: {number} spans without a time: {text}" for text, number in untimed.items()
        ]

    def _steps(self) -> Iterator[_Slice]:
        """Each step's range, in a row of its own while another step is in flight; without spans its device
        time too."""
        has_device = any(span.lane == "compute" and span.start_ns is not None for span in self._run.spans)
        free_ns: list[int] = []
        for step in sorted(self._run.steps, key=lambda step: step.start_ns):
            row = next((row for row, end in enumerate(free_ns) if end <= step.start_ns), len(free_ns))
            free_ns[row:] = [step.end_ns, *free_ns[row + 1 :]]
            name = step_label(step.kind, step.ids_route, step.embeds_route)
            args = _figures(step)
            yield _Slice(name, _STEPS, 1 + row, step.start_ns, step.end_ns, step.step_id, args)
            if self._draws_device and not has_device:
                start, end = step.device_start_ns, step.device_end_ns
                yield _Slice(name, _DEVICE, 1, start, end, step.step_id, {"step": step.step_id})

    # ---- events

    def _names(self) -> Iterator[Event]:
        threads = sorted({(item.pid, item.tid) for item in self._slices})
        used = {pid for pid, _ in threads} | ({_STEPS} if self._run.steps else set())
        for pid in sorted(used):
            number = self._first_pid + pid
            title = f"{self._run.title}: {_PROCESSES[pid]}"
            yield {"ph": "M", "name": "process_name", "pid": number, "tid": 0, "args": {"name": title}}
            order = {"sort_index": number}
            yield {"ph": "M", "name": "process_sort_index", "pid": number, "tid": 0, "args": order}
        for pid, tid in threads:
            title = _THREADS.get((pid, tid), f"in flight {tid}")
            number = self._first_pid + pid
            yield {"ph": "M", "name": "thread_name", "pid": number, "tid": tid, "args": {"name": title}}

    def _flows(self, flow_ids: Iterator[int]) -> Iterator[Event]:
        """An arrow a step: from where it was launched to where the device began it."""
        launches = _first_of_each_step(item for item in self._slices if item.name == "launch")
        if not launches:
            launches = _first_of_each_step(item for item in self._slices if item.pid == _STEPS)
        starts = _first_of_each_step(item for item in self._slices if item.pid == _DEVICE)
        num_backward = 0
        for step_id, launch in sorted(launches.items()):
            start = starts.get(step_id)
            if start is None:
                continue
            if start.start_ns < launch.start_ns:
                num_backward += 1
                continue
            common = {"name": "launch", "cat": "flow", "id": next(flow_ids)}
            yield self._event("s", launch, launch.start_ns, **common)
            yield self._event("f", start, start.start_ns, bp="e", **common)
        if num_backward:
            self.notes.append(
                f"{self._run.title}: {num_backward} steps have no arrow: by the clocks' uncertainty their "
                "device start is before their launch"
            )

    def _counters(self) -> Iterator[Event]:
        for step in sorted(self._run.steps, key=lambda step: step.start_ns):
            for name, value in _COUNTERS.items():
                yield {
                    "ph": "C",
                    "name": name,
                    "pid": self._first_pid + _STEPS,
                    "tid": 0,
                    "ts": self._ts(step.start_ns),
                    "args": {name: value(step)},
                }

    def _event(self, phase: str, item: _Slice, time_ns: int, **more: object) -> Event:
        pid = self._first_pid + item.pid
        return {"ph": phase, "pid": pid, "tid": item.tid, "ts": self._ts(time_ns), "cat": "stepcost", **more}

    def _ts(self, time_ns: int) -> float:
        return (time_ns - self._base_ns) / 1000

    def _us(self, item: _Slice) -> float:
        return (item.end_ns - item.start_ns) / 1000


def _first_of_each_step(slices: Iterable[_Slice]) -> dict[int, _Slice]:
    found: dict[int, _Slice] = {}
    for item in slices:
        if item.step_id not in found or item.start_ns < found[item.step_id].start_ns:
            found[item.step_id] = item
    return found


def _figures(step: StepRecord) -> dict[str, object]:
    return {
        "step": step.step_id,
        "rows": step.num_rows,
        "tokens": step.num_tokens,
        "decode rows": step.num_decode_rows,
        "prefill tokens": step.num_prefill_tokens,
        "supplied rows": step.num_supplied_rows,
        "images encoded": step.num_images_encoded,
        "preempted": step.num_preempted,
        "host us": step.host_ns / 1000,
        "device us": step.device_ns / 1000,
        "copies": dict(step.copies),
        "bytes": dict(step.bytes),
        "bytes downloaded": step.download_bytes,
    }
