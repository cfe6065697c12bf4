"""Ceilings in the user's cache: whole or not at all, and never in the way."""

from __future__ import annotations

import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest
from micro_fabrication import make_ceilings

from runner.core import FloatType
from runner.models import TINY_GEMMA3_VL, TINY_QWEN3
from suite import ceiling_store
from suite.ceiling_store import cache_folder, cache_path, fingerprint, load, save
from suite.ceilings import Ceilings

KEY = "0123abc"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "stepcost" / "ceilings"


def test_what_is_saved_is_loaded_again(cache: Path) -> None:
    assert load(KEY) == (None, None)
    assert save(KEY, make_ceilings()) is None
    assert load(KEY) == (make_ceilings(), None)
    assert [file.name for file in cache.iterdir()] == [f"{KEY}.json"]


def test_the_file_is_strict_json(cache: Path) -> None:
    save(KEY, make_ceilings())

    def refuse(word: str) -> None:
        raise AssertionError(word)

    json.loads((cache / f"{KEY}.json").read_text(encoding="utf-8"), parse_constant=refuse)


def _without(name: str, **changes: Any) -> str:
    values = make_ceilings().model_dump(mode="json") | changes
    del values[name]
    return json.dumps(values)


def _with(**changes: Any) -> str:
    return json.dumps(make_ceilings().model_dump(mode="json") | changes)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "EOF"),
        (b"{", "EOF"),
        (b"[1, 2]", "object"),
        (b"\xff\xfe\x00", "utf-8"),
        (_with().encode()[:-40], "EOF"),
        (_without("matmul").encode(), "matmul: Field required"),
        (_with(event_floor=None).encode(), "event_floor"),
        (_with(num_threads="1").encode(), "num_threads"),
        (_with(handoff={**make_ceilings().handoff.model_dump(), "best_ns": float("nan")}).encode(), "finite"),
        (_with(surprise=1).encode(), "surprise"),
        (_with(schema_version=99).encode(), "schema version 99"),
        (_without("dtype", schema_version=2).encode(), "schema version 2"),
        (_with(dtype="float8").encode(), "dtype"),
    ],
)
def test_a_damaged_file_is_measured_anew_and_told(content: bytes, why: str, cache: Path) -> None:
    cache.mkdir(parents=True)
    (cache / f"{KEY}.json").write_bytes(content)
    kept = load(KEY)
    assert kept.ceilings is None
    assert kept.note is not None
    assert str(cache / f"{KEY}.json") in kept.note
    assert why in kept.note
    assert kept.note.endswith("measured anew")
    save(KEY, make_ceilings())
    assert load(KEY).ceilings == make_ceilings()


def test_a_folder_in_the_files_place_is_told(cache: Path) -> None:
    (cache / f"{KEY}.json").mkdir(parents=True)
    assert "cannot be read" in (load(KEY).note or "")
    note = save(KEY, make_ceilings())
    assert note is not None and "are not kept" in note
    assert list(cache.iterdir()) == [cache / f"{KEY}.json"]  # no temporary file is left


def test_a_cache_that_cannot_be_made_costs_a_note_only(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    note = save(KEY, make_ceilings())
    assert note is not None and "cannot be written" in note


def test_where_there_is_no_home_nothing_is_kept_and_that_is_told(monkeypatch: Any) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", _no_home)
    assert "Set XDG_CACHE_HOME" in (load(KEY).note or "")
    assert "Set XDG_CACHE_HOME" in (save(KEY, make_ceilings()) or "")


def _no_home() -> Path:
    raise RuntimeError("Could not determine home directory.")


def test_a_relative_xdg_cache_home_is_no_cache_home(monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    assert cache_folder() == Path.home() / ".cache/stepcost/ceilings"


def test_the_fingerprint_tells_apart_what_changes_a_ceiling(monkeypatch: Any) -> None:
    def key(
        device: str = "process",
        name: str = "cpu",
        threads: int = 1,
        model: Any = TINY_QWEN3,
        dtype: FloatType = "float32",
    ) -> str:
        return fingerprint(device, name, threads, model, dtype)

    keys = [key(), key("cuda"), key(name="H"), key(threads=2), key(dtype="bfloat16"), key(dtype="float16")]
    wide = {**TINY_QWEN3.hf_config, "intermediate_size": 640}
    keys.append(key(model=_replaced(TINY_QWEN3, hf_config=wide)))
    monkeypatch.setattr(ceiling_store, "cpu_model", lambda: "another")
    keys.append(key())
    monkeypatch.setattr(ceiling_store, "torch_version", lambda: "9")
    keys.append(key())
    assert len(set(keys)) == len(keys)
    assert key() == key()
    assert key(model=TINY_GEMMA3_VL) == key()  # the same shapes have the same ceilings


def _replaced(spec: Any, **changes: Any) -> Any:
    from dataclasses import replace

    return replace(spec, **changes)


def _write_often(worker: int, count: int) -> None:
    for index in range(count):
        assert save(KEY, make_ceilings(num_threads=worker * count + index)) is None


def test_who_writes_at_the_same_time_leaves_a_whole_file(cache: Path) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_often, args=(worker, 40)) for worker in range(3)]
    for writer in writers:
        writer.start()
    seen: list[Ceilings] = []
    while any(writer.is_alive() for writer in writers):
        kept = load(KEY)
        assert kept.note is None, kept.note
        seen += [kept.ceilings] if kept.ceilings else []
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert load(KEY).ceilings is not None
    assert os.listdir(cache) == [cache_path(KEY).name]  # noqa: PTH208
    assert seen
