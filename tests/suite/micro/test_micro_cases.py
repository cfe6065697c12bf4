"""Every case can be run, is in the catalogue, and moves the memory it says it moves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from micro_fabrication import make_machine

from runner.models import MODELS, TINY_QWEN3
from suite.ceilings import linear_parameters, linear_shapes
from suite.errors import SuiteError
from suite.micro import transfers
from suite.micro.case import Case
from suite.micro.catalogue import GROUPS, choose, groups_of, is_chosen
from suite.micro.ceiling_probes import language_model_of, linear_layers, measure_ceilings
from suite.micro.child import cases_of, instrument_rows, measured
from suite.micro.machine import Machine, last_level_cache
from suite.micro.protocol import Order
from suite.micro.session import Findings
from suite.micro.table import lines


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "TOKENS", (64,))
    monkeypatch.setattr(transfers, "WIDE", 32)
    monkeypatch.setattr("suite.micro.child.WIDE", 32)
    monkeypatch.setattr(transfers, "FLAG_BYTES", (64, 256))
    monkeypatch.setattr(transfers, "ROUTED", (8,))


def all_cases() -> Iterator[Case]:
    return cases_of(make_machine(cache_bytes=1 << 16), TINY_QWEN3, tuple(GROUPS), lambda _: None)


def test_cases_and_catalogue_hold_the_same_names(small: None) -> None:
    emitted = {(case.group, case.name) for case in all_cases()}
    emitted |= {("instrument", row.name) for row in instrument_rows()}
    assert emitted == {(group, name) for group, names in GROUPS.items() for name in names}


def test_every_case_runs_and_gives_a_finite_rate(small: None) -> None:
    machine = make_machine(cache_bytes=1 << 16)
    with torch.inference_mode():
        found = [(case, measured(machine, case)) for case in all_cases()]
    rows = [row for _, row in found]
    assert len(rows) > 60
    for case, row in found:
        assert row.n == 2 and row.rate is not None
        assert row.rate * row.median_ns == pytest.approx(case.work)
    assert {row.memory for row in rows} == {"cold", "warm"}
    assert len({(row.name, row.size) for row in rows}) == len(rows), "two rows cannot be told apart"


@pytest.mark.parametrize("is_by_row", [False, True])
@pytest.mark.parametrize("is_strided", [False, True])
def test_flags_reach_the_device_by_every_way_of_copying(
    is_strided: bool, is_by_row: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of 64 bytes, from a source whose rows are twice as far apart where it is strided."""
    made: dict[str, torch.Tensor] = {}

    def host_bytes(_machine: Machine, size: int, _source: str) -> torch.Tensor:
        made["host"] = (torch.arange(size) % 251).to(torch.uint8)
        return made["host"]

    def device_bytes(_machine: Machine, size: int) -> torch.Tensor:
        made["device"] = torch.zeros(size, dtype=torch.uint8)
        return made["device"]

    monkeypatch.setattr(Machine, "host_bytes", host_bytes)
    monkeypatch.setattr(Machine, "device_bytes", device_bytes)
    machine = make_machine(cache_bytes=1 << 12)
    calls, is_cold = transfers._prepare_flags(machine, 256, "pageable", is_strided, is_by_row)
    assert is_cold and len(calls) * 512 > 1 << 12
    for call in calls:
        call()
    if not is_strided and not is_by_row:  # slots lie a page apart there
        received = torch.cat(
            [made["device"][first : first + 256] for first in range(0, 4096 * len(calls), 4096)]
        )
        given = torch.cat([made["host"][first : first + 256] for first in range(0, 4096 * len(calls), 4096)])
    else:
        received, width = made["device"], 128 if is_strided else 64
        given = made["host"].view(-1, width)[:, :64].flatten()
    assert torch.equal(received, given)


@pytest.mark.parametrize("name", MODELS)
def test_the_shapes_of_linear_layers_are_the_models_own(name: str) -> None:
    spec = MODELS[name]
    layers = linear_layers(language_model_of(spec, torch.device("cpu")))
    shapes = sorted((weight.shape[1], weight.shape[0]) for weight, _ in layers)
    assert shapes == sorted(linear_shapes(spec) * spec.num_layers)
    assert sum(weight.numel() for weight, _ in layers) == linear_parameters(spec)


def test_all_ceilings_are_measured_and_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("suite.micro.ceiling_probes.COPY_BYTES", (64, 4096))
    with torch.inference_mode():
        found = measure_ceilings(make_machine(cache_bytes=1 << 14), TINY_QWEN3, lambda _: None)
    assert [point.size for point in found.upload_pinned] == [64, 4096]
    assert [point.size for point in found.matmul] == [1, 16, 64, 256, 512]
    assert {(shape.inner, shape.outer) for shape in found.shapes} == set(linear_shapes(TINY_QWEN3))
    assert found.launch is None and found.handoff.best_ns > 0
    assert "memcpy between two separate arrays" in found.copies
    order = Order(device="inline", model="tiny-qwen3", num_threads=1, chosen=())
    text = "\n".join(lines(Findings(order, found)))
    assert "a launch                      n/a: the device is a CPU" in text


def test_more_tokens_take_longer() -> None:
    with torch.inference_mode():
        found = measure_ceilings(make_machine(), TINY_QWEN3, lambda _: None)
    assert found.matmul[-1].best_ns > 8 * found.matmul[0].best_ns


def test_names_are_chosen_by_group_and_alone() -> None:
    assert choose(None) == tuple(GROUPS)
    chosen = choose("merge.where, route")
    assert groups_of(chosen) == ("merge", "route")
    assert is_chosen("merge", "merge.where", chosen) and is_chosen("route", "route.slice", chosen)
    assert not is_chosen("merge", "merge.index", chosen)


@pytest.mark.parametrize("only", ["merge.were", "", "merge,,route", "merge;route"])
def test_a_name_that_is_not_known_is_refused_with_those_that_are(only: str) -> None:
    with pytest.raises(SuiteError, match=r"--only .* must be one of: ceilings, flag-upload") as caught:
        choose(only)
    assert "\n" not in str(caught.value)


def test_the_last_level_cache_is_the_largest_that_is_told(tmp_path: Path) -> None:
    assert last_level_cache(tmp_path) == 64 << 20
    for index, text in enumerate(("32K\n", "2M\n", "nonsense\n", "1024K")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(text)
    assert last_level_cache(tmp_path) == 2 << 20
