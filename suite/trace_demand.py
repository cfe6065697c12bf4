"""A recorded trace made to fit a model, with a count of all that was changed."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from runner.config import RunnerConfig
from runner.models import ModelSpec
from suite.arrival_kinds import TraceReplay
from suite.errors import KeyedError, SuiteError
from suite.image_demand import draw_images
from suite.need import Demand, Need, TextBlocks, image_positions, room, scaled
from suite.seeding import seeded
from suite.traces.base import Trace, TraceRow
from suite.traces.reading import read_trace
from suite.traffic import Traffic


class TraceDemand:
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
        trace = read_trace(Path(arrivals.path), arrivals.format, arrivals.limit, self._seed)
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
        return Demand(tuple(self._timed(needs)), tuple(self._notes(trace, needs)))

    def _timed(self, needs: list[Need]) -> list[Need]:
        """The needs with the times of the process that stands for the trace's own, where there is one."""
        process = self._arrivals.process
        if process is None:
            return needs
        times = process.times(len(needs), seeded(self._seed, "arrivals"))
        return [replace(need, arrival_s=time_s) for need, time_s in zip(needs, times, strict=True)]

    def _usable(self, trace: Trace) -> list[TraceRow]:
        """The rows that are requests to replay; SuiteError where there is none, or no time for any."""
        if not trace.format.has_times and self._arrivals.process is None:
            raise SuiteError(
                f"{trace.path}:1: the format {trace.format.name} has no times, so that there is nothing to "
                "replay: say when its requests come, for instance with "
                "traffic.arrivals.process: {kind: poisson, rate: 4}"
            )
        failed = next((row for row in trace.rows if row.is_failed), None)
        if failed is not None and self._arrivals.failed_requests == "error":
            raise SuiteError(
                f"{trace.place(failed)}: the request failed when it was recorded (0 output tokens): "
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
        return [self._kept_images(trace, row) for row in rows]

    def _kept_images(self, trace: Trace, row: TraceRow) -> int:
        """How many of the model's images a row brings."""
        recorded = row.num_images or 0
        if recorded and self._model.vision is None and self._arrivals.max_images != 0:
            raise SuiteError(
                f"{trace.place(row)}: the request has {recorded} images, but {self._model.name} takes none: "
                "choose a multimodal model, or set traffic.arrivals.max_images to 0"
            )
        brought = self._resized(row) if row.image_tokens is not None else recorded
        most = self._arrivals.max_images
        if most is None or brought <= most:
            return brought
        self._counts["images dropped"] += brought - most
        self._counts["rows with images dropped"] += 1
        return most

    def _resized(self, row: TraceRow) -> int:
        """As many of the model's images as come closest to the tokens of the row's own, scaled."""
        if not row.num_images or self._model.vision is None:
            return row.num_images or 0
        rows = self._model.vision.rows_per_image
        tokens = scaled(row.image_tokens or 0, self._arrivals.length_scale)
        count = max(1, (2 * tokens + rows) // (2 * rows))
        self._counts["images resized"] += row.num_images
        self._counts["image tokens"] += row.image_tokens or 0
        self._counts["images made"] += count
        return count

    def _need(self, row: TraceRow, time_s: float, num_images: int) -> Need:
        text = scaled(row.context_tokens, self._arrivals.length_scale)
        if row.context_tokens == 0:
            self._counts["texts of 0"] += 1
        if row.image_tokens is None and self._arrivals.context_includes_images and num_images:
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
            f"{trace.place(row)}: the request has {need.text_tokens} text + {image} image + "
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
            *self._length_notes(trace),
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

    def _length_notes(self, trace: Trace) -> list[str]:
        arrivals, counts = self._arrivals, self._counts
        notes = []
        if counts["failed"]:
            notes.append(
                "requests left out that failed when they were recorded "
                f"(traffic.arrivals.failed_requests): {counts['failed']}"
            )
        notes += [
            f"lengths multiplied by traffic.arrivals.length_scale {arrivals.length_scale:g}, rounded up",
            self._context_note(trace),
            *self._resize_notes(),
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

    def _context_note(self, trace: Trace) -> str:
        if any(row.image_tokens is not None for row in trace.rows):
            return "text and image tokens are counted apart by the trace"
        included = "include" if self._arrivals.context_includes_images else "exclude"
        return f"context tokens taken to {included} image tokens (traffic.arrivals.context_includes_images)"

    def _resize_notes(self) -> list[str]:
        counts, notes = self._counts, []
        if counts["images resized"] and self._model.vision is not None:
            notes.append(
                f"{counts['images resized']} recorded images of {counts['image tokens']} tokens in all "
                f"became {counts['images made']} of the model's images of "
                f"{self._model.vision.rows_per_image} rows"
            )
        if counts["texts of 0"]:
            notes.append(f"requests recorded without text, 1 text token given: {counts['texts of 0']}")
        return notes

    def _time_notes(self, trace: Trace) -> list[str]:
        arrivals = self._arrivals
        notes = []
        if arrivals.process is not None:
            notes.append(f"times from traffic.arrivals.process ({arrivals.process.kind}), not from the trace")
        elif self._counts["silences"]:
            notes.append(
                f"silences cut to traffic.arrivals.max_gap_s {arrivals.max_gap_s:g}: "
                f"{self._counts['silences']}, {self._silence_s:.3f} s of the trace left out"
            )
        if arrivals.time_scale != 1:
            notes.append(f"times multiplied by traffic.arrivals.time_scale {arrivals.time_scale:g}")
        if trace.is_cut:
            notes.append(f"only the first {arrivals.limit} rows read (traffic.arrivals.limit)")
        return notes
