"""Hold this environment against pins, a file with a `name==version` a line.

    ENVIRONMENT/bin/python tools/pins.py constraints-older.txt

Prints every package with its version and the folder it is loaded from. Exit code 1 where a version is another
one, or the package is not the environment's own but one it borrows; 2 where the file has no such lines.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path

_PIN = re.compile(r"([A-Za-z0-9._-]+)==([^\s;]+)")
EXIT_FINE, EXIT_OTHER, EXIT_USAGE = 0, 1, 2


def main(argv: list[str]) -> int:
    if len(argv) != 1:
        print("usage: python tools/pins.py FILE", file=sys.stderr)
        return EXIT_USAGE
    try:
        pins = list(read(Path(argv[0])))
    except (OSError, ValueError) as error:
        print(f"error: {argv[0]}: {error}", file=sys.stderr)
        return EXIT_USAGE
    faults = [fault for name, version in pins if (fault := held(name, version)) is not None]
    for fault in faults:
        print(f"error: {fault}", file=sys.stderr)
    return EXIT_OTHER if faults else EXIT_FINE


def read(path: Path) -> Iterator[tuple[str, str]]:
    """Name and version of every line that is no comment. ValueError for one without, or for no line."""
    is_empty = True
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        found = _PIN.fullmatch(text)
        if found is None:
            raise ValueError(f"line {number} is {text!r}; write name==version")
        is_empty = False
        yield found[1], found[2]
    if is_empty:
        raise ValueError("it pins nothing; write name==version on a line")


def held(name: str, version: str) -> str | None:
    """What is wrong with a package, which is printed."""
    try:
        found = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return f"{name} is not installed; {version} is pinned"
    spec = importlib.util.find_spec(name.replace("-", "_"))
    place = Path(spec.origin).parent if spec and spec.origin else None
    print(f"{name} {found} in {place}")
    if found != version:
        return f"{name} is {found}; {version} is pinned"
    if place is None or not place.is_relative_to(sys.prefix):
        return f"{name} is loaded from {place}, not from this environment, {sys.prefix}"
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
