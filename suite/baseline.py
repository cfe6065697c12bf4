"""The baseline of `run --baseline GITREF`: that commit's files in a temporary folder, and a worker of them.

Only git is asked, and the worker's own protocol: whether it understands this program is known before a run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from suite.child_environment import child_environment
from suite.environment import Checkout, find_checkout
from suite.errors import SuiteError
from suite.protocol import Command, Reply
from suite.scenario import Scenario, ScenarioKeys
from suite.schema import dotted_keys, listed

_TIMEOUT_S = 120.0
_MAX_TAIL = 500
_ARCHIVE = ".stepcost-baseline.tar"

# Run with the baseline's files before all others, in the worker and in whatever it starts.
_IN_BASELINE = (
    "import os, sys; root = {root!r}; sys.path.insert(0, root); "
    "os.environ['PYTHONPATH'] = os.pathsep.join([root, os.environ.get('PYTHONPATH', '')]); "
)
_WORK = "from suite.worker import main; main()"
_PROBE = (
    "import json; from pydantic import TypeAdapter; import suite.protocol as protocol; "
    "from suite.schema import dotted_keys; from suite.scenario import ScenarioKeys; "
    "print(json.dumps([TypeAdapter(protocol.Command).json_schema(), "
    "TypeAdapter(protocol.Reply).json_schema(), dotted_keys(ScenarioKeys)]))"
)


@dataclass(frozen=True, slots=True)
class Baseline:
    """`root` holds the files of `commit`, which `ref` names. `own`: the checkout that is compared with it."""

    ref: str
    commit: str
    root: Path
    own: Checkout

    @property
    def worker_command(self) -> tuple[str, ...]:
        """Starts a worker of its files, as WORKER_COMMAND does one of ours."""
        return (sys.executable, "-P", "-c", _IN_BASELINE.format(root=str(self.root)) + _WORK)

    @property
    def title(self) -> str:
        return f"{self.ref} (commit {self.commit[:12]})"


@dataclass(frozen=True, slots=True)
class _Message:
    """The keys of one message of a protocol, and those it must have."""

    keys: frozenset[str]
    required: frozenset[str]


def own_root() -> Path:
    """The folder that our packages lie in."""
    return Path(__file__).resolve().parent.parent


def find_commit(ref: str, root: Path) -> tuple[str, Checkout]:
    """The commit that a ref names in the checkout at `root`, and the state of that. SuiteError for none."""
    own = find_checkout(root)
    if own is None:
        raise SuiteError(
            f"--baseline {ref}: the program's files in {root} are no git checkout (or there is no git): "
            "clone the repository and run from the clone"
        )
    commit = _git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
    if commit.returncode or not ref:
        raise SuiteError(
            f"--baseline {ref!r}: git knows no such commit in {root}; give a branch, a tag or a commit "
            "(in a shallow clone, fetch it first)"
        )
    return commit.stdout.decode().strip(), own


@contextmanager
def checked_out(ref: str, used_keys: Collection[str], root: Path | None = None) -> Iterator[Baseline]:
    """The files of a ref in a folder that is gone afterwards. SuiteError where its worker is another kind.

    `used_keys`: what the scenarios set to anything but its default; it must know those.
    """
    root = root or own_root()
    commit, own = find_commit(ref, root)
    with tempfile.TemporaryDirectory(prefix="stepcost-baseline-") as folder:
        _unpack(root, commit, Path(folder), ref)
        found = Baseline(ref, commit, Path(folder), own)
        _check_protocol(found, used_keys)
        yield found


def _unpack(root: Path, commit: str, folder: Path, ref: str) -> None:
    archive = folder / _ARCHIVE
    made = _git(root, "archive", "--format=tar", f"--output={archive}", commit)
    if made.returncode:
        raise SuiteError(f"--baseline {ref}: git archive failed: {_tail(made.stderr)}")
    unpacked = _run(["tar", "-x", "-f", str(archive), "-C", str(folder)], os.environ)
    if unpacked.returncode:
        raise SuiteError(f"--baseline {ref}: its files cannot be unpacked: {_tail(unpacked.stderr)}")
    archive.unlink()


def _check_protocol(baseline: Baseline, used_keys: Collection[str]) -> None:
    code = _IN_BASELINE.format(root=str(baseline.root)) + _PROBE
    asked = _run([sys.executable, "-P", "-c", code], child_environment())
    if asked.returncode:
        raise SuiteError(
            f"--baseline {baseline.title}: its worker cannot be asked what it understands: "
            f"{_tail(asked.stderr)}; choose a newer commit"
        )
    command, reply, keys = json.loads(asked.stdout)
    faults = protocol_faults(
        (TypeAdapter(Command).json_schema(), TypeAdapter(Reply).json_schema(), dotted_keys(ScenarioKeys)),
        (command, reply, keys),
        used_keys,
    )
    if faults:
        raise SuiteError(
            f"--baseline {baseline.title}: its worker speaks another protocol: {'; '.join(faults)}; choose a "
            "newer commit, or run it by itself and use compare"
        )


Protocol = tuple[Mapping[str, Any], Mapping[str, Any], list[str]]
"""JSON schema of the commands, that of the replies, and the keys of a scenario."""


def protocol_faults(own: Protocol, other: Protocol, used_keys: Collection[str]) -> list[str]:
    """Why the other's worker could not take our commands, or we not its replies; none where both can."""
    return [
        *_misfits(_messages(own[0]), _messages(other[0]), "it does not know", "it needs"),
        *_misfits(_messages(other[1]), _messages(own[1]), "it also sends", "it does not send"),
        *_key_faults(own[2], other[2], used_keys),
    ]


