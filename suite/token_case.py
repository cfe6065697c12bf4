"""The token case of a scenario: a few of its requests, tried in every rotation.

Some orders of requests hide a bug: where ids come first, flags that go stale are all true.
"""

from __future__ import annotations

from collections.abc import Sequence

from suite.workload import WorkloadRequest

MAX_REQUESTS = 8


def choose(requests: Sequence[WorkloadRequest]) -> tuple[WorkloadRequest, ...]:
    """At most MAX_REQUESTS in order of arrival: the first of every kind, then whoever comes first."""
    first_of_kind: dict[str, int] = {}
    for index, item in enumerate(requests):
        first_of_kind.setdefault(item.kind, index)
    firsts = list(first_of_kind.values())
    others = [index for index in range(len(requests)) if index not in firsts]
    return tuple(requests[index] for index in sorted([*firsts, *others][:MAX_REQUESTS]))


def rotated(requests: Sequence[WorkloadRequest], by: int) -> tuple[WorkloadRequest, ...]:
    """The same requests, the first `by` of them moved to the end."""
    return (*requests[by:], *requests[:by])
