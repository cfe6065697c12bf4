"""Which requests bring embeddings, and of which kind: by ratio or from files.

Drawn after lengths and images and from seeds of its own, so that the cases of a sweep over these keys
differ in nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from runner.config import RunnerConfig
from runner.core import FloatType
from runner.models import ModelSpec
from suite.embeds_file import FileRows, read_rows
from suite.errors import KeyedError, SuiteError
from suite.need import Need, exact_share, image_positions
from suite.seeding import seeded
from suite.traffic import Traffic


def with_embeds(
    needs: Sequence[Need], traffic: Traffic, model: ModelSpec, runner: RunnerConfig, seed: int
) -> tuple[tuple[Need, ...], list[str]]:
    """The needs with those that bring embeddings marked, and notes. KeyedError where they cannot be had."""
    if traffic.embeds_files:
        given, notes = _from_files(needs, traffic, model, runner.dtype, seed)
    else:
        given = _by_ratio(needs, traffic, seed)
        notes = _ratio_notes(given, traffic)
    for need in given:
        _check_arena(need, model, runner)
    return tuple(given), notes


def _by_ratio(needs: Sequence[Need], traffic: Traffic, seed: int) -> list[Need]:
    """The ratio of all requests, and the spliced share of those without images, both met exactly.

    An image has no embeddings to hand over, so a request with images is spliced beside them. A larger ratio
    adds requests and leaves the kind of the others as it was.
    """
    order: list[int] = seeded(seed, "embeds").permutation(len(needs)).tolist()
    share = traffic.embeds_kind.spliced
    num_alone = 0
    given = list(needs)
    for index in order[: exact_share(len(needs), traffic.embeds_ratio)]:
        is_spliced = needs[index].num_images > 0
        if not is_spliced:
            num_alone += 1
            is_spliced = exact_share(num_alone, share) > exact_share(num_alone - 1, share)
        given[index] = replace(needs[index], embeds="spliced" if is_spliced else "pure")
    return given


def _ratio_notes(needs: Sequence[Need], traffic: Traffic) -> list[str]:
    kinds = Counter(need.embeds for need in needs if need.embeds)
    if not kinds:
        return []
    beside = sum(need.embeds is not None and need.num_images > 0 for need in needs)
    note = (
        f"{kinds.total()} of {len(needs)} requests bring embeddings (traffic.embeds_ratio "
        f"{traffic.embeds_ratio:g}): {kinds['pure']} pure, {kinds['spliced']} spliced"
    )
    if beside:
        note += f", {beside} of these beside images (such a request is always spliced)"
    if traffic.embeds_noise:
        note += f"; noise of {traffic.embeds_noise:g} of their own spread is added to the rows"
    return [note]


def _from_files(
    needs: Sequence[Need], traffic: Traffic, model: ModelSpec, dtype: FloatType, seed: int
) -> tuple[list[Need], list[str]]:
    """One request without images a file, drawn by the seed; the file's rows are its prompt."""
    files = [_read(name, traffic, model, dtype) for name in traffic.embeds_files]
    order: list[int] = seeded(seed, "embeds").permutation(len(needs)).tolist()
    free = [index for index in order if not needs[index].num_images]
    if len(free) < len(files):
        raise KeyedError(
            "traffic.embeds_files",
            f"{len(files)} files, but {len(free)} of {len(needs)} requests are without images: raise "
            "traffic.num_requests, or lower traffic.multimodal_ratio",
        )
    given = list(needs)
    for index, rows in zip(free, files, strict=False):
        given[index] = replace(needs[index], text_tokens=rows.num_rows, embeds="pure", rows=rows)
    note = f"{len(files)} of {len(needs)} requests bring embeddings, pure, from traffic.embeds_files"
    return given, [note, *(rows.note for rows in files if rows.note)]


def _read(name: str, traffic: Traffic, model: ModelSpec, dtype: FloatType) -> FileRows:
    try:
        return read_rows(Path(name), model.hidden_size, traffic.embeds_file_max_mib, dtype)
    except SuiteError as error:
        raise KeyedError("traffic.embeds_files", str(error)) from None


def _check_arena(need: Need, model: ModelSpec, runner: RunnerConfig) -> None:
    """Every arm must be able to serve it, those that keep supplied rows on the device too."""
    length = need.text_tokens + need.num_images * image_positions(model)
    if need.embeds is not None and length > runner.num_resident_rows:
        raise KeyedError(
            "runner.num_resident_rows",
            f"a prompt that brings embeddings has {length} positions: raise it, or shorten the prompts",
        )
