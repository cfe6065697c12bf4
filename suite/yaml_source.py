"""Read a YAML 1.2 file into plain values that remember where they were written.

Knows files, lines and `--set`; knows nothing of what the keys mean.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.scalarbool import ScalarBoolean

from suite.errors import SuiteError

KeyPath = tuple[str | int, ...]

_MAX_BYTES = 4 * 1024 * 1024
_MAX_NODES = 100_000  # aliases of aliases can unfold a short file into billions of values
_MAX_DEPTH = 50
_MAX_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value was written: `text` is "file:line" or the option that gave it."""

    text: str
    is_option: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """Plain values (dict, list, str, int, float, bool, None, date) and the place of each of them."""

    file: Path
    data: dict[str, Any]
    places: Mapping[KeyPath, Place] = field(default_factory=dict)

    def place(self, path: KeyPath) -> Place:
        """The place of `path`, of the first thing written inside it, or of the nearest around it."""
        if path not in self.places:
            inside = (at for known, at in self.places.items() if known[: len(path)] == path)
            if path and (first := next(inside, None)) is not None:
                return first
        for length in range(len(path), -1, -1):
            found = self.places.get(path[:length])
            if found is not None:
                return found
        return Place(str(self.file))

    def replaced(self, path: KeyPath, value: object, place: Place) -> Source:
        """A copy with the value at `path` put in, missing mappings made; SuiteError where none can be."""
        data = _put(self.data, path, 0, value, place)
        places = {known: at for known, at in self.places.items() if known[: len(path)] != path}
        places[path] = place
        return Source(self.file, data, places)

    def has(self, path: KeyPath) -> bool:
        return self.get(path, default=_NOTHING) is not _NOTHING

    def get(self, path: KeyPath, default: object = None) -> object:
        """The value at `path`, or `default` where nothing is written there."""
        value: object = self.data
        for name in path:
            is_key = isinstance(value, dict) and name in value
            is_index = isinstance(value, (list, tuple)) and name in range(len(value))
            if not is_key and not is_index:
                return default
            value = cast(Any, value)[name]
        return value


_NOTHING = object()


def _put(inside: object, path: KeyPath, depth: int, value: object, place: Place) -> Any:
    """`inside` copied along `path[depth:]`, with `value` at its end."""
    if depth == len(path):
        return value
    name = path[depth]
    if isinstance(name, int):
        assert isinstance(inside, list), f"no list at {dotted(path[:depth])}"
        return [
            _put(item, path, depth + 1, value, place) if index == name else item
            for index, item in enumerate(inside)
        ]
    if inside is not None and not isinstance(inside, dict):
        raise SuiteError(
            f"{place.text}: {dotted(path)} cannot be set: {dotted(path[:depth])} is {show(inside)}, "
            "not a mapping, and is set as a whole"
        )
    copied = dict(inside or {})
    copied[name] = _put(copied.get(name), path, depth + 1, value, place)
    return copied


def dotted(path: KeyPath) -> str:
    """("arms", 1) as "arms[1]", ("traffic", "seed") as "traffic.seed"."""
    text = ""
    for name in path:
        text += f"[{name}]" if isinstance(name, int) else f".{name}" if text else name
    return text


