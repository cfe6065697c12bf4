"""The requests of a case, drawn from a seed: the same ids, images and times in every process."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from runner.core import Image, Prompt, Request, SamplingParams
from runner.models import ModelSpec, VisionSpec
from suite.demand import Need, plan_demand, seeded
from suite.errors import KeyedError, SuiteError
from suite.scenario import Case


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """A request and when it comes, in seconds from the start of the run."""

    request: Request
    arrival_s: float
    kind: Literal["text", "image"]
    num_image_tokens: int  # positions that image rows fill; the ids around them are not among them


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in order of arrival. `hash` covers ids, images, times and sampling; `notes` are for people."""

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
    text_ids = _text_ids(model)
    width = max(4, len(str(len(demand.needs) - 1)))
    requests = []
    for index, need in enumerate(demand.needs):
        own = tuple(next(images) for _ in range(need.num_images))
        request = Request(
            request_id=f"request-{index:0{width}d}",
            prompt=Prompt(_prompt_ids(model.vision, text_ids, need, seed, index), own),
            sampling=SamplingParams(need.output_tokens, ignore_eos=traffic.ignore_eos),
        )
        rows = model.vision.rows_per_image if model.vision else 0
        kind: Literal["text", "image"] = "image" if own else "text"
        requests.append(WorkloadRequest(request, need.arrival_s, kind, rows * len(own)))
    return Workload(tuple(requests), _hash(requests), demand.notes)


def _text_ids(model: ModelSpec) -> npt.NDArray[np.int64]:
    """The ids that stand for text, in order."""
    return np.setdiff1d(np.arange(model.vocab_size), sorted(model.reserved_ids))


def _prompt_ids(
    vision: VisionSpec | None,
    text_ids: npt.NDArray[np.int64],
    need: Need,
    seed: int,
    index: int,
) -> tuple[int, ...]:
    """Uniformly drawn text with each image's placeholders at a drawn position."""
    drawn = seeded(seed, "text", index).integers(0, len(text_ids), size=need.text_tokens)
    text = text_ids[drawn].tolist()
    if not need.num_images:
        return tuple(text)
    assert vision is not None, "images were planned for a text model"
    generator = seeded(seed, "image positions", index)
    cuts = sorted(generator.integers(0, need.text_tokens + 1, size=need.num_images).tolist())
    ids: list[int] = []
    for first, end in zip([0, *cuts], [*cuts, need.text_tokens], strict=True):
        ids += text[first:end]
        if len(ids) < need.text_tokens + need.num_images * len(vision.placeholder_ids()):
            ids += vision.placeholder_ids()
    return tuple(ids)


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
            f"{item.request.request_id} {item.arrival_s!r} {sampling.max_tokens} {sampling.ignore_eos} "
            f"{len(prompt.token_ids)} {' '.join(image.key for image in prompt.images)}\n"
        )
        digest.update(head.encode())
        digest.update(np.asarray(prompt.token_ids, "<i4").tobytes())
    return digest.hexdigest()
