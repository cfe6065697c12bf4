"""From a scenario file and options to the raw data of each case: overrides, paths, the sweep.

Works on written values before any schema has seen them, so that every error still has its line.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from suite.errors import SuiteError
from suite.schema import value_error
from suite.traces.servegen import TRACE_END
from suite.yaml_source import KeyPath, Place, Source, dotted, parse_value, show

_MAX_CASES = 1_000
_SWEPT = ("model", "image_attention", "seed", "runner.", "traffic.")
_TRACE_PATH: KeyPath = ("traffic", "arrivals", "path")
_MODEL_PATH: KeyPath = ("model", "path")
_RECORDED_PATH: KeyPath = ("traffic", "steps", "recorded")
_EMBEDS_PATHS: KeyPath = ("traffic", "embeds_files")
_FOLDERS = (_MODEL_PATH, _RECORDED_PATH)


def overridden(source: Source, text: str) -> Source:
    """`a.b.c=value` put in; the value is read as YAML, a key of the sweep is everything after `sweep.`"""
    option = f"--set {text}".encode(errors="backslashreplace").decode()
    key, equals, value = text.partition("=")
    names = key.strip().split(".", 1) if key.startswith("sweep.") else key.strip().split(".")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise SuiteError(f"{option}: it holds a byte that is not UTF-8; write it in UTF-8") from None
    if not equals or not all(names):
        raise SuiteError(f"{option}: this is no key=value; write for instance --set rounds=5")
    return with_option(source, tuple(names), parse_value(value, option), option)


def with_option(source: Source, path: KeyPath, value: object, option: str) -> Source:
    """The value of an option put in; SuiteError where a sweep would silently win over it."""
    for swept in _mapping(source.data.get("sweep")):
        if f"{dotted(path)}.".startswith(f"{swept}."):
            raise SuiteError(
                f"{option}: {swept} is swept ({source.place(('sweep', swept)).text}) and would win over "
                f"it; write --set 'sweep.{swept}=[...]', or --set 'sweep={{}}' before it"
            )
    return source.replaced(path, value, Place(option, is_option=True))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def with_paths(source: Source) -> Source:
    """Every path made absolute: traces, embeddings, checkpoints; in the scenario and among swept values."""
    for path in (_TRACE_PATH, *_items(source, _EMBEDS_PATHS)):
        source = _with_path(source, path)
    for path in _FOLDERS:
        source = _with_path(source, path, existing=_existing_folder)
    for key, values in _mapping(source.data.get("sweep")).items():
        if not isinstance(values, list):
            continue
        names = tuple(key.split("."))
        for index in range(len(values)):
            source = _with_swept_paths(source, names, ("sweep", key, index))
    return source


def _with_swept_paths(source: Source, names: KeyPath, swept: KeyPath) -> Source:
    """The source with the paths in one value of a sweep over the key `names`."""
    for known in (_TRACE_PATH, *_FOLDERS):
        if names == known[: len(names)]:
            existing = _existing_folder if known in _FOLDERS else None
            source = _with_path(source, swept, known[len(names) :], existing)
    if names == _EMBEDS_PATHS:
        for path in _items(source, swept):
            source = _with_path(source, path)
    return source


def _items(source: Source, path: KeyPath) -> list[KeyPath]:
    """The paths of the items of a list; of none where no list is written."""
    found = source.get(path)
    return [(*path, index) for index in range(len(found))] if isinstance(found, list) else []


def _with_path(
    source: Source,
    path: KeyPath,
    below: KeyPath = (),
    existing: Callable[[Source, KeyPath, str], str] | None = None,
) -> Source:
    """The source with the text at `path`, or at `below` inside it, made a path that exists."""
    written = source.get(path)
    resolved = _resolved_inside(written, below, partial(existing or _existing_path, source, path))
    return source if resolved == written else source.replaced(path, resolved, source.place(path))


def _resolved_inside(value: object, below: KeyPath, resolve: Callable[[str], str]) -> object:
    """`value` with the text found at `below` resolved."""
    if not below:
        return resolve(value) if isinstance(value, str) else value
    if not isinstance(value, dict) or below[0] not in value:
        return value
    return {**value, str(below[0]): _resolved_inside(value[below[0]], below[1:], resolve)}


def _existing_path(source: Source, path: KeyPath, written: str) -> str:
    """A file, or a folder of clients."""
    place, tried = source.place(path), _candidates(source, path, written)
    try:
        for candidate in tried:
            if candidate.is_file() or any(candidate.glob(f"*{TRACE_END}")):
                return str(candidate.resolve())
    except (OSError, ValueError) as error:
        raise SuiteError(f"{place.text}: {dotted(path)} is {show(written)}; no such path: {error}") from None
    is_folder = next((candidate for candidate in tried if candidate.is_dir()), None)
    if is_folder is not None:
        raise SuiteError(f"{place.text}: {dotted(path)} is {show(written)}, a directory; name a file in it")
    raise _no_such(source, path, written, "file", tried)


def _existing_folder(source: Source, path: KeyPath, written: str) -> str:
    """Of a checkpoint, or of a run."""
    place, tried = source.place(path), _candidates(source, path, written)
    try:
        found = next((candidate for candidate in tried if candidate.is_dir()), None)
        is_file = any(candidate.is_file() for candidate in tried)
    except (OSError, ValueError) as error:
        raise SuiteError(f"{place.text}: {dotted(path)} is {show(written)}; no such path: {error}") from None
    if found is not None:
        return str(found.resolve())
    if is_file:
        hint = ": convert it with python -m suite convert FILE FOLDER" if written.endswith(".gguf") else ""
        raise SuiteError(f"{place.text}: {dotted(path)} is {show(written)}, a file; name a folder{hint}")
    raise _no_such(source, path, written, "folder", tried)


def _candidates(source: Source, path: KeyPath, written: str) -> list[Path]:
    """A relative path is taken from the scenario's folder where the file says it, from the current
    directory where an option does; each is tried after the other.
    """
    folders = [source.file.parent, Path()]
    if source.place(path).is_option:
        folders.reverse()
    return list(dict.fromkeys((folder / written).absolute() for folder in folders))


def _no_such(source: Source, path: KeyPath, written: str, what: str, tried: Sequence[Path]) -> SuiteError:
    place = source.place(path)
    order = "the scenario's folder, then the current directory"
    if place.is_option:
        order = "the current directory, then the scenario's folder"
    return SuiteError(
        f"{place.text}: {dotted(path)} is {show(written)}, no {what}; tried "
        f"{' and '.join(map(str, tried))} (relative paths are taken from {order}): correct the path"
    )


def _sweep_values(source: Source) -> dict[str, list[object]]:
    """The sweep as it is written, its keys and lists checked; SuiteError names the line of a bad one."""
    sweep = source.data.get("sweep")
    if sweep is None:
        return {}
    if not isinstance(sweep, Mapping):
        raise SuiteError(value_error(source, ("sweep",), "it must map keys to lists of values"))
    for key, values in sweep.items():
        path: KeyPath = ("sweep", key)
        if not key.startswith(_SWEPT):
            rule = "only model, image_attention, seed, runner.… and traffic.… can be swept: remove it"
            raise SuiteError(value_error(source, path, rule))
        if not isinstance(values, (list, tuple)) or not values:
            rule = "it must be a list of values to try: write [value, ...]"
            raise SuiteError(value_error(source, path, rule))
    if (count := math.prod(len(values) for values in sweep.values())) > _MAX_CASES:
        rule = f"it makes {count} cases, at most {_MAX_CASES} are run: shorten its lists"
        raise SuiteError(value_error(source, ("sweep",), rule))
    return {key: list(values) for key, values in sweep.items()}


def with_first_values(source: Source) -> Source:
    """What is swept need not be written a second time: the first value stands where there is none."""
    for key, values in _sweep_values(source).items():
        path: KeyPath = tuple(key.split("."))
        if not source.has(path):
            source = source.replaced(path, values[0], _swept_place(source, key, 0))
    return source


def _at_values(source: Source, values: Mapping[str, object], indexes: Sequence[int]) -> Source:
    """The source of one case: swept values in place, each remembering its line in the sweep."""
    found = source.replaced(("sweep",), {}, source.place(("sweep",)))
    for (key, value), index in zip(values.items(), indexes, strict=True):
        found = found.replaced(tuple(key.split(".")), value, _swept_place(source, key, index))
    return found


def _swept_place(source: Source, key: str, index: int) -> Place:
    place = source.place(("sweep", key, index))
    return Place(f"{place.text}: in the sweep", place.is_option)


def combinations(source: Source) -> Iterator[tuple[dict[str, object], Source]]:
    """Each combination of the sweep, its last key changing fastest: the values, and the source with them."""
    sweep = _sweep_values(source)
    for indexes in itertools.product(*(range(len(values)) for values in sweep.values())):
        values = {key: sweep[key][index] for key, index in zip(sweep, indexes, strict=True)}
        yield values, _at_values(source, values, indexes)
