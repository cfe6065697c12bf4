"""The requests of a case, drawn from a seed: the same ids, images, times and masks in every process.

Every prompt is drawn as ids. Those that bring embeddings carry a specification beside them, and `materialise`
makes their rows from a lookup it is given, so that nothing here needs a model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

import numpy as np
import numpy.typing as npt

from runner.core import Image, Prompt, Request, SamplingParams, SuppliedRows
from runner.models import ModelSpec, VisionSpec
from suite.demand import plan_demand
from suite.embeds_file import FileRows
from suite.errors import KeyedError, SuiteError
from suite.need import Need, seeded
from suite.scenario import Case

RequestKind = Literal["text", "image", "pure", "spliced", "image+spliced"]
Embed = Callable[[Sequence[int]], npt.NDArray[np.float32]]

_MAX_RUNS = 3  # a spliced prompt has its supplied positions in so many runs at most


@dataclass(frozen=True, slots=True)
class EmbedsSpec:
    """How a request's embeddings are made from its ids.

    `mask` has a byte a position, 1 where the row is supplied, and `decoy_ids` are the ids that go beside
    the rows: at a supplied position never the right one, so that a runner which looks it up is caught. Both
    are empty where the whole prompt is supplied. Noise is normal, of `noise` times the rows' own standard
    deviation, drawn from (seed, index).
    """

    mask: bytes
    decoy_ids: tuple[int, ...]
    noise: float
    seed: int
    index: int


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """A request and when it comes, in seconds from the start of the run.

    `request` has its prompt as ids; one from a file has no ids and brings its rows. `embeds` says how an arm
    with prompt_embeds gets it; None: as it is.
    """

    request: Request
    arrival_s: float
    kind: RequestKind
    num_image_tokens: int  # positions that image rows fill; the ids around them are not among them
    num_supplied: int = 0  # positions whose row is supplied under an arm with prompt_embeds
    embeds: EmbedsSpec | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in order of arrival. `hash` covers ids, images, times, sampling, which positions are supplied
    and the noise on them; `notes` are for people.
    """

    requests: tuple[WorkloadRequest, ...]
    hash: str
    notes: tuple[str, ...]


def build_workload(case: Case, seed: int) -> Workload:
    """Draw the requests of a case; SuiteError where one could never run."""
    traffic, model = case.scenario.traffic, case.model_spec
    try:
        demand = plan_demand(traffic, model, case.runner_config, seed)
    except KeyedError as error:
        raise SuiteError(f"{case.scenario.path}: {error.key}: {error}") from None
    images = _draw_images(model.vision, demand.needs, traffic.distinct_images, seed)
    drawing = _Drawing(model, seed, traffic.ignore_eos, traffic.embeds_noise)
    width = max(4, len(str(len(demand.needs) - 1)))
    requests = [
        drawing.request(f"request-{index:0{width}d}", index, need, images)
        for index, need in enumerate(demand.needs)
    ]
    return Workload(tuple(requests), _hash(requests), demand.notes)


def materialise(workload: Workload, embed: Embed) -> tuple[WorkloadRequest, ...]:
    """The requests as an arm with prompt_embeds gets them; `embed` gives float32 rows [ids, hidden]."""
    return tuple(
        item
        if item.embeds is None
        else replace(item, request=replace(item.request, prompt=_supplied(item.request, item.embeds, embed)))
        for item in workload.requests
    )


def _supplied(request: Request, spec: EmbedsSpec, embed: Embed) -> Prompt:
    ids = request.prompt.token_ids
    is_supplied = np.frombuffer(spec.mask or b"\1" * len(ids), np.bool_)
    looked_up = embed([ids[position] for position in np.flatnonzero(is_supplied)])
    rows = np.zeros((len(ids), looked_up.shape[1]), np.float32)
    rows[is_supplied] = looked_up + _noise(looked_up, spec)
    given = SuppliedRows(rows.tobytes(), len(ids), rows.shape[1], mask=spec.mask or None)
    return Prompt(spec.decoy_ids, request.prompt.images, given)


def _noise(rows: npt.NDArray[np.float32], spec: EmbedsSpec) -> npt.NDArray[np.float32] | float:
    if not spec.noise:
        return 0.0
    drawn = seeded(spec.seed, "embeds noise", spec.index).standard_normal(rows.shape, np.float32)
    return drawn * np.float32(spec.noise * float(rows.std(dtype=np.float64)))


