"""A recorded trace made to fit a model, with a count of all that was changed."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from runner.config import RunnerConfig
from runner.models import ModelSpec
from suite.errors import KeyedError, SuiteError
from suite.image_demand import draw_images
from suite.need import Demand, Need, TextBlocks, image_positions, room, scaled
from suite.traces.base import Trace, TraceRow
from suite.traces.reading import read_trace
from suite.traffic import TraceReplay, Traffic


class Replay:
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
        self._has_cache = runner.prefix_caching
        self._room, self._limit = room(runner)
        self._counts: Counter[str] = Counter()
        self._silence_s = 0.0

    def demand(self) -> Demand:
        arrivals = self._arrivals
        trace = read_trace(Path(arrivals.path), arrivals.format, arrivals.limit)
        rows = self._usable(trace)
        needs = []
        for row, time_s, num_images in zip(rows, self._times(rows), self._images(trace, rows), strict=True):
            need = self._fitted(trace, row, self._need(row, time_s, num_images))
            if need is not None:
                needs.append(self._with_blocks(need, row))
        if not needs:
            raise KeyedError(
                "traffic.arrivals.over_length",
                f"every row of {trace.path} is longer than the runner allows ({self._limit}): lower "
                "traffic.arrivals.length_scale",
            )
        return Demand(tuple(needs), tuple(self._notes(trace, needs)))

    def _usable(self, trace: Trace) -> list[TraceRow]:
        """The rows that are requests to replay; SuiteError where there is none, or no time for any."""
        if not trace.format.has_times:
            raise SuiteError(
                f"{trace.path}:1: the format {trace.format.name} has no times, so that there is nothing to "
                "replay: take another trace"
            )
        failed = next((row for row in trace.rows if row.is_failed), None)
        if failed is not None and self._arrivals.failed_requests == "error":
            raise SuiteError(
                f"{trace.path}:{failed.line}: the request failed when it was recorded (0 output tokens): "
                "remove the row, or set traffic.arrivals.failed_requests to skip"
            )
        rows = [row for row in trace.rows if not row.is_failed]
        self._counts["failed"] = len(trace.rows) - len(rows)
        if not rows:
            raise SuiteError(f"{trace.path}: every request of the trace failed: raise traffic.arrivals.limit")
        return rows

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

    def _images(self, trace: Trace, rows: Sequence[TraceRow]) -> list[int]:
        if not trace.format.has_images:
            return draw_images(self._traffic, self._model, len(rows), self._seed)
        images = []
        for row in rows:
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

    def _with_blocks(self, need: Need, row: TraceRow) -> Need:
        """The need with where each of its row's prefix blocks ends in its text: their ends are scaled as
        the lengths are, so that equal beginnings stay equal.
        """
        if row.blocks is None:
            return need
        ids, size = row.blocks
        scale = self._arrivals.length_scale
        ends = [min(need.text_tokens, scaled(size * number, scale)) for number in range(1, len(ids) + 1)]
        return replace(need, blocks=TextBlocks(ids, tuple(ends), scaled(size, scale)))

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
            *trace.notes,
            self._image_note(trace, needs),
            *self._block_notes(needs),
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

    def _block_notes(self, needs: Sequence[Need]) -> list[str]:
        """How much of the prompts is alike: the most that a prefix cache without end could hit."""
        seen: set[int] = set()
        num_tokens = num_repeated = 0
        for need in needs:
            if need.blocks is None:
                continue
            for block_id, first, end in need.blocks.spans():
                num_tokens += end - first
                num_repeated += end - first if block_id in seen else 0
                seen.add(block_id)
        if not num_tokens:
            return []
        return [
            f"prompts are made of the trace's {len(seen)} different prefix blocks, images stand behind them: "
            f"{num_repeated} of {num_tokens} text tokens are in a block that came before "
            f"(runner.prefix_caching is {'on' if self._has_cache else 'off'})",
            "noise on embeddings and the supplied positions of spliced prompts are each request's own",
        ]

    def _length_notes(self) -> list[str]:
        arrivals, counts = self._arrivals, self._counts
        included = "include" if arrivals.context_includes_images else "exclude"
        notes = []
        if counts["failed"]:
            notes.append(
                "requests left out that failed when they were recorded "
                f"(traffic.arrivals.failed_requests): {counts['failed']}"
            )
        notes += [
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
