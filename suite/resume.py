"""Resume: what is left to do of an experiment that was interrupted or killed, from its run folder alone.

Refuses where what would be added could not be held against what is there: another configuration, code or
machine. Runs nothing itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from suite.environment import DeviceFacts, Environment, utc_text
from suite.errors import SuiteError
from suite.plan import (
    Options,
    Plan,
    PlannedCase,
    choose_device,
    find_files,
    load_scenarios,
    plan_scenarios,
    resolved,
)
from suite.precision import Precision
from suite.record import RunRecord, Status
from suite.scenario import Scenario, ScenarioKeys
from suite.schema import validated
from suite.store import (
    CONFIG,
    ENVIRONMENT,
    RUNS,
    SUMMARY,
    Config,
    LoadedRun,
    RunFolder,
    as_stored,
    load_run,
    read_archive_note,
    read_config,
)
from suite.yaml_source import Source, show

_NEW_RUN = "put it back as it was, or start a new run"

# What changes a run's times, numerics or order; of the packages those that do the work.
_FACTS = ("source_digest", "cpu_model", "num_cores", "num_physical_cores", "num_usable_cores", "os", "python")
_PACKAGES = ("torch", "triton", "transformers", "numpy", "nvtx", "safetensors")
_OF_DEVICE = ("kind", "name", "torch_version")
_UNTIMELY = ("CI", "LC_ALL")  # variables that change nothing of a run
_BYTES_OF = ("case_id", "workload_hash")
_OF_SCENARIOS = ("arms", "rounds", "seed")
"""Options that stand for a scenario's key: one that was not given was what the scenario says."""


@dataclass(frozen=True, slots=True)
class Given:
    """What a command line that resumes says of its own: it must be what the run began with.

    `names`: the keys of `options.document` that were given; no `paths`: those that the run was made of.
    """

    paths: tuple[Path, ...] = ()
    options: Options = field(default_factory=Options)
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Resumed:
    """`kept` need not be made again. `notes` say what was found and mended."""

    folder: RunFolder
    plan: Plan
    kept: tuple[RunRecord, ...]
    environment: Environment
    notes: tuple[str, ...]
    is_finished: bool

    def check_device(self, device: DeviceFacts) -> None:
        """SuiteError where the device that was opened is not the one the run began with.

        What else it says of itself follows from a case's own configuration, which is as it was; or it says
        how long compiling took.
        """
        before = self.environment.device
        if before is not None:
            old, new = ({name: getattr(one, name) for name in _OF_DEVICE} for one in (before, device))
            _refuse_change(self.folder.path, "device.", old, new)


def reopen(path: Path, given: Given, now: Environment) -> Resumed:
    """Open a run folder to finish it, whose writer the caller is. SuiteError names what has changed."""
    config = read_config(path)
    if config.invocation.get("command") == "cost":
        raise SuiteError(f"--resume {path}: it is the folder of a bill; start `suite cost` again")
    if config.invocation.get("interleaved") is not None:
        raise SuiteError(
            f"--resume {path}: it took turns with another commit, and a run made later takes none; start "
            "`suite run --baseline` again"
        )
    note = read_archive_note(path)
    if note is not None and note.one_in > 1:
        raise SuiteError(
            f"--resume {path}: it was unpacked from an archive that kept of each kind of step 1 in "
            f"{note.one_in:,}, and its runs cannot be gone on with; resume the folder the archive was made of"
        )
    options = _options(path, config.invocation)
    _check_given(path, given, config)
    _check_files(path, given.paths, options, config.scenarios)
    loaded = load_run(path)
    before = _environment(loaded, now)
    _check_environment(path, before, now)
    plan = plan_scenarios([_scenario(path, one) for one in config.scenarios], options)
    _check_cases(path, as_stored(plan.document()), config.cases)
    kept = _whole_runs(loaded)
    is_finished = _is_finished(loaded, plan, kept)
    if not is_finished:
        kept = _without_warmups(plan, kept)
    return Resumed(RunFolder(path), plan, kept, before, _repair(loaded, kept), is_finished)