def used_keys(scenarios: Iterable[Scenario]) -> set[str]:
    """The keys, dotted, that a scenario has anything but the default of."""
    return {key for one in scenarios for key in _dotted(one.model_dump(mode="json", exclude_defaults=True))}


def _dotted(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in values.items():
        yield f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{prefix}{name}.")


def _misfits(
    sent: Mapping[str, _Message], taken: Mapping[str, _Message], too_many: str, too_few: str
) -> Iterator[str]:
    """What is sent and not known to who takes it, and what that one needs and nobody sends."""
    for name in sorted(sent.keys() | taken.keys()):
        nothing = _Message(frozenset(), frozenset())
        one, other = sent.get(name, nothing), taken.get(name, nothing)
        for told, keys in ((too_many, one.keys - other.keys), (too_few, other.required - one.keys)):
            if keys:
                yield f"{told} {listed(f'{name}.{key}' for key in sorted(keys))}"


def _messages(schema: Mapping[str, Any]) -> dict[str, _Message]:
    return {
        name: _Message(frozenset(of.get("properties", {})), frozenset(of.get("required", ())))
        for name, of in schema.get("$defs", {}).items()
    }


def _key_faults(own: list[str], other: list[str], used_keys: Collection[str]) -> Iterator[str]:
    """A case travels as it is: a key the other lacks it passes over, one that it also has is missing."""
    lacking = [key for key in own if key not in other and key in used_keys]
    also = [key for key in other if key not in own]
    for told, keys in (("its scenarios lack", lacking), ("its scenarios also have", also)):
        if keys:
            yield f"{told} {listed(keys)}"


def _git(root: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    return _run(["git", "-C", str(root), *arguments], environment)


def _run(command: list[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[bytes]:
    """A program's end, whatever it is. SuiteError where it cannot be started or does not end."""
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except OSError as error:
        raise SuiteError(f"{command[0]} cannot be started: {error.strerror or error}") from None
    except subprocess.TimeoutExpired:
        raise SuiteError(f"{command[0]} took longer than {_TIMEOUT_S:.0f} s") from None


def _tail(content: bytes) -> str:
    lines = content.decode("utf-8", "replace").strip().splitlines()
    return lines[-1][-_MAX_TAIL:] if lines else "it said nothing"
