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

from runner.core import FloatType, Image, Prompt, Request, SuppliedRows
from runner.inputs.float_bits import rounded
from runner.models import ModelSpec, VisionSpec
from suite.arrival_kinds import is_closed_loop, most_at_once
from suite.demand import plan_demand
from suite.embeds_file import FileRows
from suite.errors import KeyedError, SuiteError
from suite.need import ListedStep, Need, Origin, SharedPrefix
from suite.prompt_drawing import (
    Group,
    Groups,
    block_text,
    exact_runs,
    joined_runs,
    other_ids,
    supplied_runs,
)
from suite.sampling import Sampling
from suite.scenario import Case
from suite.seeding import derived_seed, seeded
from suite.traffic import Traffic

RequestKind = Literal["text", "image", "pure", "spliced", "image+spliced"]
Embed = Callable[[Sequence[int]], npt.NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class EmbedsSpec:
    """How a request's embeddings are made from its ids.

    `mask` has a byte a position, 1 where the row is supplied, and `decoy_ids` are the ids that go beside
    the rows: at a supplied position never the right one, so that a runner which looks it up is caught. Both
    are empty where the whole prompt is supplied. Noise is normal, of `noise` times the rows' own standard
    deviation, drawn from (seed, index); that on the first `num_shared` positions is the group's, drawn from
    (seed, group) for all of `shared_ids` and of their standard deviation.
    """

    mask: bytes
    decoy_ids: tuple[int, ...]
    noise: float
    seed: int
    index: int
    num_shared: int = 0
    group: int = 0
    shared_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """A request and when it comes, in seconds from the start of the run, or before which step of a list.

    `request` has its prompt as ids; one from a file has no ids and brings its rows. `embeds` says how an arm
    with prompt_embeds gets it; None: as it is.
    """

    request: Request
    arrival_s: float
    kind: RequestKind
    num_image_tokens: int  # positions that image rows fill; the ids around them are not among them
    num_supplied: int = 0  # positions whose row is supplied under an arm with prompt_embeds
    embeds: EmbedsSpec | None = None
    ask: int | None = None  # before the step with this index; None: by time


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in order of arrival. `hash` covers ids, images, times, how many at once, sampling, which
    positions are supplied and the noise on them; `notes` are for people. `begins_alike`: some prompts are
    meant to. `steps`: what the requests must make of any arm, where the traffic is a list of steps. `dtype`:
    what supplied rows are made in, the model's own, so that nothing is cast in a run.
    """

    requests: tuple[WorkloadRequest, ...]
    hash: str
    notes: tuple[str, ...]
    begins_alike: bool = False
    steps: tuple[ListedStep, ...] = ()
    dtype: FloatType = "float32"


def build_workload(case: Case, seed: int) -> Workload:
    """Draw the requests of a case; SuiteError where one could never run."""
    traffic, model = case.scenario.traffic, case.model_spec
    try:
        demand = plan_demand(traffic, model, case.runner_config, seed)
    except KeyedError as error:
        raise SuiteError(f"{case.scenario.path}: {error.key}: {error}") from None
    if demand.origin is not None:
        traffic, seed = demand.origin.traffic, demand.origin.seed
    images = _draw_images(model.vision, demand.needs, traffic.distinct_images, seed)
    drawing = _Drawing(model, seed, traffic.sampling, traffic.ignore_eos, traffic.embeds_noise)
    width = max(4, len(str(len(demand.needs) - 1)))
    requests = [
        drawing.request(f"request-{index:0{width}d}", index, need, images)
        for index, need in enumerate(demand.needs)
    ]
    begins_alike = any(need.prefix is not None or need.blocks is not None for need in demand.needs)
    listed = [replace(item, ask=need.ask) for item, need in zip(requests, demand.needs, strict=True)]
    if demand.origin is not None:
        _check_origin(
            case, demand.origin, _hash(requests if traffic.steps is None else listed, _pace(traffic))
        )
    found = _hash(listed, _pace(traffic))
    dtype = case.runner_config.dtype
    return Workload(tuple(listed), found, demand.notes, begins_alike, demand.steps, dtype)


def _check_origin(case: Case, origin: Origin, found: str) -> None:
    if found != origin.workload_hash:
        raise SuiteError(
            f"{case.scenario.path}: traffic.steps.run is {origin.run_id!r}, whose requests had the hash "
            f"{origin.workload_hash} and now have {found}: a file or a program that they are made by has "
            "changed; record the run again"
        )


def materialise(workload: Workload, embed: Embed) -> tuple[WorkloadRequest, ...]:
    """The requests as an arm with prompt_embeds gets them; `embed` gives float32 rows [ids, hidden]."""
    return tuple(
        item
        if item.embeds is None
        else replace(item, request=_with_rows(item.request, item.embeds, embed, workload.dtype))
        for item in workload.requests
    )


def _with_rows(request: Request, spec: EmbedsSpec, embed: Embed, dtype: FloatType) -> Request:
    ids = request.prompt.token_ids
    is_supplied = np.frombuffer(spec.mask or b"\1" * len(ids), np.bool_)
    looked_up = embed([ids[position] for position in np.flatnonzero(is_supplied)])
    rows = np.zeros((len(ids), looked_up.shape[1]), np.float32)
    rows[is_supplied] = looked_up + _noise(looked_up, is_supplied, spec, embed)
    data = rounded(rows, dtype).tobytes()
    given = SuppliedRows(data, len(ids), rows.shape[1], dtype, spec.mask or None)
    return replace(request, prompt=Prompt(spec.decoy_ids, request.prompt.images, given))


def _noise(
    rows: npt.NDArray[np.float32], is_supplied: npt.NDArray[np.bool_], spec: EmbedsSpec, embed: Embed
) -> npt.NDArray[np.float32] | float:
    """For each supplied row: the group's at shared positions, the request's own behind them."""
    if not spec.noise:
        return 0.0
    shared = np.flatnonzero(is_supplied[: spec.num_shared])
    own = _normal(rows[len(shared) :], spec.noise, seeded(spec.seed, "embeds noise", spec.index))
    if not len(shared):
        return own
    generator = seeded(spec.seed, "prefix embeds noise", spec.group)
    return np.concatenate([_normal(embed(spec.shared_ids), spec.noise, generator)[shared], own])


def _normal(
    rows: npt.NDArray[np.float32], noise: float, generator: np.random.Generator
) -> npt.NDArray[np.float32]:
    """Noise for rows, of `noise` times their own spread."""
    if not rows.size:
        return np.zeros_like(rows)
    drawn = generator.standard_normal(rows.shape, np.float32)
    return drawn * np.float32(noise * float(rows.std(dtype=np.float64)))


class _Drawing:
    """Draws one request after the other; each part of each has a seed of its own."""

    def __init__(
        self, model: ModelSpec, seed: int, sampling: Sampling, ignore_eos: bool, noise: float
    ) -> None:
        self._vision = model.vision
        self._rows_per_image = model.vision.rows_per_image if model.vision else 0
        self._text_ids = np.setdiff1d(np.arange(model.vocab_size), sorted(model.reserved_ids))
        self._groups = Groups(self._text_ids, seed)
        self._seed = seed
        self._sampling = sampling
        self._ignore_eos = ignore_eos
        self._noise = noise

    def request(self, request_id: str, index: int, need: Need, images: Iterator[Image]) -> WorkloadRequest:
        own = tuple(next(images) for _ in range(need.num_images))
        own_seed = derived_seed(self._seed, "sampling", index)
        sampling = self._sampling.params(need.output_tokens, self._ignore_eos, own_seed)
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
        """Text with each image's placeholders at its place; which of it is text."""
        text = self._text(need, index)
        if not need.num_images:
            return tuple(text), np.ones(len(text), np.bool_)
        assert self._vision is not None, "images were planned for a text model"
        cuts = self._image_places(need, index)
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

    def _text(self, need: Need, index: int) -> list[int]:
        """Uniformly drawn text ids, behind those of the request's group, or those of its blocks."""
        if need.blocks is not None:
            return block_text(self._text_ids, need.blocks, self._seed)
        drawn = seeded(self._seed, "text", index).integers(0, len(self._text_ids), size=need.text_tokens)
        text: list[int] = self._text_ids[drawn].tolist()
        if need.prefix is not None:
            text[: need.prefix.num_tokens] = self._groups.of(need.prefix).ids[: need.prefix.num_tokens]
        return text

    def _image_places(self, need: Need, index: int) -> list[int]:
        """Text positions before which images stand: drawn behind shared text, or at its end if shared."""
        if need.blocks is not None:
            return [need.text_tokens] * need.num_images
        first = 0
        if need.prefix is not None:
            first = need.prefix.num_tokens
            if need.prefix.has_shared_images:
                return [first] * need.num_images
        generator = seeded(self._seed, "image positions", index)
        places: list[int] = generator.integers(first, need.text_tokens + 1, size=need.num_images).tolist()
        return sorted(places)

    def _embeds(
        self, need: Need, index: int, ids: tuple[int, ...], is_text: npt.NDArray[np.bool_]
    ) -> EmbedsSpec | None:
        if need.embeds is None:
            return None
        spec = EmbedsSpec(b"", (), self._noise, self._seed, index)
        group = None
        if need.prefix is not None:
            group = self._groups.of(need.prefix)
            spec = replace(
                spec,
                num_shared=need.prefix.num_tokens,
                group=need.prefix.group,
                shared_ids=group.ids,
            )
        if need.embeds == "pure":
            return spec
        mask = np.zeros(len(ids), np.uint8)
        mask[np.flatnonzero(is_text)[self._supplied_text(need, index, group)]] = 1
        decoys = self._decoys(ids, np.flatnonzero(mask), index)
        if group is not None:
            is_shared = np.flatnonzero(mask[: spec.num_shared])
            decoys[is_shared] = group.decoys[is_shared]
        return replace(spec, mask=mask.tobytes(), decoy_ids=tuple(decoys.tolist()))

    def _supplied_text(self, need: Need, index: int, group: Group | None) -> npt.NDArray[np.int64]:
        """Which of the text positions are supplied."""
        generator = seeded(self._seed, "embeds positions", index)
        if need.num_supplied is not None:
            return exact_runs(need.text_tokens, need.num_supplied, generator)
        if group is None or need.prefix is None:
            return supplied_runs(need.text_tokens, generator)
        num_own = need.text_tokens - need.prefix.num_tokens
        own = supplied_runs(num_own, generator) if num_own else np.zeros(0, np.int64)
        return joined_runs(group, need.prefix, own, need.text_tokens)

    def _decoys(
        self, ids: tuple[int, ...], supplied: npt.NDArray[np.int64], index: int
    ) -> npt.NDArray[np.int64]:
        """The prompt's ids with another text id at each supplied position."""
        decoys = np.array(ids, np.int64)
        generator = seeded(self._seed, "embeds decoys", index)
        decoys[supplied] = other_ids(self._text_ids, decoys[supplied], generator)
        return decoys


def _file_prompt(rows: FileRows) -> Prompt:
    return Prompt((), embeds=SuppliedRows(rows.data, rows.num_rows, rows.hidden_size, rows.cast_to))


def _kind(need: Need) -> RequestKind:
    if not need.num_images:
        return need.embeds or "text"
    return cast(RequestKind, f"image+{need.embeds}") if need.embeds else "image"


def _draw_images(
    vision: VisionSpec | None, needs: Sequence[Need], distinct: int | None, seed: int
) -> Iterator[Image]:
    """One image after the other, for each place that needs one.

    With `distinct` images to draw from, each is used as often as the others, give or take one, in an order
    the seed draws. A group that shares images has its own, the first of each request being the same one.
    """
    count = sum(need.num_images for need in needs)
    if vision is None or not count:
        return
    num_distinct = min(distinct or count, count)
    order = iter(seeded(seed, "image order").permutation(np.arange(count) % num_distinct).tolist())
    made: dict[tuple[str, int], Image] = {}
    for need in needs:
        for place in range(need.num_images):
            key = _image_key(need.prefix, place, next(order))
            if key not in made:
                pixels = seeded(seed, *key).integers(0, 256, vision.image_shape, np.uint8)
                made[key] = Image(pixels.tobytes(), vision.image_shape)
            yield made[key]


def _image_key(prefix: SharedPrefix | None, place: int, number: int) -> tuple[str, int]:
    """What an image is drawn from, beside the seed."""
    if prefix is not None and prefix.has_shared_images:
        return f"prefix image {prefix.group}", place
    return "image", number


def _pace(traffic: Traffic) -> str:
    """What decides beside the times when requests are sent; nothing where nothing else does."""
    most = most_at_once(traffic.arrivals)
    if most is None:
        return ""
    return f"{'closed loop' if is_closed_loop(traffic.arrivals) else 'open loop'}, at most {most} at once\n"


def _hash(requests: Sequence[WorkloadRequest], pace: str) -> str:
    digest = hashlib.sha256(pace.encode())
    for item in requests:
        prompt, sampling = item.request.prompt, item.request.sampling
        head = (
            f"{item.request.request_id} {item.kind} {item.arrival_s!r} {sampling!r} "
            f"{len(prompt)} {' '.join(image.key for image in prompt.images)}"
            f"{'' if item.ask is None else f' before step {item.ask}'}\n"
        )
        digest.update(head.encode())
        digest.update(np.asarray(prompt.token_ids, "<i4").tobytes())
        if item.embeds is not None:
            spec = item.embeds
            noise = f"{spec.noise!r} {spec.seed} {spec.index}" if spec.noise else "no noise"
            shared = f"{spec.num_shared} of {len(spec.shared_ids)} in {spec.group}" if spec.num_shared else ""
            digest.update(f"{noise} {len(spec.mask)} {shared}\n".encode())
            digest.update(spec.mask + np.asarray(spec.decoy_ids, "<i4").tobytes())
        if prompt.embeds is not None:
            digest.update(prompt.embeds.data)
    return digest.hexdigest()
