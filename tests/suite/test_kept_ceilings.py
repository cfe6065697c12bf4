"""Which of the kept ceilings a case gets, by the type that its model computes in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import pytest
from built_cases import built_case
from ceiling_fabrication import ceilings

from runner.core import FloatType
from suite.ceiling_store import cache_path, fingerprint, save
from suite.kept_ceilings import CaseCeilings, from_document, of_cases, to_document
from suite.plan import PlannedCase
from suite.scenario import Case


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def key_of(case: Case, dtype: FloatType) -> str:
    return fingerprint("process", "cpu", case.runner_config.num_threads, case.model_spec, dtype)


def found_for(case: Case) -> CaseCeilings | None:
    planned = PlannedCase(case, (), 1, 0, "", 4, ())
    return of_cases([planned], "process").get(case.case_id)


@pytest.mark.parametrize("dtype", get_args(FloatType))
def test_a_case_gets_the_ceilings_of_its_own_type(dtype: FloatType, tmp_path: Path) -> None:
    case = built_case(tmp_path, f"runner.dtype={dtype}")
    for known in get_args(FloatType):
        save(key_of(case, known), ceilings(dtype=known))
    found = found_for(case)
    assert found is not None
    assert (found.model, found.ceilings.dtype) == (case.model_spec.name, dtype)


@pytest.mark.parametrize(
    ("kept", "dtype", "given"),
    [
        ([], "bfloat16", None),
        (["float32"], "bfloat16", "float32"),
        (["float16"], "bfloat16", "float16"),
        (["float16", "float32"], "bfloat16", "float32"),
        (["bfloat16"], "float32", "bfloat16"),
    ],
)
def test_without_those_of_its_type_a_case_gets_anothers_for_its_copies(
    kept: Sequence[FloatType], dtype: FloatType, given: FloatType | None, tmp_path: Path
) -> None:
    case = built_case(tmp_path, f"runner.dtype={dtype}")
    for known in kept:
        save(key_of(case, known), ceilings(dtype=known))
    found = found_for(case)
    assert (found and found.ceilings.dtype) == given


def test_ceilings_of_an_earlier_version_are_not_taken_for_any(tmp_path: Path) -> None:
    """Whatever the file's name: it says nothing of a type."""
    case = built_case(tmp_path, "runner.dtype=bfloat16")
    for known in get_args(FloatType):
        save(key_of(case, known), ceilings(dtype=known, schema_version=2))
        assert cache_path(key_of(case, known)).exists()
    assert found_for(case) is None


def test_a_run_from_before_there_was_a_type_had_float32_ceilings() -> None:
    document = to_document({"c": CaseCeilings(model="tiny-qwen3", ceilings=ceilings(schema_version=2))})
    kept = document["c"]
    assert isinstance(kept, dict)
    assert kept["ceilings"].pop("dtype") == "float32"
    assert from_document(document)["c"].ceilings.dtype == "float32"
