"""Where and with what a run was made: machine, versions, checkout, command line.

Names no user and no host: a run folder may be sent to anyone.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict

from runner.core import usable_cores

SCHEMA_VERSION = 1

_PACKAGES = (
    "stepcost",
    "torch",
    "triton",
    "transformers",
    "numpy",
    "pandas",
    "pyarrow",
    "plotly",
    "nvtx",
    "nvidia-ml-py",
    "pydantic",
    "ruamel.yaml",
    "rich",
    "typer",
    "scipy",
    "safetensors",
    "psutil",
    "jinja2",
)

# What changes a run's times, its numerics or its order, and holds no path of the user's.
_VARIABLES = (
    "CI",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "GOMP_CPU_AFFINITY",
    "GOMP_SPINCOUNT",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
    "LC_ALL",
    "MALLOC_ARENA_MAX",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "MALLOC_TRIM_THRESHOLD_",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OMP_PROC_BIND",
    "OMP_WAIT_POLICY",
    "OPENBLAS_NUM_THREADS",
    "PYTHONHASHSEED",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
)

_GIT_TIMEOUT_S = 10
_ROOT = Path(__file__).resolve().parent.parent
_CODE = ("runner", "suite")


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Checkout(_Frozen):
    """The git state of the code that ran. `commit` is None before the first commit."""

    commit: str | None
    is_dirty: bool


class CompiledFacts(_Frozen):
    """What torch.compile made of the forward before the first run, and how long that took."""

    num_graphs: int
    duration_s: float


class DeviceFacts(_Frozen):
    """What the device said of itself when it was opened."""

    kind: str
    name: str
    num_threads: int
    torch_version: str
    attention: str = ""
    graph_sizes: tuple[int, ...] = ()
    fuses_routes: bool = False
    compiled: CompiledFacts | None = None  # None: torch.compile is off


class Environment(_Frozen):
    schema_version: int = SCHEMA_VERSION
    started_utc: str
    command_line: str
    cpu_model: str
    num_cores: int  # logical
    num_physical_cores: int | None
    num_usable_cores: int  # that this process may run on
    memory_bytes: int
    available_memory_bytes: int
    os: str
    python: str
    packages: Mapping[str, str | None]  # None: not installed
    checkout: Checkout | None  # None: the code lies in no git checkout
    source_digest: str | None = None  # of the code itself; None: recorded before there was one
    variables: Mapping[str, str]  # those of a fixed list that are set
    device: DeviceFacts | None = None  # None until a device was opened
    resumed_utc: tuple[str, ...] = ()  # when an interrupted experiment was gone on with


def capture(arguments: Sequence[str], now: datetime | None = None) -> Environment:
    """The environment of this process; `arguments` are those of the command line."""
    memory = psutil.virtual_memory()
    return Environment(
        started_utc=utc_text(now or datetime.now(UTC)),
        command_line=shlex.join(["python", "-m", "suite", *arguments]),
        cpu_model=cpu_model(),
        num_cores=os.cpu_count() or 1,
        num_physical_cores=psutil.cpu_count(logical=False),
        num_usable_cores=usable_cores(),
        memory_bytes=memory.total,
        available_memory_bytes=memory.available,
        os=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=f"{platform.python_implementation()} {platform.python_version()}",
        packages={name: _version(name) for name in _PACKAGES},
        checkout=find_checkout(_ROOT),
        source_digest=source_digest(_ROOT),
        variables={name: os.environ[name] for name in _VARIABLES if name in os.environ},
    )


def utc_text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine() or "unknown"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def source_digest(root: Path) -> str:
    """A digest of our packages' sources, equal where the code is, whatever git says of it."""
    digest = hashlib.sha256()
    for package in _CODE:
        for file in sorted((root / package).rglob("*.py")):
            digest.update(f"{file.relative_to(root).as_posix()}\0".encode())
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]


def find_checkout(root: Path) -> Checkout | None:
    """The git state of `root`, if it is a checkout's top; a repository around it is not ours."""
    top = _git(root, "rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != root:
        return None
    status = _git(root, "status", "--porcelain")
    commit = _git(root, "rev-parse", "--verify", "--quiet", "HEAD")
    return Checkout(commit=commit or None, is_dirty=status != "")


def _git(root: Path, *arguments: str) -> str | None:
    """What git prints, or None where there is no git or it refuses."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            timeout=_GIT_TIMEOUT_S,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
