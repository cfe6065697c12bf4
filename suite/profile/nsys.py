"""Nsight Systems as a program: where it is, what it is told, and its files made into one that can be read."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from suite.errors import SuiteError
from suite.profile.capture import WINDOW
from suite.profile.versions import lost_with, numbers

PROGRAM = "nsys"
IMPORTER = "QdstrmImporter"
STREAM = ".qdstrm"
SUFFIXES = (".nsys-rep", ".qdrep", STREAM)

_TIMEOUT_S = 600.0
_MAX_TAIL = 500
_VERSION = re.compile(r"version (\d+(?:\.\d+)*)")


@dataclass(frozen=True, slots=True)
class Nsys:
    path: Path
    version: tuple[int, ...]

    @property
    def version_text(self) -> str:
        return ".".join(map(str, self.version)) or "(of an unknown version)"


def find_nsys() -> Nsys:
    """The nsys on the path. SuiteError where there is none, or it cannot be run."""
    found = shutil.which(PROGRAM)
    if found is None:
        raise SuiteError(
            "nsys is not on the path: install Nsight Systems (Debian: nsight-systems, section non-free), "
            "or export the report where it is: nsys export --type sqlite REPORT, and give the .sqlite"
        )
    text = _run([found, "--version"], "asking for its version")
    number = _VERSION.search(text)
    return Nsys(Path(found), numbers(number.group(1)) if number else ())


def losing_versions(nsys: Nsys) -> str | None:
    """Why the installed nvtx's ranges would all be lost under this nsys; None where they are kept."""
    try:
        nvtx = version("nvtx")
    except PackageNotFoundError:
        return "nvtx is not installed: there will be no ranges; pip install nvtx==0.2.11"
    return lost_with(nvtx, nsys.version_text)


def profile_command(
    nsys: Nsys, output: Path, program: Sequence[str], has_gpu: bool, is_window: bool
) -> list[str]:
    """The program under nsys. A program goes on when its window has ended: nsys would end it by default."""
    command = [str(nsys.path), "profile", "-t", "cuda,nvtx" if has_gpu else "nvtx"]
    command += ["-s", "none", "--cpuctxsw=none", "-f", "true", "-o", str(output)]
    if has_gpu:
        command.append("--cuda-graph-trace=node")
    if is_window:
        by_range = ["-c", "nvtx", "-p", f"{WINDOW}@stepcost"]
        command += ["-c", "cudaProfilerApi"] if has_gpu else by_range
        command += ["--capture-range-end=stop", "--kill=none"]
    return [*command, *program]


def profile_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """For the program: names that are no registered strings may open the window as well."""
    return {**environment, "NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}


def written_report(output: Path) -> Path | None:
    """What nsys made of `-o output`: a report, or the stream of one that it could not finish."""
    for suffix in SUFFIXES:
        path = output.with_name(output.name + suffix)
        if path.is_file():
            return path
    return None


def to_sqlite(report: Path, folder: Path) -> Path:
    """The SQLite export of a report or of its stream, made in `folder`."""
    nsys = find_nsys()
    if report.suffix == STREAM:
        report = _complete(nsys, report, folder)
    target = folder / f"{report.stem}.sqlite"
    arguments = ["export", "--type", "sqlite", "-f", "true", "-o", str(target), str(report)]
    _run([str(nsys.path), *arguments], f"exporting {report}")
    if not target.is_file():
        raise SuiteError(f"{report}: nsys {nsys.version_text} exported nothing; is it a report of nsys's?")
    return target


def _complete(nsys: Nsys, stream: Path, folder: Path) -> Path:
    """The report of a stream that nsys left unfinished, as Debian's does."""
    importer = find_importer(nsys.path)
    if importer is None:
        raise SuiteError(
            f"{stream} is a stream that {IMPORTER} must make a report of, and there is none beside "
            f"{nsys.path}; import it where Nsight Systems is installed whole, and give the .nsys-rep"
        )
    report = folder / f"{stream.stem}.nsys-rep"
    report.unlink(missing_ok=True)
    libraries = os.pathsep.join(filter(None, [str(importer.parent), os.environ.get("LD_LIBRARY_PATH")]))
    environment = {**os.environ, "LD_LIBRARY_PATH": libraries}
    _run([str(importer), "-i", str(stream), "-o", str(report)], f"importing {stream}", environment)
    if not report.is_file():
        raise SuiteError(f"{stream}: {importer} made no report of it; is it a stream of this nsys's?")
    return report


def find_importer(nsys: Path) -> Path | None:
    """The importer of the same installation: in `host-*` of a folder above nsys, links followed or not."""
    above = dict.fromkeys((*nsys.parents, *nsys.resolve().parents))
    for folder in above:
        for pattern in (f"host-*/{IMPORTER}", f"nsight-systems/host-*/{IMPORTER}"):
            for found in sorted(folder.glob(pattern)):
                return found
    return None


def _run(command: Sequence[str], doing: str, environment: Mapping[str, str] | None = None) -> str:
    """What it printed. SuiteError where it cannot be started, fails, or does not end."""
    try:
        process = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except OSError as error:
        raise SuiteError(f"{command[0]} cannot be started: {error.strerror or error}") from None
    except subprocess.TimeoutExpired:
        raise SuiteError(f"{doing} took longer than {_TIMEOUT_S:.0f} s") from None
    text = process.stdout.decode("utf-8", "replace")
    if process.returncode:
        tail = tail_of(text)
        raise SuiteError(f"{doing}: {command[0]} ended with exit code {process.returncode}: {tail}")
    return text


def tail_of(text: str) -> str:
    """The end of what a program printed, its bars of progress taken out."""
    lines = [line.strip() for line in re.split(r"[\r\n]+", text)]
    told = [line for line in lines if line and "%" not in line]
    return " | ".join(told)[-_MAX_TAIL:] or "it said nothing"
