"""The schema of a number drawn for each request: how long it is, how many images it brings.

Each kind is one class in one table; a new kind is a new class and a new entry.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator, Discriminator, Field, Tag, field_validator, model_validator

from suite.schema import AsTuple, Count, PositiveNumber, StrictModel, broken_rule, kind_tag, listed, one_of
from suite.weighted import WeightedValues

_MAX_VALUE = 1_000_000
_WHOLE = re.compile(r"[1-9][0-9]{0,6}")


class Fixed(StrictModel):
    """Always the same number."""

    fixed: Count

    @property
    def smallest(self) -> int:
        return self.fixed

    @property
    def largest(self) -> int:
        return self.fixed

    def draw(self, generator: np.random.Generator, count: int) -> list[int]:
        return [self.fixed] * count


class Uniform(StrictModel):
    """Any whole number from the first to the second, both included, equally often."""

    uniform: Annotated[tuple[Count, Count], AsTuple]

    @field_validator("uniform", mode="before")
    @classmethod
    def _is_pair(cls, value: object) -> object:
        if not isinstance(value, (list, tuple)) or len(value) != 2:
            raise broken_rule("it must be two whole numbers: write [smallest, largest]")
        return value

    @field_validator("uniform")
    @classmethod
    def _is_ordered(cls, value: tuple[int, int]) -> tuple[int, int]:
        if value[0] > value[1]:
            raise broken_rule(f"the smallest comes first: write [{value[1]}, {value[0]}]")
        return value

    @property
    def smallest(self) -> int:
        return self.uniform[0]

    @property
    def largest(self) -> int:
        return self.uniform[1]

    def draw(self, generator: np.random.Generator, count: int) -> list[int]:
        smallest, largest = self.uniform
        return [int(drawn) for drawn in generator.integers(smallest, largest + 1, size=count)]


class LognormalShape(StrictModel):
    """A number whose logarithm is normal around that of `median`, with standard deviation `sigma`.

    Rounded to whole numbers; what lies below `min` or above `max` becomes that bound.
    """

    median: Annotated[PositiveNumber, Field(examples=[256])]
    sigma: Annotated[float, Field(ge=0, le=10, examples=[0.8])]
    min: Count = 1
    max: Annotated[Count, Field(examples=[1024])]

    @model_validator(mode="after")
    def _is_ordered(self) -> LognormalShape:
        if self.min > self.max:
            raise broken_rule(f"it is above max, {self.max}: lower it", key="min")
        if not self.min <= self.median <= self.max:
            raise broken_rule(f"it must lie from min, {self.min}, to max, {self.max}", key="median")
        return self


class Lognormal(StrictModel):
    """Many small numbers and a few large ones, as lengths of real requests are."""

    lognormal: LognormalShape

    @property
    def smallest(self) -> int:
        return self.lognormal.min

    @property
    def largest(self) -> int:
        return self.lognormal.max

    def draw(self, generator: np.random.Generator, count: int) -> list[int]:
        shape = self.lognormal
        drawn = shape.median * np.exp(shape.sigma * generator.standard_normal(count))
        return [int(value) for value in np.rint(np.clip(drawn, shape.min, shape.max))]


def _check_values(value: object) -> object:
    if not isinstance(value, Mapping) or not value:
        raise broken_rule('it must map values to their weights: write {"128": 0.7, "512": 0.3}')
    for key in value:
        if not isinstance(key, str) or not _WHOLE.fullmatch(key) or int(key) > _MAX_VALUE:
            raise broken_rule(f"{key} is no whole number from 1 to {_MAX_VALUE:,}; write it in quotes")
    return value


class Histogram(StrictModel):
    """Each value as often as its weight says; weights need not add up to 1."""

    histogram: Annotated[Mapping[str, PositiveNumber], BeforeValidator(_check_values)]

    @property
    def smallest(self) -> int:
        return min(map(int, self.histogram))

    @property
    def largest(self) -> int:
        return max(map(int, self.histogram))

    def draw(self, generator: np.random.Generator, count: int) -> list[int]:
        weights = {int(value): weight for value, weight in self.histogram.items()}
        drawn: list[int] = WeightedValues(weights).draw(generator, count).tolist()
        return drawn


_KINDS: Mapping[str, type[StrictModel]] = {
    "fixed": Fixed,
    "uniform": Uniform,
    "lognormal": Lognormal,
    "histogram": Histogram,
}


def _as_lengths(value: object) -> object:
    """A bare number means {fixed: number}; a mapping must hold exactly one known kind."""
    if isinstance(value, tuple(_KINDS.values())):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return {"fixed": value}
    if not isinstance(value, Mapping):
        raise broken_rule(
            "it must be a whole number, {fixed: number}, {uniform: [smallest, largest]}, "
            "{lognormal: {median, sigma, min, max}} or {histogram: {value: weight}}"
        )
    if len(value) != 1:
        raise broken_rule(f"it must hold exactly one of: {listed(_KINDS)}")
    kind = next(iter(value))
    if kind not in _KINDS:
        raise broken_rule(f"{kind} is no kind of length; {one_of(kind, _KINDS)}")
    return value


def _kind(value: Any) -> str:
    return kind_tag(next(iter(value)) if isinstance(value, Mapping) else value, _KINDS)


Lengths = Annotated[
    Annotated[Fixed, Tag("<fixed>")]
    | Annotated[Uniform, Tag("<uniform>")]
    | Annotated[Lognormal, Tag("<lognormal>")]
    | Annotated[Histogram, Tag("<histogram>")],
    Discriminator(_kind),
    BeforeValidator(_as_lengths),
]
