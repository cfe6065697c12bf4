"""What a request must satisfy before the scheduler sees it. Standard library only."""

from __future__ import annotations

from itertools import pairwise

from runner.config import RunnerConfig
from runner.core import ImageSpan, Request, RequestError, RequestState, SuppliedRows
from runner.models import ModelSpec, VisionSpec


def admit(
    request: Request, model: ModelSpec, config: RunnerConfig, prompt_embeds: bool = True
) -> RequestState:
    """The request's state, its image spans found; RequestError says why it cannot be served.

    `prompt_embeds`: whether supplied rows are accepted at all.
    """
    _check_length(request, config)
    _check_ids(request, model)
    if request.prompt.embeds is not None:
        _check_embeds(request, request.prompt.embeds, model, config, prompt_embeds)
    return RequestState(request=request, spans=_image_spans(request, model, config))


def _check_length(request: Request, config: RunnerConfig) -> None:
    name, length = request.request_id, len(request.prompt)
    if length == 0:
        raise RequestError(f"request {name}: the prompt is empty; give it at least one token")
    if length >= config.max_model_len:
        raise RequestError(
            f"request {name}: the prompt has {length} tokens, but runner.max_model_len is "
            f"{config.max_model_len} and one position must be left for output; shorten it"
        )
    longest = min(length + request.sampling.max_tokens, config.max_model_len)
    capacity = config.num_blocks * config.block_size
    if longest > capacity:
        raise RequestError(
            f"request {name}: prompt and output take {longest} positions, the cache holds {capacity} "
            f"(runner.num_blocks x runner.block_size); raise runner.num_blocks"
        )


def _check_ids(request: Request, model: ModelSpec) -> None:
    for position, token_id in enumerate(request.prompt.token_ids):
        _check_id(request, model, token_id, f"at position {position}")
    for token_id in request.sampling.stop_token_ids:
        _check_id(request, model, token_id, "among stop_token_ids")
    for word in request.sampling.bad_words:
        for token_id in word:
            _check_id(request, model, token_id, "in bad_words")


def _check_id(request: Request, model: ModelSpec, token_id: int, where: str) -> None:
    if not 0 <= token_id < model.vocab_size:
        raise RequestError(
            f"request {request.request_id}: token id {token_id} {where} is outside "
            f"{model.name}'s vocabulary of {model.vocab_size}"
        )


def _check_embeds(
    request: Request,
    embeds: SuppliedRows,
    model: ModelSpec,
    config: RunnerConfig,
    prompt_embeds: bool,
) -> None:
    name, num_ids = request.request_id, len(request.prompt.token_ids)
    if not prompt_embeds:
        raise RequestError(f"request {name}: it supplies embeddings, but this arm takes token ids only")
    if embeds.hidden_size != model.hidden_size:
        raise RequestError(
            f"request {name}: supplied rows have {embeds.hidden_size} values, "
            f"{model.name} takes {model.hidden_size}"
        )
    if (embeds.mask is None) != (num_ids == 0):
        raise RequestError(
            f"request {name}: embeddings come either alone, or with as many token ids and a mask; "
            f"got {num_ids} token ids and {'no' if embeds.mask is None else 'a'} mask"
        )
    if num_ids not in (0, embeds.num_rows):
        raise RequestError(
            f"request {name}: {num_ids} token ids beside {embeds.num_rows} supplied rows; "
            f"a spliced prompt has one of each at every position"
        )
    if embeds.num_rows > config.num_resident_rows:
        raise RequestError(
            f"request {name}: {embeds.num_rows} supplied rows, the arena holds "
            f"{config.num_resident_rows}; raise runner.num_resident_rows"
        )


def _image_spans(request: Request, model: ModelSpec, config: RunnerConfig) -> tuple[ImageSpan, ...]:
    """Runs of placeholders, cut into one span an image; both counts are named when they disagree."""
    images = request.prompt.images
    if model.vision is None:
        if images:
            raise RequestError(
                f"request {request.request_id}: {model.name} takes no images, got {len(images)}"
            )
        return ()
    vision = model.vision
    _check_shapes(request, vision)
    _check_encoder_budget(request, vision, config)
    positions = [
        position
        for position, token_id in enumerate(request.prompt.token_ids)
        if token_id == vision.image_token_id and not _is_supplied(request, position)
    ]
    expected = len(images) * vision.rows_per_image
    if len(positions) != expected:
        raise RequestError(
            f"request {request.request_id}: {len(positions)} image placeholders in the prompt, but "
            f"{len(images)} images give {expected} image tokens"
        )
    spans = tuple(_spans(request, vision, positions, model.attends_both_ways))
    if model.attends_both_ways:
        _check_whole_images(request, spans, config)
    return spans


def _check_whole_images(request: Request, spans: tuple[ImageSpan, ...], config: RunnerConfig) -> None:
    """Images that attend in both directions: each fits a step, and none touches the next."""
    name, budget = request.request_id, config.max_num_batched_tokens
    for span in spans:
        if span.count > budget:
            raise RequestError(
                f"request {name}: an image takes {span.count} tokens and is computed in one step, since it "
                f"attends in both directions, but runner.max_num_batched_tokens is {budget}; raise it"
            )
    for span, after in pairwise(spans):
        if span.end == after.first:  # the model tells images apart by what lies between them
            raise RequestError(
                f"request {name}: images {span.index} and {after.index} touch at position {after.first}, and "
                "attending in both directions they would be one image; put a token between them"
            )


def _spans(request: Request, vision: VisionSpec, positions: list[int], is_whole: bool) -> list[ImageSpan]:
    spans = []
    for index, image in enumerate(request.prompt.images):
        own = positions[index * vision.rows_per_image : (index + 1) * vision.rows_per_image]
        if own[-1] - own[0] + 1 != len(own):
            raise RequestError(
                f"request {request.request_id}: the {len(own)} placeholders of image {index} are not "
                f"adjacent (positions {own[0]} to {own[-1]})"
            )
        spans.append(ImageSpan(image.key, index, first=own[0], count=len(own), is_whole=is_whole))
    return spans


def _check_shapes(request: Request, vision: VisionSpec) -> None:
    for index, image in enumerate(request.prompt.images):
        if image.shape != vision.image_shape:
            raise RequestError(
                f"request {request.request_id}: image {index} has shape {image.shape}, the model takes "
                f"{vision.image_shape}"
            )


def _check_encoder_budget(request: Request, vision: VisionSpec, config: RunnerConfig) -> None:
    budget = config.max_encoder_tokens_per_step
    if request.prompt.images and vision.rows_per_image > budget:
        raise RequestError(
            f"request {request.request_id}: an image takes {vision.rows_per_image} encoder tokens, but "
            f"runner.max_encoder_tokens_per_step is {budget} and an image is encoded in one step; raise it"
        )


def _is_supplied(request: Request, position: int) -> bool:
    embeds = request.prompt.embeds
    return embeds is not None and embeds.is_supplied(position)
