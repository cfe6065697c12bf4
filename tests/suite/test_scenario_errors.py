"""Every entry of the table of bad inputs is refused in words that name place, value and fix."""

from pathlib import Path

import pytest
from bad_inputs import AZURE, BAD_INPUTS, GOOD, REBASED, REPLAY, BadInput

from suite.errors import SuiteError
from suite.scenario import ScenarioKeys, load_scenario
from suite.schema import dotted_keys


@pytest.mark.parametrize("bad", BAD_INPUTS, ids=lambda bad: bad.name)
def test_a_bad_input_is_refused_with_place_value_and_fix(bad: BadInput, tmp_path: Path) -> None:
    scenario = bad.write(tmp_path)
    with pytest.raises(SuiteError) as caught:
        load_scenario(scenario, bad.overrides)
    text = str(caught.value)
    for words in bad.expect:
        assert words in text
    assert "Traceback" not in text and "pydantic" not in text
    assert len(text.splitlines()) == 1, "one mistake, one line"


def test_the_table_covers_what_users_get_wrong() -> None:
    assert len(BAD_INPUTS) >= 30
    assert len({bad.name for bad in BAD_INPUTS}) == len(BAD_INPUTS)


def test_the_table_starts_from_files_that_are_fine(tmp_path: Path) -> None:
    """Otherwise an entry could be refused for another reason than its own."""
    for scenario, trace in ((GOOD, ""), (REPLAY, AZURE), (REPLAY, REBASED)):
        path = BadInput("fine", {"scenario.yaml": scenario, "trace.csv": trace}, ()).write(tmp_path)
        load_scenario(path)


def test_two_mistakes_are_told_in_two_lines(tmp_path: Path) -> None:
    text = GOOD.replace("rounds: 2", "rounds: 0").replace("rate: 8.0", "rate: fast")
    path = BadInput("two", {"scenario.yaml": text}, ()).write(tmp_path)
    with pytest.raises(SuiteError) as caught:
        load_scenario(path)
    assert str(caught.value).splitlines() == [
        f"{path}:9: traffic.arrivals.rate is 'fast'; it must be a number",
        f"{path}:13: rounds is 0; it must be at least 1",
    ]


def test_a_directory_in_place_of_a_scenario_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match="this is a directory; name a scenario file in it"):
        load_scenario(tmp_path)


def test_a_negative_seed_option_is_refused_by_its_name(tmp_path: Path) -> None:
    path = BadInput("seed", {"scenario.yaml": GOOD}, ()).write(tmp_path)
    with pytest.raises(SuiteError, match=r"^--seed -1: seed is -1; it must be at least 0$"):
        load_scenario(path, seed=-1)


def test_a_trace_that_is_not_there_names_both_places_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    monkeypatch.chdir(here)
    path = BadInput("trace", {"scenario.yaml": REPLAY}, ()).write(there)
    with pytest.raises(SuiteError) as caught:
        load_scenario(path)
    in_file = f"tried {there / 'trace.csv'} and {here / 'trace.csv'}"
    assert in_file in str(caught.value)
    with pytest.raises(SuiteError) as caught:
        load_scenario(path, ["traffic.arrivals.path=gone.csv"])
    as_option = f"tried {here / 'gone.csv'} and {there / 'gone.csv'}"
    assert as_option in str(caught.value)


# Values that no key takes, or few do; whoever takes one must say so by loading.
_ODD = (
    "null",
    "true",
    "-1",
    "0",
    "1.5",
    ".inf",
    ".nan",
    "''",
    "'3'",
    "[]",
    "[1, x]",
    "{}",
    "{a: 1}",
    "2025-01-01",
    "9" * 30,
)


@pytest.mark.parametrize("key", dotted_keys(ScenarioKeys))
def test_an_odd_value_of_any_key_is_taken_or_refused_by_its_name(key: str, tmp_path: Path) -> None:
    path = BadInput("odd", {"scenario.yaml": GOOD}, ()).write(tmp_path)
    for value in _ODD:
        try:
            load_scenario(path, [f"{key}={value}"])
        except SuiteError as error:
            assert key.split(".")[0] in str(error)
            assert f"--set {key}={value}" in str(error) or "scenario.yaml:" in str(error)
