"""The requests.jsonl of a vLLM run, as its engine's own request statistics give it: read for its latencies.

Two clocks: `queued_ts`, `scheduled_ts`, `first_token_ts` and `last_token_ts` are monotonic seconds,
`arrival_time` is often the time of day. Latencies are never taken across two clocks: they count from the
arrival where all of it lies on the engine's clock, else from `queued_ts`, and `note` says which.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

from suite.errors import SuiteError
from suite.metrics import Latencies, edge_latencies
from suite.yaml_source import path_errors, show

_TIMES = ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
_NS_PER_S = 1_000_000_000
_LONGEST_WAIT_NS = 24 * 3600 * _NS_PER_S
"""An arrival further before its queue than this is the time of another clock."""

FROM_ARRIVAL = "latencies count from arrival_time, which is on the clock of the other times"
FROM_QUEUE = (
    "latencies count from queued_ts: arrival_time is on another clock than the other times, so how long "
    "requests took to reach the queue is unknown"
)


@dataclass(frozen=True, slots=True)
class VllmRequest:
    """One line. Times in ns, exact; `arrival_ns` may be on another clock than the rest."""

    request_id: str
    num_prompt_tokens: int
    num_output_tokens: int
    arrival_ns: int
    queued_ns: int
    scheduled_ns: int
    first_token_ns: int
    last_token_ns: int


@dataclass(frozen=True, slots=True)
class VllmRequests:
    """In the file's order. `note` says from when latencies count, and why."""

    requests: tuple[VllmRequest, ...]
    is_from_arrival: bool

    @property
    def note(self) -> str:
        return FROM_ARRIVAL if self.is_from_arrival else FROM_QUEUE

    def latencies(self) -> list[Latencies]:
        """Of each request; none is ever negative."""
        return [
            edge_latencies(
                one.arrival_ns if self.is_from_arrival else one.queued_ns,
                one.scheduled_ns,
                one.first_token_ns,
                one.last_token_ns,
                one.num_output_tokens,
            )
            for one in self.requests
        ]


def read_vllm_requests(path: Path) -> VllmRequests:
    """SuiteError names file, line, key and rule where a line is not what it must be."""
    with path_errors(path):
        lines = path.read_text(encoding="utf-8-sig", errors="backslashreplace").splitlines()
    requests = tuple(_requests(path, lines))
    if not requests:
        raise SuiteError(f"{path}: it has no request; it must hold one JSON object a line")
    return VllmRequests(requests, _is_one_clock(requests))


def _requests(path: Path, lines: Iterable[str]) -> Iterator[VllmRequest]:
    """One a line that is not blank, each of another id."""
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        request = _request(f"{path}:{number}", line)
        first = seen.setdefault(request.request_id, number)
        if first != number:
            raise SuiteError(
                f"{path}:{number}: request_id is {show(request.request_id)}, as in line {first}: a request "
                "that stands twice would count twice; remove one of the lines"
            )
        yield request


def _is_one_clock(requests: Iterable[VllmRequest]) -> bool:
    """One arrival behind its queue, or more than a day before it, shows that the clocks are two."""
    return all(0 <= one.queued_ns - one.arrival_ns <= _LONGEST_WAIT_NS for one in requests)


def _request(place: str, line: str) -> VllmRequest:
    try:
        row = json.loads(line, parse_float=Decimal)
    except (ValueError, RecursionError):
        raise SuiteError(
            f"{place}: this is no JSON: {show(line)}; remove the line or write it whole"
        ) from None
    if not isinstance(row, dict):
        raise SuiteError(f"{place}: this is {show(row)}; it must be a JSON object")
    times = {name: _ns(place, row, name) for name in ("arrival_time", *_TIMES)}
    _check_order(place, row, times)
    return VllmRequest(
        str(_value(place, row, "request_id")),
        _count(place, row, "input_toks", 0),
        _count(place, row, "output_toks", 1),
        *times.values(),
    )


def _check_order(place: str, row: Mapping[str, object], times: Mapping[str, int]) -> None:
    for earlier, later in pairwise(_TIMES):
        if times[later] < times[earlier]:
            raise SuiteError(
                f"{place}: {later} is {row[later]}; it must not be before {earlier}, {row[earlier]}: a "
                "latency would be negative; remove the line"
            )


def _value(place: str, row: Mapping[str, object], name: str) -> object:
    if name not in row:
        raise SuiteError(f"{place}: {name} is missing; the line has {', '.join(row) or 'no key'}")
    return row[name]


def _ns(place: str, row: Mapping[str, object], name: str) -> int:
    value = _value(place, row, name)
    is_number = isinstance(value, Decimal | int) and not isinstance(value, bool)
    if not is_number or not 0 <= Decimal(str(value)) < 10**11:
        raise SuiteError(f"{place}: {name} is {show(value)}; it must be a finite number of seconds")
    return round(Decimal(str(value)) * _NS_PER_S)


def _count(place: str, row: Mapping[str, object], name: str, smallest: int) -> int:
    value = _value(place, row, name)
    if not isinstance(value, int) or isinstance(value, bool) or value < smallest:
        raise SuiteError(
            f"{place}: {name} is {show(value)}; it must be a whole number of at least {smallest}"
        )
    return value
