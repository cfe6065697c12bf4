"""CaseCeilings: what the machine could do at best when a case was run, kept in the run's folder.

Only what the user's cache already has: measuring takes half a minute, and `suite micro` does it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import get_args

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from runner.core import FloatType
from suite.ceilings import Ceilings
from suite.micro.session import cached_ceilings
from suite.plan import PlannedCase


class CaseCeilings(BaseModel):
    """`model` is the case's own; the ceilings may have been measured with another of the same shapes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    ceilings: Ceilings


ByCase = Mapping[str, CaseCeilings]
"""By case_id."""

_BY_CASE: TypeAdapter[dict[str, CaseCeilings]] = TypeAdapter(dict[str, CaseCeilings])


def of_cases(
    cases: Iterable[PlannedCase], device: str, device_name: str | None = None
) -> dict[str, CaseCeilings]:
    """Those kept of a device, a GPU by its name; a case without any, or of a checkpoint, is left out.

    Those of the case's own type, or else of another: copies are the same there, and it says what it lacks.
    """
    found = {}
    for planned in cases:
        case = planned.case
        if not isinstance(case.scenario.model, str):
            continue  # a checkpoint's shapes are its own, whatever its name
        config = case.runner_config
        for dtype in _types_from(config.dtype):
            ceilings = cached_ceilings(device, case.model_spec, config.num_threads, device_name, dtype)
            if ceilings is not None:
                found[case.case_id] = CaseCeilings(model=case.model_spec.name, ceilings=ceilings)
                break
    return found


def _types_from(first: FloatType) -> Iterable[FloatType]:
    """All data types, this one first."""
    return dict.fromkeys((first, *get_args(FloatType)))


def to_document(ceilings: ByCase) -> dict[str, object]:
    return {case_id: item.model_dump(mode="json") for case_id, item in ceilings.items()}


def from_document(document: object) -> dict[str, CaseCeilings]:
    """ValueError for a document that is none of ours."""
    try:
        return _BY_CASE.validate_python(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{where}: {first['msg']}") from None
