"""CATALOGUE: every mutant by its name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from mutants import (
    attribution,
    caching,
    checking,
    comparing,
    compiling,
    device_half,
    drafts,
    dtype,
    figures,
    gpu_path,
    host_half,
    image_attention,
    keeping,
    measuring,
    micro,
    packing,
    planning,
    report_page,
    reporting,
    sampling,
    traffic,
    validity,
)
from mutants.mutant import Mutant


def by_name(mutants: Iterable[Mutant]) -> Mapping[str, Mutant]:
    named: dict[str, Mutant] = {}
    for mutant in mutants:
        assert mutant.name not in named, f"two mutants are named {mutant.name}"
        assert mutant.old != mutant.new, f"mutant {mutant.name} changes nothing"
        named[mutant.name] = mutant
    return MappingProxyType(named)


_PARTS = (
    attribution,
    planning,
    host_half,
    device_half,
    gpu_path,
    dtype,
    image_attention,
    sampling,
    drafts,
    caching,
    checking,
    measuring,
    micro,
    traffic,
    keeping,
    packing,
    comparing,
    compiling,
    figures,
    validity,
    reporting,
    report_page,
)
CATALOGUE = by_name(mutant for part in _PARTS for mutant in part.MUTANTS)
