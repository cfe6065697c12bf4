"""`suite micro` as a user meets it: what it prints, keeps and refuses, and what is left when it fails."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from micro_fabrication import make_ceilings
from typer.testing import CliRunner

from runner.models import MODELS
from suite.ceiling_store import fingerprint, load, save
from suite.cli import app
from suite.errors import SuiteError
from suite.micro import session
from suite.micro.catalogue import Row
from suite.micro.protocol import Message, Order
from suite.micro.session import measure, measured_ceilings
from suite.micro.span_cost import SpansPerStep, instrument_share

ROOT = Path(__file__).resolve().parents[3]
ORDER = Order(device="process", model="tiny-qwen3", num_threads=1, chosen=("route",))
ROW = Row(
    name="route.slice",
    size="64 ids",
    best_ns=2900.0,
    median_ns=3000.0,
    low_ns=None,
    high_ns=None,
    interval_reason="3 samples; an interval needs 6",
    n=3,
    calls=5,
    enqueue_ns=None,
    launch_bound=False,
    memory="warm",
    rate=0.5,
    unit="GB/s",
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def invoke(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["micro", *map(str, arguments)])


def saying(*messages: Message, then: str = "") -> Sequence[str]:
    """A measuring process that says these things and no more."""
    lines = "".join(message.model_dump_json() + "\n" for message in messages)
    return (
        sys.executable,
        "-c",
        f"import os, sys, time; sys.stdout.write({lines!r}); sys.stdout.flush(); {then}",
    )


DONE = Message(kind="done")
MEASURED = Message(kind="row", row=ROW)


def strict(text: str) -> Any:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


# ---- one real run


def test_a_real_run_measures_prints_keeps_and_loads_no_torch_in_the_command(tmp_path: Path) -> None:
    """Ceilings are measured once, and found afterwards."""
    folder = tmp_path / "run"
    script = (
        "import sys; from suite.cli import main\n"
        "try: main()\n"
        "finally: assert 'torch' not in sys.modules, 'the command line loaded torch'"
    )
    command = [sys.executable, "-c", script, "micro", "--only", "route.slice,span.read,ceilings", "--json"]
    done = subprocess.run(
        [*command, "--output", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = strict(done.stdout)
    assert [row["name"] for row in found["rows"]] == ["empty loop", *["route.slice"] * 3, "span.read"]
    assert found["failure"] is None and not found["is_cached"]
    assert found["ceilings"]["model"] == "tiny-qwen3"
    assert strict((folder / "micro.json").read_text(encoding="utf-8")) == found
    kept = load(fingerprint("process", "cpu", 1, MODELS["tiny-qwen3"]))
    assert kept.ceilings is not None
    assert kept.ceilings.model_dump(mode="json") == found["ceilings"]
    assert measured_ceilings("process", "tiny-qwen3") == kept.ceilings


# ---- mistakes


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--only", "merge.wher"), ("--only merge.wher", "did you mean merge.where?", "hash.image")),
        (("--only", ""), ("--only ''", "must be one of")),
        (("--model", "tiny-qwen"), ("no model 'tiny-qwen'", "tiny-qwen3")),
        (("--device", "gpu"), ("--device gpu", "process")),
        (("--device", "lazy"), ("--device lazy", "never for timing")),
        (("--device", "shuffle:3"), ("--device shuffle:3", "never for timing")),
        (("--threads", "0"), ("--threads 0", "from 1 to")),
        (("--threads", "-1"), ("--threads -1", "from 1 to")),
        (("--threads", "9999"), ("--threads 9999", "from 1 to")),
        (("--threads", "two"), ("two", "no whole number")),
    ],
)
def test_a_mistake_is_one_clear_error_and_nothing_is_measured(
    arguments: tuple[str, ...], words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "measure", None)
    result = invoke(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == "" and "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr


def test_a_folder_that_cannot_be_made_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "measure", None)
    (tmp_path / "file").write_text("")
    result = invoke("--output", tmp_path / "file" / "run")
    assert result.exit_code == 2
    assert f"{tmp_path / 'file'} is not a directory" in result.stderr
    assert "Traceback" not in result.stderr


def test_what_was_measured_is_printed_though_the_disk_refuses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "micro.json").mkdir()
    monkeypatch.setattr(session, "measure", lambda order, tell: measure(order, tell, saying(MEASURED, DONE)))
    result = invoke("--output", tmp_path, "--only", "route")
    assert result.exit_code == 2
    assert "route.slice" in result.stdout and "micro.json" in result.stderr


# ---- what is left when it fails


def test_rows_before_a_crash_are_kept_and_its_last_words_told() -> None:
    found = measure(ORDER, command=saying(MEASURED, then="sys.exit('out of luck')"))
    assert [row.name for row in found.rows] == ["route.slice"]
    assert found.failure is not None
    assert "ended early (exit code 1)" in found.failure and "out of luck" in found.failure


def test_a_signal_is_named() -> None:
    found = measure(ORDER, command=saying(MEASURED, then="os.kill(os.getpid(), 9)"))
    assert found.failure is not None and "signal 9" in found.failure


def test_a_process_that_says_nothing_more_is_ended() -> None:
    start = time.monotonic()
    found = measure(ORDER, command=saying(MEASURED, then="time.sleep(600)"), idle_limit_s=1)
    assert found.failure == "the measuring process said nothing for 1 s"
    assert len(found.rows) == 1
    assert time.monotonic() - start < 10


def test_an_error_of_the_process_is_told() -> None:
    found = measure(ORDER, command=saying(MEASURED, Message(kind="failed", text="ValueError: no")))
    assert (found.failure, len(found.rows)) == ("ValueError: no", 1)


def test_what_is_no_message_is_a_failure() -> None:
    found = measure(ORDER, command=saying(MEASURED, then="print('hello')"))
    assert found.failure is not None and len(found.rows) == 1


def test_a_failure_leaves_exit_code_one_and_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = saying(MEASURED, then="sys.exit('bad memory')")
    monkeypatch.setattr(session, "measure", lambda order, tell: measure(order, tell, command))
    result = invoke("--only", "route", "--output", tmp_path / "run")
    assert result.exit_code == 1
    assert "route.slice" in result.stdout and "n/a: 3 samples" in result.stdout
    assert "bad memory" in result.stderr
    written = strict((tmp_path / "run" / "micro.json").read_text(encoding="utf-8"))
    assert len(written["rows"]) == 1 and "bad memory" in written["failure"]


def test_an_interrupted_measurement_keeps_what_it_has(tmp_path: Path) -> None:
    """As a real command, with Ctrl-C at the first word of progress after a row."""
    talk = saying(MEASURED, Message(kind="progress", text="on and on"), then="time.sleep(600)")
    script = (
        "import os, signal; from suite.cli import main; from suite.micro import session\n"
        f"measure, command = session.measure, {talk!r}\n"
        "def interrupt(text): os.kill(os.getpid(), signal.SIGINT)\n"
        "session.measure = lambda order, tell: measure(order, interrupt, command)\n"
        "main()"
    )
    command = [sys.executable, "-c", script, "micro", "--only", "route", "-o", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 130, done.stderr
    assert "route.slice" in done.stdout and "Traceback" not in done.stderr
    assert strict((tmp_path / "micro.json").read_text(encoding="utf-8"))["failure"] == "interrupted"


def test_notes_are_printed_and_ceilings_marked_as_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = (
        Message(kind="note", text="a file is damaged (EOF); measured anew"),
        Message(kind="ceilings", ceilings=make_ceilings(load_average=7.0), is_cached=True),
        DONE,
    )
    monkeypatch.setattr(session, "measure", lambda order, tell: measure(order, tell, saying(*messages)))
    result = invoke("--only", "ceilings")
    assert result.exit_code == 0
    assert "note: a file is damaged" in result.stdout
    assert "kept from 2026-01-01T00:00:00Z" in result.stdout
    assert "note: the ceilings of process were measured on a busy machine (load 7.0 on 2" in result.stdout


def test_kept_ceilings_are_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    save(fingerprint("process", "cpu", 1, MODELS["tiny-qwen3"]), make_ceilings())
    monkeypatch.setattr(session, "measure", None)
    assert measured_ceilings("process", "tiny-qwen3") == make_ceilings()


def test_ceilings_that_cannot_be_measured_are_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    command = saying(Message(kind="failed", text="no memory"))
    monkeypatch.setattr(session, "measure", lambda order: measure(order, command=command))
    with pytest.raises(SuiteError, match="ceilings of process could not be measured: no memory"):
        measured_ceilings("process", "tiny-qwen3")


def test_the_cost_of_spans_is_read_from_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def row(name: str, level: str, median_ns: float) -> Message:
        changes = {"name": name, "size": level, "median_ns": median_ns}
        return Message(kind="row", row=ROW.model_copy(update=changes))

    messages = [row("span.host", level, 400.0) for level in ("nvtx", "host", "events")]
    messages += [row("span.command", level, 600.0) for level in ("nvtx", "host", "events")]
    messages += [row("span.read", "events", 800.0), DONE]
    monkeypatch.setattr(session, "measure", lambda order: measure(order, command=saying(*messages)))
    costs = session.measured_span_costs()
    assert [*costs] == ["nvtx", "host", "events"]
    counted = SpansPerStep(host=10, command=5)
    assert instrument_share(costs["nvtx"], counted, 1_000_000) == pytest.approx(0.007)
    assert instrument_share(costs["events"], counted, 1_000_000) == pytest.approx(0.011)
