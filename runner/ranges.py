"""NVTX ranges under the domain `stepcost`, or nothing where the package nvtx is not installed.

A push is always followed by its pop, whatever the push returns: under a profiler it may return anything.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

DOMAIN = "stepcost"
STEP_RANGE = "stepcost step "  # of a torch trace: around the ranges of one step, its number behind it


class Ranges(Protocol):
    """Ranges of one thread (push, pop) and ranges that may cross another's (start, end)."""

    def push(self, name: str, step_id: int) -> None: ...
    def pop(self) -> None: ...
    def start(self, name: str, step_id: int) -> object: ...
    def end(self, handle: object) -> None: ...


class NoRanges:
    """For a run without ranges, and where there is no nvtx."""

    def push(self, name: str, step_id: int) -> None:
        pass

    def pop(self) -> None:
        pass

    def start(self, name: str, step_id: int) -> object:
        return None

    def end(self, handle: object) -> None:
        pass


class NvtxRanges:
    """Names are registered once each; the step id is the payload.

    `module` is the package nvtx. Up to 0.2.11 a domain has no methods of its own; what they would call is
    looked for where it is, and `nvtx.push_range`, five times as slow, is the last resort.
    """

    def __init__(self, module: Any) -> None:
        self._domain = module.get_domain(DOMAIN)
        self._attributes: dict[str, Any] = {}
        self._push, self._pop, self._start, self._end = _calls(module, self._domain)

    def push(self, name: str, step_id: int) -> None:
        self._push(self._named(name, step_id))

    def pop(self) -> None:
        self._pop()

    def start(self, name: str, step_id: int) -> object:
        return self._start(self._named(name, step_id))

    def end(self, handle: object) -> None:
        self._end(handle)

    def _named(self, name: str, step_id: int) -> Any:
        attributes = self._attributes.get(name)
        if attributes is None:
            attributes = self._domain.get_event_attributes(message=name, payload=step_id)
            self._attributes[name] = attributes
        attributes.payload = step_id
        return attributes


def _calls(module: Any, domain: Any) -> tuple[Callable[..., Any], ...]:
    """push(attributes), pop(), start(attributes), end(handle)."""
    if hasattr(domain, "push_range"):
        return domain.push_range, domain.pop_range, domain.start_range, domain.end_range
    inner = getattr(module, "_lib", None)
    if inner is not None and hasattr(inner, "push_range"):
        handle = domain.handle
        return (
            lambda attributes: inner.push_range(attributes, handle),
            partial(inner.pop_range, handle),
            lambda attributes: inner.start_range(attributes, handle),
            inner.end_range,
        )
    return (
        lambda attributes: module.push_range(**_spelt(attributes)),
        lambda: module.pop_range(domain=DOMAIN),
        lambda attributes: module.start_range(**_spelt(attributes)),
        module.end_range,
    )


def _spelt(attributes: Any) -> dict[str, Any]:
    message = attributes.message
    text = getattr(message, "string", message)
    return {"message": text, "domain": DOMAIN, "payload": attributes.payload}


def nvtx_ranges() -> Ranges:
    """Real ranges, or none where nvtx cannot be imported."""
    try:
        import nvtx
    except ImportError:
        return NoRanges()
    return NvtxRanges(nvtx)