def _options(path: Path, invocation: Mapping[str, Any]) -> Options:
    """The options the run began with."""
    percent, budget_s = (invocation.get(name) for name in ("until_precision_percent", "budget_s"))
    try:
        return Options(
            device=str(invocation["device"]),
            arms=tuple(invocation["arms"]) if invocation["arms"] else None,
            rounds=invocation["rounds"],
            overrides=tuple(invocation["set"]),
            seed=invocation["seed"],
            instrument=invocation["instrument"],
            sync_check=invocation["sync_check"],
            is_traced=bool(invocation.get("torch_trace")),
            has_window=bool(invocation.get("window")),
            until=None if percent is None else Precision(percent, float(invocation["budget_s"])),
            budget_s=None if percent is not None or budget_s is None else float(budget_s),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise SuiteError(
            f"{path / CONFIG}: invocation does not say what the run was started with ({error}); {_NEW_RUN}"
        ) from None


def _check_given(path: Path, given: Given, config: Config) -> None:
    now = as_stored(given.options.document(choose_device(given.options.device)))
    for name in given.names:
        before = config.invocation.get(name)
        if before is None and name in _OF_SCENARIOS:
            before = _of_all(config.scenarios, name)
        _refuse_change(path, "option ", {name: before}, {name: now[name]})


def _of_all(scenarios: Sequence[Mapping[str, Any]], key: str) -> object:
    """What all scenarios say of a key; None where they differ."""
    first, *others = [scenario.get(key) for scenario in scenarios] or [None]
    return first if all(other == first for other in others) else None


def _check_files(
    path: Path, paths: Sequence[Path], options: Options, stored: Sequence[Mapping[str, Any]]
) -> None:
    """Where the files of the scenarios are still there, they must say what they said."""
    files = [Path(str(scenario.get("path"))) for scenario in stored]
    found = find_files(paths) if paths else [file for file in files if file.is_file()]
    if not found:
        return
    now = {
        scenario.name: as_stored(resolved(scenario, options)) for scenario in load_scenarios(found, options)
    }
    before = {str(scenario.get("name")): scenario for scenario in stored}
    if paths and set(now) != set(before):
        raise SuiteError(
            f"--resume {path}: it is a run of {', '.join(before)}, and {', '.join(now)} was named; leave the "
            "scenario out"
        )
    for name, scenario in now.items():
        where = f"{name}: "
        _refuse_change(path, where, _without_path(before.get(name, {})), _without_path(scenario))


def _without_path(scenario: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in scenario.items() if key != "path"}


def _environment(loaded: LoadedRun, now: Environment) -> Environment:
    """The one the run began in; of a run that had made nothing yet this one will do."""
    try:
        return Environment.model_validate(loaded.environment)
    except ValueError:
        if not loaded.runs:
            return now
        raise SuiteError(
            f"{loaded.path / ENVIRONMENT} is missing or damaged: whether its runs were made on this machine, "
            f"by this code, cannot be told; start a new run"
        ) from None


def _check_environment(path: Path, before: Environment, now: Environment) -> None:
    old, new = ({name: getattr(one, name) for name in _FACTS} for one in (before, now))
    if before.source_digest is None:  # recorded before there was one: its commit stands for the code
        old, new = ({**facts, "source_digest": _commit(one)} for facts, one in ((old, before), (new, now)))
    _refuse_change(path, "", old, new)
    old_packages, new_packages = ({n: e.packages.get(n) for n in _PACKAGES} for e in (before, now))
    _refuse_change(path, "packages.", old_packages, new_packages)
    _refuse_change(path, "variables.", _variables(before), _variables(now))


def _commit(environment: Environment) -> str | None:
    return environment.checkout.commit if environment.checkout else None


def _variables(environment: Environment) -> dict[str, str]:
    return {name: value for name, value in environment.variables.items() if name not in _UNTIMELY}


def _scenario(path: Path, stored: Mapping[str, Any]) -> Scenario:
    """A scenario as it was resolved, though its file may be gone."""
    data = _without_nulls(_without_path(stored))
    arms = data.get("arms") or []
    if len(arms) == 1 and data.get("baseline") not in (None, *arms):
        del data["baseline"]  # a single arm of --arms is compared with none
    keys = validated(ScenarioKeys, Source(path / CONFIG, data))
    return Scenario(path=Path(str(stored.get("path"))), **dict(keys))


def _without_nulls(value: Any) -> Any:
    """A key that is null was not written."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _check_cases(path: Path, now: Mapping[str, Any], stored: Sequence[Mapping[str, Any]]) -> None:
    for before, case in zip(stored, now["cases"], strict=False):
        for name in _BYTES_OF:
            if before.get(name) != case[name]:
                raise SuiteError(
                    f"--resume {path}: {case['label']}: {name} is {case[name]}, and was {before.get(name)} "
                    f"when the run began: a file its requests are made of has changed; {_NEW_RUN}"
                )
    _refuse_change(path, "cases", [dict(case) for case in stored], now["cases"])


def _refuse_change(path: Path, where: str, before: object, now: object) -> None:
    for key, old, new in differences(before, now):
        raise SuiteError(
            f"--resume {path}: {where}{key.lstrip('.')} is {show(new)}, and was {show(old)} when the run "
            f"began; {_NEW_RUN}"
        )


def differences(before: object, now: object, key: str = "") -> Iterator[tuple[str, object, object]]:
    """Every dotted key whose value differs, with both values; a key that is not there has None."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for name in dict.fromkeys((*before, *now)):
            yield from differences(before.get(name), now.get(name), f"{key}.{name}")
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for index, (old, new) in enumerate(zip(before, now, strict=True)):
            yield from differences(old, new, f"{key}[{index}]")
    elif before != now:
        yield key, before, now


def _whole_runs(loaded: LoadedRun) -> tuple[RunRecord, ...]:
    """Those that came to an end, be it a failure, each once and with all its tables."""
    whole = {run.run_id: run for run in reversed(loaded.whole_runs) if run.status is not Status.INTERRUPTED}
    return tuple(run for run in loaded.runs if whole.get(run.run_id) is run)


def _is_finished(loaded: LoadedRun, plan: Plan, whole: Sequence[RunRecord]) -> bool:
    """Whether it came to its end, and all it made is still there."""
    has_ended = loaded.summary is not None and not loaded.is_interrupted
    has_left = any(case.until is None and _has_left(case, whole) for case in plan.cases)
    return has_ended and len(whole) == len(loaded.runs) and not has_left


def _has_left(case: PlannedCase, whole: Sequence[RunRecord]) -> bool:
    known = {run.run_id for run in whole}
    return any(run.run_id not in known for run in case.runs())


def _without_warmups(plan: Plan, whole: Sequence[RunRecord]) -> tuple[RunRecord, ...]:
    """The runs less the warm-ups of cases that are gone on with: their worker is a new one, and cold."""
    open_cases = {
        (case.case.scenario.name, case.case.case_id)
        for case in plan.cases
        if case.until is not None or _has_left(case, whole)
    }
    return tuple(run for run in whole if not run.is_warmup or (run.scenario, run.case_id) not in open_cases)


def _repair(loaded: LoadedRun, kept: Sequence[RunRecord]) -> tuple[str, ...]:
    """Leave these runs in the folder and nothing of any other; what was found damaged, in words.

    What of runs.jsonl cannot be read is kept beside it, but for a last line that a kill cut short.
    """
    folder = RunFolder(loaded.path)
    of_runs = [text for text in loaded.warnings if text.startswith(f"{RUNS}, ")]
    notes = [f"{text}; that run is made again" for text in of_runs]
    notes += [f"{fault}; its run is made again" for fault in loaded.damaged.values()]
    if any("cut short" not in text for text in of_runs):
        notes.append(f"{RUNS} as it was is kept as {folder.keep_damaged_runs().name}")
    if of_runs or len(kept) < len(loaded.runs):
        folder.rewrite_runs(kept)
    folder.clear_leftovers({run.run_id for run in kept})
    return tuple(notes)


def begin_again(resumed: Resumed, now: datetime | None = None) -> None:
    """Write down that it is gone on with; until it ends its summary is no longer true."""
    moment = utc_text(now or datetime.now(UTC))
    environment = resumed.environment
    known = environment.model_copy(update={"resumed_utc": (*environment.resumed_utc, moment)})
    resumed.folder.write_environment(known.model_dump(mode="json"))
    resumed.folder.remove(SUMMARY)
