"""What makes figures of two run folders incomparable: another machine, other versions, another device.

The checkout of the code is left out: that it differs is why one compares. Pure: two environment.json.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

NOT_RECORDED = "not recorded"

_MACHINE = (
    ("cpu_model", "CPU model"),
    ("num_cores", "cores"),
    ("num_usable_cores", "usable cores"),
    ("os", "operating system"),
    ("python", "Python"),
)
_PACKAGES = ("torch", "transformers", "numpy")
_YOUNG_PACKAGES = ("triton",)
_YOUNG_DEVICE = (
    ("attention", "attention"),
    ("graph_sizes", "captured graphs"),
    ("fuses_routes", "fused routes"),
)
"""Not in older folders, and of a package or a device that has none of it: two without it are alike."""
_DEVICE = (("kind", "device"), ("name", "device name"), ("num_threads", "compute threads"))


@dataclass(frozen=True, slots=True)
class EnvironmentDifference:
    """What differs, in words, and how it reads in either folder."""

    what: str
    base: str
    other: str

    def __str__(self) -> str:
        return f"{self.what}: {self.base} and {self.other}"


def environment_differences(
    base: Mapping[str, Any], other: Mapping[str, Any]
) -> tuple[EnvironmentDifference, ...]:
    """Everything that differs; what neither folder recorded is not known to be alike, and so differs too."""
    pairs = zip(_facts(base), _facts(other), strict=True)
    found = [
        EnvironmentDifference(what, NOT_RECORDED if first is None else first, second or NOT_RECORDED)
        for (what, first), (_, second) in pairs
        if first is None or first != second
    ]
    return (*found, *_variables(base, other))


def _facts(environment: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    for key, what in _MACHINE:
        yield what, _text(environment, key)
    packages = _mapping(environment, "packages")
    for name in _PACKAGES:
        yield name, _text(packages, name)
    device = _mapping(environment, "device")
    for key, what in _DEVICE:
        yield what, _text(device, key)
    for name in _YOUNG_PACKAGES:
        yield name, _young_text(packages, name)
    for key, what in _YOUNG_DEVICE:
        yield what, _young_text(device, key)


def _variables(base: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[EnvironmentDifference]:
    """Of the environment's variables that change a run's times, those set otherwise."""
    first, second = _mapping(base, "variables"), _mapping(other, "variables")
    for name in sorted(first.keys() | second.keys()):
        texts = [_text(side, name) or "not set" for side in (first, second)]
        if texts[0] != texts[1]:
            yield EnvironmentDifference(name, *texts)


def _mapping(environment: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = environment.get(key)
    return value if isinstance(value, Mapping) else {}


def _text(values: Mapping[str, Any], key: str) -> str | None:
    value = values.get(key)
    return None if value is None else str(value)


def _young_text(values: Mapping[str, Any], key: str) -> str:
    value = values.get(key)
    if isinstance(value, list | tuple):
        value = ", ".join(map(str, value))
    return str(value) if value else "none"