def show(value: object) -> str:
    """A value as a user would write it in YAML, on one line and cut to a readable length."""
    text = _flow(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."


def _flow(value: object) -> str:
    if value is None:
        return "null (nothing)"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return repr(value[: _MAX_SHOWN + 1])
    if isinstance(value, float):
        return _flow_float(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_flow(item) for item in value) + "]"
    return str(value)


def _flow_float(value: float) -> str:
    if value != value:
        return ".nan"
    if value in (float("inf"), float("-inf")):
        return ".inf" if value > 0 else "-.inf"
    return repr(value)


def read_source(file: Path) -> Source:
    """The mapping a YAML file holds; SuiteError for anything else that can be found at that path."""
    loaded = _parse(_read_text(file), str(file))
    if loaded is None:
        raise SuiteError(f"{file}: the file is empty; write a scenario's keys into it")
    if not isinstance(loaded, CommentedMap):
        raise SuiteError(f"{file}:1: the file holds {_kind(loaded)}, not a mapping; write `key: value` lines")
    reader = _Reader(str(file))
    data = reader.plain(loaded, ())
    return Source(file, data, reader.places)


def parse_value(text: str, option: str) -> object:
    """The value of an option such as `--set key=value`, read as YAML; `option` names it in errors."""
    return _Reader(option, is_option=True).plain(_parse(text, option, is_option=True), ())


def is_folder(path: Path) -> bool:
    """Whether a path is a directory; SuiteError where the system will not say."""
    with path_errors(path):
        return path.is_dir()


@contextmanager
def path_errors(path: Path) -> Iterator[None]:
    """Every way a path can be no path becomes a SuiteError: a loop of links, a name too long..."""
    try:
        yield
    except OSError as error:
        raise SuiteError(f"{_shown(path)}: cannot be read: {error.strerror or error}") from None
    except RuntimeError:  # pathlib's word for a loop of symbolic links
        raise SuiteError(f"{_shown(path)}: cannot be read: a loop of symbolic links") from None
    except ValueError as error:  # a path with a NUL in it
        raise SuiteError(f"{str(path)!r}: no such path: {error}") from None


def _shown(path: Path) -> str:
    return str(path).encode(errors="backslashreplace").decode()


def _read_text(file: Path) -> str:
    with path_errors(file):
        if is_folder(file):
            raise SuiteError(f"{file}: this is a directory; name a scenario file in it")
        if not file.exists():
            raise SuiteError(f"{file}: no such file; check the path (it is taken from {Path.cwd()})")
        if not file.is_file():
            raise SuiteError(f"{file}: this is not a regular file; name a scenario file")
        if file.stat().st_size > _MAX_BYTES:
            raise SuiteError(
                f"{file}: the file has {file.stat().st_size} bytes, a scenario at most {_MAX_BYTES}; "
                "is this a trace? name it in traffic.arrivals.path"
            )
        raw = file.read_bytes()
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise SuiteError(
            f"{file}:{line}: byte 0x{raw[error.start]:02x} is not UTF-8; save the file as UTF-8"
        ) from None


def _parse(text: str, origin: str, *, is_option: bool = False) -> object:
    """ruamel's round-trip tree of `text`; every way it can fail becomes a SuiteError."""
    try:
        return YAML(typ="rt").load(text)
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        at = origin if is_option else f"{origin}:{line}"
        raise SuiteError(f"{at}: {_problem(error)}") from None
    except YAMLError as error:
        raise SuiteError(f"{origin}: not YAML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise SuiteError(f"{origin}: nested too deeply; a scenario needs {_MAX_DEPTH} at most") from None
    except (LookupError, TypeError, AttributeError, AssertionError):  # the library's constructors, on a tag
        raise SuiteError(
            f"{origin}: a value does not fit its YAML tag (!!...); write plain mappings, lists, "
            "text and numbers"
        ) from None
    except (ValueError, ArithmeticError) as error:  # 5,000 digits, the 40th of May
        reason = str(error).split(";")[0]
        raise SuiteError(f"{origin}: a value cannot be read: {reason}; correct it") from None


def _problem(error: MarkedYAMLError) -> str:
    problem = str(error.problem)
    if problem.startswith("found duplicate key"):
        return f"{problem.removeprefix('found ')}; a key may stand once: remove one of them"
    if "another document" in problem:
        return "a second document begins here (---); a scenario file holds one"
    return f"not YAML: {problem}; check indentation, quotes and brackets here and just before"


def _kind(value: object) -> str:
    if isinstance(value, CommentedSeq):
        return "a list"
    return f"the single value {show(value)}"


class _Reader:
    """Turns ruamel's tree into plain values, noting the place of every key and item."""

    def __init__(self, origin: str, *, is_option: bool = False) -> None:
        self.places: dict[KeyPath, Place] = {}
        self._origin = origin
        self._is_option = is_option
        self._num_nodes = 0

    def plain(self, node: object, path: KeyPath) -> Any:
        self._num_nodes += 1
        if self._num_nodes > _MAX_NODES or len(path) > _MAX_DEPTH:
            raise SuiteError(
                f"{self._at(path)}: more than {_MAX_NODES} values or {_MAX_DEPTH} levels; "
                "write the scenario without aliases that repeat each other"
            )
        if isinstance(node, CommentedMap):
            return dict(self._entries(node, path))
        if isinstance(node, CommentedSeq):
            return list(self._items(node, path))
        return self._scalar(node, path)

    def _entries(self, node: CommentedMap, path: KeyPath) -> Iterator[tuple[str, Any]]:
        for key, value in node.items():
            position = node.lc.data.get(key) if node.lc.data else None
            if position is not None:  # a key that came through `<<` has none of its own
                self._note((*path, str(key)), position[0] + 1)
            if not isinstance(key, str):
                raise SuiteError(
                    f"{self._at((*path, str(key)))}: the key {show(key)} is not text; "
                    f'write it in quotes: "{key}"'
                )
            yield self._text(key, (*path, key)), self.plain(value, (*path, str(key)))

    def _items(self, node: CommentedSeq, path: KeyPath) -> Iterator[Any]:
        for index, value in enumerate(node):
            position = node.lc.data.get(index) if node.lc.data else None
            if position is not None:
                self._note((*path, index), position[0] + 1)
            yield self.plain(value, (*path, index))

    def _scalar(self, node: object, path: KeyPath) -> Any:
        if node is None or isinstance(node, bool):
            return node
        if isinstance(node, ScalarBoolean):
            return bool(node)
        if isinstance(node, str):
            return self._text(node, path)
        for plain_type in (int, float):
            if isinstance(node, plain_type):
                return plain_type(node)
        if isinstance(node, datetime.date):
            return node
        raise SuiteError(
            f"{self._at(path)}: {dotted(path) or 'the value'} has a YAML tag or type that scenarios do "
            "not use; write plain mappings, lists, text and numbers"
        )

    def _text(self, node: str, path: KeyPath) -> str:
        try:
            node.encode()
        except UnicodeEncodeError:
            raise SuiteError(
                f"{self._at(path)}: {dotted(path) or 'the value'} is {show(node)}, which holds half a "
                "character (a lone surrogate); write the whole character"
            ) from None
        return str(node)

    def _note(self, path: KeyPath, line: int) -> None:
        self.places[path] = Place(f"{self._origin}:{line}")

    def _at(self, path: KeyPath) -> str:
        if self._is_option:
            return self._origin
        return Source(Path(self._origin), {}, self.places).place(path).text
