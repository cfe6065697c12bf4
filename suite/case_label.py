"""What a case is called: the swept keys and their values, short enough for a chart and never two alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from suite.yaml_source import show

_MAX_MAPPING = 36


def case_label(values: Mapping[str, object], sweep: Mapping[str, Sequence[object]]) -> str:
    """ "multimodal_ratio=0.5"; keys in full where their last parts collide. Empty where nothing is swept.

    A value too long to be written in full has its place among those of its key behind it: "... #2".
    """
    short = {key: key.rpartition(".")[2] for key in values}
    if len(set(short.values())) < len(short):
        short = {key: key for key in values}
    return ", ".join(f"{short[key]}={_text(key, value, sweep[key])}" for key, value in values.items())


def case_title(scenario: str, label: str) -> str:
    """ "smoke [multimodal_ratio=0.5]"; the scenario's name alone where nothing is swept."""
    return scenario if label == scenario else f"{scenario} [{label}]"


def _text(key: str, value: object, among: Sequence[object]) -> str:
    text, is_whole = _short(key, value)
    if is_whole:
        return text
    place = next(index for index, other in enumerate(among) if other is value)
    return f"{text} #{place + 1}"


def _short(key: str, value: object) -> tuple[str, bool]:
    """A value's text, and whether all of it is there."""
    if value is None:
        return "null", True
    if isinstance(value, Mapping):
        return _short_mapping(value)
    if key.endswith(".embeds_files") and isinstance(value, (list, tuple)):
        return _cut([Path(str(path)).name for path in value])
    if not isinstance(value, str):
        return _cut(value)
    return (Path(value).name if key.endswith(".path") else value), True


def _short_mapping(value: Mapping[str, object]) -> tuple[str, bool]:
    """As many of its items as there is room for, one at least."""
    items = [f"{key}: {_short(key, item)[0]}" for key, item in value.items()]
    is_whole = all(_short(key, item)[1] for key, item in value.items())
    kept = len(items)
    while kept > 1 and len(", ".join(items[:kept])) > _MAX_MAPPING:
        kept -= 1
    if kept == len(items):
        return f"{{{', '.join(items)}}}", is_whole
    return f"{{{', '.join(items[:kept])}, ...}}", False


def _cut(value: object) -> tuple[str, bool]:
    text = show(value)
    return text, not text.endswith("...")