class _Drawing:
    """Draws one request after the other; each part of each has a seed of its own."""

    def __init__(self, model: ModelSpec, seed: int, ignore_eos: bool, noise: float) -> None:
        self._vision = model.vision
        self._rows_per_image = model.vision.rows_per_image if model.vision else 0
        self._text_ids = np.setdiff1d(np.arange(model.vocab_size), sorted(model.reserved_ids))
        self._seed = seed
        self._ignore_eos = ignore_eos
        self._noise = noise

    def request(self, request_id: str, index: int, need: Need, images: Iterator[Image]) -> WorkloadRequest:
        own = tuple(next(images) for _ in range(need.num_images))
        sampling = SamplingParams(need.output_tokens, ignore_eos=self._ignore_eos)
        if need.rows is not None:
            request = Request(request_id, _file_prompt(need.rows), sampling)
            return WorkloadRequest(request, need.arrival_s, "pure", 0, need.rows.num_rows)
        ids, is_text = self._prompt_ids(need, index)
        spec = self._embeds(need, index, ids, is_text)
        return WorkloadRequest(
            request=Request(request_id, Prompt(ids, own), sampling),
            arrival_s=need.arrival_s,
            kind=_kind(need),
            num_image_tokens=self._rows_per_image * len(own),
            num_supplied=0 if spec is None else sum(spec.mask) or len(ids),
            embeds=spec,
        )

    def _prompt_ids(self, need: Need, index: int) -> tuple[tuple[int, ...], npt.NDArray[np.bool_]]:
        """Uniformly drawn text with each image's placeholders at a drawn position; which of it is text."""
        drawn = seeded(self._seed, "text", index).integers(0, len(self._text_ids), size=need.text_tokens)
        text = self._text_ids[drawn].tolist()
        if not need.num_images:
            return tuple(text), np.ones(len(text), np.bool_)
        assert self._vision is not None, "images were planned for a text model"
        generator = seeded(self._seed, "image positions", index)
        cuts = sorted(generator.integers(0, need.text_tokens + 1, size=need.num_images).tolist())
        ids: list[int] = []
        is_text: list[bool] = []
        block = self._vision.placeholder_ids()
        for number, (first, end) in enumerate(zip([0, *cuts], [*cuts, need.text_tokens], strict=True)):
            ids += text[first:end]
            is_text += [True] * (end - first)
            if number < need.num_images:
                ids += block
                is_text += [False] * len(block)
        return tuple(ids), np.array(is_text, np.bool_)

    def _embeds(
        self, need: Need, index: int, ids: tuple[int, ...], is_text: npt.NDArray[np.bool_]
    ) -> EmbedsSpec | None:
        if need.embeds is None:
            return None
        if need.embeds == "pure":
            return EmbedsSpec(b"", (), self._noise, self._seed, index)
        mask = np.zeros(len(ids), np.uint8)
        mask[np.flatnonzero(is_text)[self._supplied_text(need.text_tokens, index)]] = 1
        decoys = self._decoys(ids, np.flatnonzero(mask), index)
        return EmbedsSpec(mask.tobytes(), decoys, self._noise, self._seed, index)

    def _supplied_text(self, num_text: int, index: int) -> npt.NDArray[np.int64]:
        """Which of the text positions are supplied: one to three runs, at least one and never all of two."""
        if num_text == 1:
            return np.zeros(1, np.int64)
        generator = seeded(self._seed, "embeds positions", index)
        num_runs = int(generator.integers(1, min(_MAX_RUNS, (num_text + 1) // 2) + 1))
        cuts = np.sort(generator.choice(num_text + 1, size=2 * num_runs, replace=False)).reshape(-1, 2)
        chosen = np.concatenate([np.arange(first, end) for first, end in cuts])
        return chosen if len(chosen) < num_text else chosen[:-1]

    def _decoys(self, ids: tuple[int, ...], supplied: npt.NDArray[np.int64], index: int) -> tuple[int, ...]:
        """The prompt's ids with another text id, drawn evenly from all others, at each supplied position."""
        decoys = np.array(ids, np.int64)
        right = np.searchsorted(self._text_ids, decoys[supplied])
        generator = seeded(self._seed, "embeds decoys", index)
        drawn = generator.integers(0, len(self._text_ids) - 1, size=len(supplied))
        decoys[supplied] = self._text_ids[drawn + (drawn >= right)]
        return tuple(decoys.tolist())


def _file_prompt(rows: FileRows) -> Prompt:
    return Prompt((), embeds=SuppliedRows(rows.data, rows.num_rows, rows.hidden_size))


def _kind(need: Need) -> RequestKind:
    if not need.num_images:
        return need.embeds or "text"
    return cast(RequestKind, f"image+{need.embeds}") if need.embeds else "image"


def _draw_images(
    vision: VisionSpec | None, needs: Sequence[Need], distinct: int | None, seed: int
) -> Iterator[Image]:
    """One image after the other, for each place that needs one.

    With `distinct` images to draw from, each is used as often as the others, give or take one, in an order
    the seed draws.
    """
    count = sum(need.num_images for need in needs)
    if vision is None or not count:
        return
    num_distinct = min(distinct or count, count)
    order = seeded(seed, "image order").permutation(np.arange(count) % num_distinct)
    made: dict[int, Image] = {}
    for number in order.tolist():
        if number not in made:
            pixels = seeded(seed, "image", number).integers(0, 256, vision.image_shape, np.uint8)
            made[number] = Image(pixels.tobytes(), vision.image_shape)
        yield made[number]


def _hash(requests: Sequence[WorkloadRequest]) -> str:
    digest = hashlib.sha256()
    for item in requests:
        prompt, sampling = item.request.prompt, item.request.sampling
        head = (
            f"{item.request.request_id} {item.kind} {item.arrival_s!r} {sampling.max_tokens} "
            f"{sampling.ignore_eos} {len(prompt)} {' '.join(image.key for image in prompt.images)}\n"
        )
        digest.update(head.encode())
        digest.update(np.asarray(prompt.token_ids, "<i4").tobytes())
        if item.embeds is not None:
            spec = item.embeds
            noise = f"{spec.noise!r} {spec.seed} {spec.index}" if spec.noise else "no noise"
            digest.update(f"{noise} {len(spec.mask)}\n".encode())
            digest.update(spec.mask + np.asarray(spec.decoy_ids, "<i4").tobytes())
        if prompt.embeds is not None:
            digest.update(prompt.embeds.data)
    return digest.hexdigest()
