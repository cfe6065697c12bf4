"""What a case asks for: when each request comes, how long it is, its images, whether it brings embeddings.

Pure and cheap, so that `validate` finds every request that could never run.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from runner.config import RunnerConfig
from runner.models import ModelSpec
from suite.embeds_demand import with_embeds
from suite.errors import KeyedError, SuiteError
from suite.need import Demand, Need, exact_share, image_positions, scaled, seeded
from suite.prefix_demand import with_prefixes
from suite.traces.base import Trace, TraceRow
from suite.traces.reading import read_trace
from suite.traffic import Constant, TraceReplay, Traffic


def plan_demand(traffic: Traffic, model: ModelSpec, runner: RunnerConfig, seed: int) -> Demand:
    """The requests of one case; SuiteError names what can never run and how to mend it."""
    if isinstance(traffic.arrivals, TraceReplay):
        demand = _Replay(traffic, traffic.arrivals, model, runner, seed).demand()
    else:
        demand = _synthetic(traffic, model, runner, seed)
    needs, embeds_notes = with_embeds(demand.needs, traffic, model, runner, seed)
    _check_files(needs, runner)
    needs, prefix_notes = with_prefixes(needs, traffic, seed)
    _check_min_tokens(needs, traffic)
    notes = (*demand.notes, *embeds_notes, *prefix_notes, *traffic.sampling.notes())
    return Demand(needs, notes)


def _check_min_tokens(needs: Sequence[Need], traffic: Traffic) -> None:
    """No request may be asked for more tokens than it may have, whatever this seed draws."""
    least = min(need.output_tokens for need in needs)
    mend = "raise traffic.arrivals.length_scale"
    if traffic.output_tokens is not None:
        least, mend = traffic.output_tokens.smallest, "raise traffic.output_tokens"
    if traffic.sampling.min_tokens > least:
        raise KeyedError(
            "traffic.sampling.min_tokens",
            f"the shortest output asked for has {least} tokens: lower it, or {mend}",
        )


def _check_files(needs: Sequence[Need], runner: RunnerConfig) -> None:
    """A file's length is not the distributions', so it is checked by itself."""
    room, limit = _room(runner)
    for need in needs:
        if need.rows is not None and need.text_tokens + need.output_tokens > room:
            raise KeyedError(
                "traffic.embeds_files",
                f"{need.rows.path} has {need.text_tokens} rows, with {need.output_tokens} output tokens more "
                f"than fit, since {limit}: shorten it, lower traffic.output_tokens, or raise that limit",
            )


def _synthetic(traffic: Traffic, model: ModelSpec, runner: RunnerConfig, seed: int) -> Demand:
    assert traffic.num_requests is not None
    assert traffic.prompt_tokens is not None and traffic.output_tokens is not None
    images = _draw_images(traffic, model, traffic.num_requests, seed)
    _check_longest(traffic, model, runner)
    texts = traffic.prompt_tokens.draw(seeded(seed, "prompt_tokens"), traffic.num_requests)
    outputs = traffic.output_tokens.draw(seeded(seed, "output_tokens"), traffic.num_requests)
    needs = tuple(
        Need(_arrival_s(traffic, index), *lengths)
        for index, lengths in enumerate(zip(texts, images, outputs, strict=True))
    )
    return Demand(needs, (_count_note(needs, traffic.multimodal_ratio, model),))


def _arrival_s(traffic: Traffic, index: int) -> float:
    return index / traffic.arrivals.rate if isinstance(traffic.arrivals, Constant) else 0.0


def _draw_images(traffic: Traffic, model: ModelSpec, num_requests: int, seed: int) -> list[int]:
    """Images of each request: the ratio met exactly, the requests that have some drawn by the seed."""
    if traffic.multimodal_ratio > 0 and model.vision is None:
        raise KeyedError(
            "traffic.multimodal_ratio",
            f"{model.name} takes no images: set it to 0, or choose a multimodal model",
        )
    with_images = exact_share(num_requests, traffic.multimodal_ratio)
    order = seeded(seed, "multimodal").permutation(num_requests)
    counts = traffic.images_per_request.draw(seeded(seed, "images_per_request"), with_images)
    images = [0] * num_requests
    for index, count in zip(order[:with_images], counts, strict=True):
        images[index] = count
    return images


def _count_note(needs: Sequence[Need], ratio: float, model: ModelSpec) -> str:
    with_images = sum(need.num_images > 0 for need in needs)
    note = f"{len(needs)} requests, {with_images} with images (traffic.multimodal_ratio {ratio:g})"
    if not with_images:
        return note
    return f"{note}; each image takes {image_positions(model)} prompt positions beside the text"


def _room(runner: RunnerConfig) -> tuple[int, str]:
    """Positions one request may take, and the key to raise where that is too few."""
    capacity = runner.num_blocks * runner.block_size
    if capacity < runner.max_model_len:
        return capacity, f"the cache of runner.num_blocks x runner.block_size holds {capacity}"
    return runner.max_model_len, f"runner.max_model_len is {runner.max_model_len}"


def _check_longest(traffic: Traffic, model: ModelSpec, runner: RunnerConfig) -> None:
    """Refuse the longest request the distributions can draw, whatever this seed draws."""
    assert traffic.prompt_tokens is not None and traffic.output_tokens is not None
    text, output = traffic.prompt_tokens.largest, traffic.output_tokens.largest
    has_images = exact_share(traffic.num_requests or 0, traffic.multimodal_ratio) > 0
    images = traffic.images_per_request.largest if has_images else 0
    length = text + images * image_positions(model) + output
    room, limit = _room(runner)
    if length > room:
        raise KeyedError(
            "traffic.prompt_tokens",
            f"the longest request has {text} text + {images} x {image_positions(model)} image + "
            f"{output} output = {length} tokens, but {limit}: lower traffic.prompt_tokens or "
            "traffic.output_tokens, or raise that limit",
        )


class _Replay:
    """A trace made to fit a model, step by step as TraceReplay says, with a count of all it changed."""

    def __init__(
        self,
        traffic: Traffic,
        arrivals: TraceReplay,
        model: ModelSpec,
        runner: RunnerConfig,
        seed: int,
    ) -> None:
        self._traffic = traffic
        self._arrivals = arrivals
        self._model = model
        self._seed = seed
        self._room, self._limit = _room(runner)
        self._counts: Counter[str] = Counter()
        self._silence_s = 0.0

    def demand(self) -> Demand:
        arrivals = self._arrivals
        trace = read_trace(Path(arrivals.path), arrivals.format, arrivals.limit)
        times = self._times(trace.rows)
        images = self._images(trace)
        needs = []
        for row, time_s, num_images in zip(trace.rows, times, images, strict=True):
            need = self._fitted(trace, row, self._need(row, time_s, num_images))
            if need is not None:
                needs.append(need)
        if not needs:
            raise KeyedError(
                "traffic.arrivals.over_length",
                f"every row of {trace.path} is longer than the runner allows ({self._limit}): lower "
                "traffic.arrivals.length_scale",
            )
        return Demand(tuple(needs), tuple(self._notes(trace, needs)))

    def _times(self, rows: Sequence[TraceRow]) -> list[float]:
        """Arrival times with long silences cut, then scaled."""
        times, now_s = [0.0], 0.0
        for before, row in itertools.pairwise(rows):
            gap_s = row.time_s - before.time_s
            if gap_s > self._arrivals.max_gap_s:
                self._counts["silences"] += 1
                self._silence_s += gap_s - self._arrivals.max_gap_s
                gap_s = self._arrivals.max_gap_s
            now_s = round(now_s + gap_s, 6)
            times.append(now_s)
        return [round(time_s * self._arrivals.time_scale, 9) for time_s in times]

    def _images(self, trace: Trace) -> list[int]:
        if not trace.format.has_images:
            return _draw_images(self._traffic, self._model, len(trace.rows), self._seed)
        images = []
        for row in trace.rows:
            recorded = row.num_images or 0
            kept = recorded
            if self._arrivals.max_images is not None and recorded > self._arrivals.max_images:
                kept = self._arrivals.max_images
                self._counts["images dropped"] += recorded - kept
                self._counts["rows with images dropped"] += 1
            if kept and self._model.vision is None:
                raise SuiteError(
                    f"{trace.path}:{row.line}: NumImages is {recorded}, but {self._model.name} takes no "
                    "images: choose a multimodal model, or set traffic.arrivals.max_images to 0"
                )
            images.append(kept)
        return images

    def _need(self, row: TraceRow, time_s: float, num_images: int) -> Need:
        text = scaled(row.context_tokens, self._arrivals.length_scale)
        if self._arrivals.context_includes_images and num_images:
            text -= num_images * image_positions(self._model)
            if text < 1:
                self._counts["texts of 1"] += 1
                text = 1
        output = scaled(row.output_tokens, self._arrivals.length_scale)
        return Need(time_s, text, num_images, output)

    def _fitted(self, trace: Trace, row: TraceRow, need: Need) -> Need | None:
        image = need.num_images * image_positions(self._model)
        excess = need.text_tokens + image + need.output_tokens - self._room
        if excess <= 0:
            return need
        if self._arrivals.over_length == "skip":
            self._counts["skipped"] += 1
            return None
        shorter_text = max(1, need.text_tokens - excess)
        shorter_output = need.output_tokens - (excess - (need.text_tokens - shorter_text))
        if self._arrivals.over_length == "error" or shorter_output < 1:
            raise self._too_long(trace, row, need, image)
        self._counts["truncated"] += 1
        self._counts["tokens truncated"] += excess
        return replace(need, text_tokens=shorter_text, output_tokens=shorter_output)

    def _too_long(self, trace: Trace, row: TraceRow, need: Need, image: int) -> SuiteError:
        total = need.text_tokens + image + need.output_tokens
        return SuiteError(
            f"{trace.path}:{row.line}: the request has {need.text_tokens} text + {image} image + "
            f"{need.output_tokens} output = {total} tokens (of {row.context_tokens} context and "
            f"{row.output_tokens} output, traffic.arrivals.length_scale {self._arrivals.length_scale:g}), "
            f"but {self._limit}: lower length_scale or max_images, raise that limit, or set "
            "traffic.arrivals.over_length to skip or truncate"
        )

    def _notes(self, trace: Trace, needs: Sequence[Need]) -> list[str]:
        return [
            f"{len(needs)} requests from {trace.path.name} (format {trace.format.name}): "
            f"{trace.format.origins}",
            self._image_note(trace, needs),
            *self._length_notes(),
            *self._time_notes(trace),
        ]

    def _image_note(self, trace: Trace, needs: Sequence[Need]) -> str:
        with_images = sum(need.num_images > 0 for need in needs)
        ratio = self._traffic.multimodal_ratio
        if trace.format.has_images:
            note = f"images from the trace's own column: {with_images} requests have some"
            return f"{note}; traffic.multimodal_ratio {ratio:g} is not used" if ratio else note
        return (
            "the trace has no image column: traffic.multimodal_ratio "
            f"{ratio:g} and traffic.images_per_request used, {with_images} requests have images"
        )

    def _length_notes(self) -> list[str]:
        arrivals, counts = self._arrivals, self._counts
        included = "include" if arrivals.context_includes_images else "exclude"
        notes = [
            f"lengths multiplied by traffic.arrivals.length_scale {arrivals.length_scale:g}, rounded up",
            f"context tokens taken to {included} image tokens (traffic.arrivals.context_includes_images)",
        ]
        if counts["texts of 1"]:
            notes.append(
                f"requests whose images alone fill the scaled context, 1 text token kept: "
                f"{counts['texts of 1']}"
            )
        if counts["images dropped"]:
            notes.append(
                f"images dropped by traffic.arrivals.max_images {arrivals.max_images}: "
                f"{counts['images dropped']}, of {counts['rows with images dropped']} of the requests"
            )
        if counts["skipped"]:
            notes.append(f"requests skipped as too long ({self._limit}): {counts['skipped']}")
        if counts["truncated"]:
            notes.append(
                f"requests truncated as too long ({self._limit}): {counts['truncated']}, by "
                f"{counts['tokens truncated']} tokens in all"
            )
        return notes

    def _time_notes(self, trace: Trace) -> list[str]:
        arrivals = self._arrivals
        notes = []
        if self._counts["silences"]:
            notes.append(
                f"silences cut to traffic.arrivals.max_gap_s {arrivals.max_gap_s:g}: "
                f"{self._counts['silences']}, {self._silence_s:.3f} s of the trace left out"
            )
        if arrivals.time_scale != 1:
            notes.append(f"times multiplied by traffic.arrivals.time_scale {arrivals.time_scale:g}")
        if trace.is_cut:
            notes.append(f"only the first {arrivals.limit} rows read (traffic.arrivals.limit)")
        return notes
