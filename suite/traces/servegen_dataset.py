"""The lengths a ServeGen client asks for: histograms by window, written as Python literals inside JSON."""

from __future__ import annotations

import ast
import bisect
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from suite.errors import SuiteError
from suite.traces.opening import opened
from suite.weighted import WeightedValues
from suite.yaml_source import show

_TEXT = {"text_tokens", "input_tokens"}
_LEFT_OUT = ("audio_count", "video_count")
_NUMBER = r"\s*[0-9.]+(?:[eE][-+]?[0-9]+)?\s*"
_HISTOGRAM = re.compile(rf"\{{(?:{_NUMBER}:{_NUMBER}(?:,{_NUMBER}:{_NUMBER})*,?)?\s*\}}")
_MAX_COUNT = 1_000_000_000
_MAX_IMAGES = 1_000


class Lengths(NamedTuple):
    """Of one request. Without an image column the last two are None; else the text is apart from them."""

    text_tokens: int
    output_tokens: int
    num_images: int | None
    image_tokens: int | None


@dataclass(frozen=True, slots=True)
class Dataset:
    """A client's histograms: `windows` by start in seconds, each as it is written."""

    path: Path
    starts: tuple[int, ...]
    windows: Mapping[int, Mapping[str, object]]
    left_out: tuple[str, ...]
    has_images: bool

    def draw(self, time_s: float, count: int, generator: np.random.Generator) -> Iterator[Lengths]:
        """The lengths of `count` requests of the window that holds `time_s`."""
        start = self.starts[max(0, bisect.bisect_right(self.starts, time_s) - 1)]
        text_name = "text_tokens" if self.has_images else "input_tokens"
        texts = self._histogram(start, text_name).draw(generator, count).tolist()
        outputs = self._histogram(start, "output_tokens").draw(generator, count).tolist()
        if not self.has_images:
            return (Lengths(*pair, None, None) for pair in zip(texts, outputs, strict=True))
        images = self._histogram(start, "image_count").draw(generator, count)
        each = self._histogram(start, "image_tokens").draw(generator, int(images.sum()))
        sums = np.concatenate([[0], np.cumsum(each)])
        ends = np.cumsum(images)
        tokens = (sums[ends] - sums[ends - images]).tolist()
        return map(Lengths._make, zip(texts, outputs, images.tolist(), tokens, strict=True))

    def _histogram(self, start: int, name: str) -> WeightedValues:
        weights = literal_histogram(self.windows[start].get(name))
        most = _MAX_IMAGES if name == "image_count" else _MAX_COUNT
        if weights is None or not all(_is_count(key, most) for key in weights):
            rule = f"a histogram {{value: weight}} in quotes, values from 0 to {most:,}, weights above 0"
            raise self._error(start, name, f"it must be {rule}")
        if not weights:
            raise self._error(start, name, "the client sends requests in this window: give them lengths")
        return WeightedValues({int(key): weight for key, weight in weights.items()})

    def _error(self, start: int, name: str, rule: str) -> SuiteError:
        value = show(self.windows[start].get(name))
        return SuiteError(f"{self.path}:{_line(self.path, start, name)}: {name} is {value}; {rule}")


def _is_count(key: float, most: int) -> bool:
    return isinstance(key, int) and 0 <= key <= most


def literal_histogram(text: object) -> dict[float, float] | None:
    """`{value: weight}` written as a Python literal, never evaluated; None where it is no such thing."""
    if not isinstance(text, str) or not _HISTOGRAM.fullmatch(text):
        return None
    try:
        found: dict[float, float] = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return None
    return found if all(0 < weight < math.inf for weight in found.values()) else None


def read_dataset(path: Path) -> Dataset:
    """A client's dataset; SuiteError where it is none. Histograms are read when they are drawn from."""
    with opened(path) as stream:
        try:
            found = json.load(stream)
        except (ValueError, RecursionError) as error:
            raise SuiteError(f"{path}: not JSON: {error}; fetch it again") from None
    windows = _windows(path, found)
    names = {name for window in windows.values() for name in window}
    if len(names & _TEXT) != 1 or "output_tokens" not in names:
        raise SuiteError(
            f"{path}: its fields are {show(','.join(sorted(names)))}, of no known dataset: it needs "
            "input_tokens or text_tokens, and output_tokens"
        )
    return Dataset(path, tuple(sorted(windows)), windows, _left_out(windows), "text_tokens" in names)


def _windows(path: Path, found: object) -> dict[int, Mapping[str, object]]:
    rule = "it must map each window's start in seconds to its histograms"
    if not isinstance(found, dict) or not found:
        raise SuiteError(f"{path}: {rule}")
    for start, window in found.items():
        if not start.isdecimal() or len(start) > 10 or not isinstance(window, dict):
            raise SuiteError(f"{path}:{_line(path, start)}: the window {show(start)} does not fit; {rule}")
    return {int(start): window for start, window in found.items()}


def _left_out(windows: Mapping[int, Mapping[str, object]]) -> tuple[str, ...]:
    """What some request has beside text and images."""
    return tuple(
        name
        for name in _LEFT_OUT
        if any(any(literal_histogram(window.get(name)) or ()) for window in windows.values())
    )


def _line(path: Path, start: object, name: str = "") -> int:
    """The line of a window, or of a field in it; 1 where it cannot be found."""
    with opened(path) as stream:
        text = stream.read()
    place = max(0, text.find(f'"{start}"'))
    if name:
        place = max(place, text.find(f'"{name}"', place))
    return text.count("\n", 0, place) + 1
