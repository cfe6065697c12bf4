"""Whether a runner's tokens are right: transformers alone, teacher-forced over the runner's output.

Holds nothing of how a runner computes: no paging, no packing, no cache, one forward a request. It
has its own image preprocessing and leaves the masks to transformers (causal and sliding; where an image's
rows attend in both directions, it is told which tokens are an image's), so that a fault of the runner's has
no twin here.
"""

from __future__ import annotations

import functools
import inspect
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DynamicCache

from runner.core import FloatType, Image, Prompt, Request, RunnerError, SuppliedRows
from runner.models import ModelSpec, VisionSpec
from runner.weights import build_model
from suite.record import TokenVerdict
from suite.sampling_reference import SamplingReference
from suite.tolerance import TOLERANCES, Tolerance

_FLOAT32 = TOLERANCES["float32"]

_TYPES: Mapping[FloatType, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

_SHOWN_BEFORE = 2
_SHOWN_AFTER = 3


@dataclass(frozen=True, slots=True)
class Check:
    """One request's output tokens: each is right, wrong or a tie. Indices count output tokens.

    `expected` (the reference's ids) and `produced` (the runner's) start at index `shown_from` and
    surround the first wrong one; they are empty where nothing is wrong.
    """

    num_right: int = 0
    num_wrong: int = 0
    num_ties: int = 0
    first_wrong: int | None = None
    first_tie: int | None = None
    shown_from: int = 0
    expected: tuple[int, ...] = ()
    produced: tuple[int, ...] = ()

    @property
    def num_checked(self) -> int:
        return self.num_right + self.num_wrong + self.num_ties


def judge(logits: torch.Tensor, output_ids: Sequence[int], tolerance: Tolerance = _FLOAT32) -> Check:
    """Hold output ids against teacher-forced float32 logits, (outputs, vocabulary).

    Right: the id's logit is the maximum. Tie: it is below the maximum by less than the tolerance's
    margin, in standard deviations of that position's logits. Wrong: anything else, also an id outside
    the vocabulary or logits that are not numbers.
    """
    if not output_ids:
        return Check()
    num_tokens, vocab_size = logits.shape
    assert num_tokens == len(output_ids), f"{len(output_ids)} ids, {num_tokens} rows of logits"
    ids = torch.tensor(output_ids, device=logits.device)
    is_known = (ids >= 0) & (ids < vocab_size)
    chosen = logits.gather(1, ids.clamp(0, vocab_size - 1).unsqueeze(1)).squeeze(1)
    margin = logits.amax(dim=1) - chosen
    right = (margin == 0) & is_known
    tie = ~right & (margin < tolerance.margin * logits.std(dim=1)) & is_known
    return _check(right, tie, output_ids, lambda index: int(logits[index].argmax()))


def judge_sampled(
    logits: torch.Tensor,
    output_ids: Sequence[int],
    reference: SamplingReference,
    tolerance: Tolerance = _FLOAT32,
) -> Check:
    """As `judge`, for a request with sampling parameters of its own.

    Right: the id has the highest score, after all processing and with the request's own noise. Tie: it
    would have for some logits, each less than half of the margin from these: where two
    scores change places, or a token at the edge of top-k, top-p or min-p is kept or not.
    """
    if not output_ids:
        return Check()
    rows, margins = logits.double().cpu().numpy(), (tolerance.margin * logits.std(dim=1)).tolist()
    are_numbers = logits.amax(dim=1).isfinite().tolist()
    right, tie = torch.zeros(2, len(output_ids), dtype=torch.bool)
    for index, token in enumerate(output_ids):
        before = output_ids[:index]
        if are_numbers[index] and 0 <= token < logits.shape[1]:
            right[index] = reference.is_right(rows[index], before, token)
            tie[index] = not right[index] and reference.is_tie(rows[index], before, token, margins[index])
    return _check(right, tie, output_ids, lambda index: reference.token(rows[index], output_ids[:index]))


def _check(
    right: torch.Tensor, tie: torch.Tensor, output_ids: Sequence[int], expected: Callable[[int], int]
) -> Check:
    """What is neither right nor a tie is wrong; `expected` gives the reference's id at an index."""
    first_wrong = _first(~(right | tie))
    shown_from = max(0, (first_wrong or 0) - _SHOWN_BEFORE)
    shown_to = shown_from if first_wrong is None else first_wrong + _SHOWN_AFTER
    return Check(
        num_right=int(right.sum()),
        num_wrong=int((~(right | tie)).sum()),
        num_ties=int(tie.sum()),
        first_wrong=first_wrong,
        first_tie=_first(tie),
        shown_from=shown_from,
        expected=tuple(expected(index) for index in range(shown_from, min(shown_to, len(output_ids)))),
        produced=tuple(output_ids[shown_from:shown_to]),
    )


def _first(mask: torch.Tensor) -> int | None:
    return int(mask.nonzero()[0]) if bool(mask.any()) else None


def max_ties(num_checked: int, tolerance: Tolerance = _FLOAT32) -> int:
    """How many ties are excused. Rounded up: one tie is never held against a short run."""
    return math.ceil(tolerance.max_tie_share * num_checked)


def verdict(checks: Mapping[str, Check], tolerance: Tolerance = _FLOAT32) -> tuple[TokenVerdict, str | None]:
    """The checks of a run's requests, by request id, as one verdict, and a note if ties decided it.

    More ties than `max_ties` are a fault and no rounding. Which of them rounding would explain
    cannot be known, so all of them then count as wrong.
    """
    num_checked = sum(check.num_checked for check in checks.values())
    num_ties = sum(check.num_ties for check in checks.values())
    allowed = max_ties(num_checked, tolerance)
    too_many = num_ties > allowed
    excess = num_ties if too_many else 0
    faults = {
        request_id: index
        for request_id, check in checks.items()
        if (index := _first_fault(check, too_many)) is not None
    }
    tokens = TokenVerdict(
        num_checked=num_checked,
        num_right=sum(check.num_right for check in checks.values()),
        num_wrong=sum(check.num_wrong for check in checks.values()) + excess,
        num_ties=num_ties - excess,
        num_requests_right=len(checks) - len(faults),
        num_requests_wrong=len(faults),
        first_wrong=next(iter(faults.items()), None),
    )
    note = (
        f"{num_ties} of {num_checked} tokens are ties, and at most {allowed} are excused "
        f"({tolerance.max_tie_share:.1%}, rounded up): all of them count as wrong"
    )
    return tokens, note if too_many else None


def _first_fault(check: Check, ties_are_wrong: bool) -> int | None:
    """The index of a check's first wrong token, or tie where ties are wrong."""
    candidates = (check.first_wrong, check.first_tie if ties_are_wrong else None)
    return min((index for index in candidates if index is not None), default=None)


def patchify(pixels: torch.Tensor, vision: VisionSpec) -> torch.Tensor:
    """Normalised (images, 3, height, width) as Qwen2-VL's patches, (patches, 3 * 2 * patch_size ** 2).

    One patch after the other: merged row, merged column, then the patches inside it; two equal frames.
    """
    size, merge = vision.patch_size, vision.merge_size
    patches = []
    for image in pixels:
        for row, column in np.ndindex(vision.grid_height, vision.grid_width):
            for inner_row, inner_column in np.ndindex(merge, merge):
                top = (row * merge + inner_row) * size
                left = (column * merge + inner_column) * size
                patch = image[:, top : top + size, left : left + size]
                patches.append(torch.stack((patch, patch), dim=1).flatten())
    return torch.stack(patches)


def preprocess(images: Sequence[Image], vision: VisionSpec) -> torch.Tensor:
    """Pixels rescaled to 0..1, then normalised by channel: float32, (images, 3, height, width)."""
    for image in images:
        assert image.shape == vision.image_shape, f"an image of shape {image.shape}"
    arrays = [np.frombuffer(image.data, np.uint8).reshape(image.shape) for image in images]
    rescaled = torch.from_numpy(np.stack(arrays)).to(torch.float32) * (1 / 255)
    mean, std = torch.tensor(vision.channel_mean), torch.tensor(vision.channel_std)
    return ((rescaled - mean) / std).permute(0, 3, 1, 2).contiguous()


class Reference:
    """A preset's unmodified transformers model, and the few calls the oracle makes of it.

    The model computes in float32, where it lies; `dtype` is the type its weights were rounded to, as supplied
    rows are.
    """

    def __init__(self, spec: ModelSpec, model: Any, dtype: FloatType = "float32") -> None:
        self.spec = spec
        self._model = model
        self._dtype = dtype
        self._text = model.model.language_model if spec.is_multimodal else model.model
        self._place = next(model.parameters()).device

    def embed(self, token_ids: Sequence[int]) -> torch.Tensor:
        """Embeddings, (1, tokens, hidden). Ids outside the vocabulary take its nearest end."""
        ids = torch.tensor([token_ids], device=self._place).clamp(0, self.spec.vocab_size - 1)
        embeds: torch.Tensor = self._text.get_input_embeddings()(ids)
        return embeds

    def embed_prompt(self, prompt: Prompt) -> torch.Tensor:
        """As `embed`, with the images' rows, in order, at the placeholders, and supplied rows as given."""
        embeds = self.embed(prompt.token_ids or (0,) * len(prompt))
        vision = self.spec.vision
        if vision is None:
            assert not prompt.images, f"{self.spec.name} takes no images"
        else:
            places = _placeholders(prompt, vision)
            num_rows = len(prompt.images) * vision.rows_per_image
            assert len(places) == num_rows, f"{len(places)} placeholders, {num_rows} image rows"
            if prompt.images:
                embeds[0, places] = self._image_rows(prompt.images, vision)
        if prompt.embeds is not None:
            supplied = [i for i in range(len(prompt)) if prompt.embeds.is_supplied(i)]
            embeds[0, supplied] = self._given_rows(prompt.embeds)[supplied]
        return embeds

    def _given_rows(self, embeds: SuppliedRows) -> torch.Tensor:
        """(rows, hidden) of whatever type, rounded to the runner's."""
        rows = torch.frombuffer(bytearray(embeds.data), dtype=_TYPES[embeds.dtype])
        return rows.view(embeds.num_rows, -1).to(_TYPES[self._dtype]).float().to(self._place)

    def _image_rows(self, images: Sequence[Image], vision: VisionSpec) -> torch.Tensor:
        """Rows of all images, one after the other: (rows, hidden)."""
        pixels = preprocess(images, vision).to(self._place)
        if not vision.patch_size:
            features = self._model.model.get_image_features(pixels).pooler_output
        else:
            grids = torch.tensor([_patch_grid(vision)] * len(images), device=self._place)
            patches = patchify(pixels, vision)
            features = self._model.model.get_image_features(patches, grids).pooler_output
        return torch.cat([rows.flatten(0, -2) for rows in features])

    def positions(self, prompt: Prompt, num_tokens: int) -> torch.Tensor | None:
        """M-RoPE positions (3, 1, tokens) by transformers' own rule; None where a model has one axis.

        Supplied rows count as text: an image handed over as embeddings keeps no grid.
        """
        vision = self.spec.vision
        if self.spec.rope != "mrope" or vision is None:
            return None
        kinds = torch.zeros(1, num_tokens, dtype=torch.int32, device=self._place)
        kinds[0, _placeholders(prompt, vision)] = 1
        grids = [_patch_grid(vision)] * len(prompt.images)
        given = torch.tensor(grids, device=self._place) if grids else None
        ids = torch.zeros(1, num_tokens, dtype=torch.int64, device=self._place)
        positions: torch.Tensor = self._model.model.get_rope_index(ids, kinds, image_grid_thw=given)[0]
        return positions

    def token_types(self, prompts: Sequence[Prompt], num_tokens: int) -> torch.Tensor | None:
        """1 at image rows, else 0: (requests, tokens); None where images attend causally, as text does.

        Supplied rows count as text here too.
        """
        vision = self.spec.vision
        if vision is None or self.spec.image_attention == "causal":
            return None
        types = torch.zeros(len(prompts), num_tokens, dtype=torch.int64, device=self._place)
        for row, prompt in zip(types, prompts, strict=True):
            row[_placeholders(prompt, vision)] = 1
        return types

    def hidden(
        self,
        embeds: torch.Tensor,
        cache: DynamicCache | None = None,
        positions: torch.Tensor | None = None,
        types: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Last hidden states of (requests, tokens, hidden), under transformers' own masks.

        With `types` they are those of the whole model, which alone makes masks of them.
        """
        model, extra = (self._text, {}) if types is None else (self._model.model, {"token_type_ids": types})
        kept = {} if cache is None else {cache_name(model): cache}
        states: torch.Tensor = model(
            inputs_embeds=embeds, position_ids=positions, use_cache=cache is not None, **kept, **extra
        ).last_hidden_state
        return states

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Float32 logits of hidden states: the head, then the model's soft cap if it has one."""
        logits: torch.Tensor = self._model.lm_head(hidden).float()
        cap = getattr(self._text.config, "final_logit_softcapping", None)
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def greedy(self, prompts: Sequence[Prompt], num_tokens: int) -> list[list[int]]:
        """Greedy continuations of equally long prompts, as one batch with transformers' cache."""
        cache = DynamicCache(config=self._text.config)
        embeds = torch.cat([self.embed_prompt(prompt) for prompt in prompts])
        types = self.token_types(prompts, embeds.shape[1])
        sampled: list[torch.Tensor] = []
        for _ in range(num_tokens):
            hidden = self.hidden(embeds, cache, types=types)
            sampled.append(self.logits(hidden[:, -1:]).argmax(dim=-1))
            embeds, types = self._text.get_input_embeddings()(sampled[-1]), None
        outputs: list[list[int]] = torch.cat(sampled, dim=1).tolist()
        return outputs


def cache_name(model: torch.nn.Module) -> str:
    """What a model of transformers calls the cache it is given: older ones drop the newer name in silence."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def _placeholders(prompt: Prompt, vision: VisionSpec) -> list[int]:
    """Positions of image rows: an image token whose row is not supplied."""
    embeds = prompt.embeds
    return [
        position
        for position, token in enumerate(prompt.token_ids)
        if token == vision.image_token_id and not (embeds and embeds.is_supplied(position))
    ]


def _patch_grid(vision: VisionSpec) -> tuple[int, int, int]:
    """Frames, rows and columns of patches of one image."""
    return (1, vision.grid_height * vision.merge_size, vision.grid_width * vision.merge_size)


class Oracle:
    """Judges output tokens of one model.

    The model is loaded, and asserted to be diverse, once a process: RunnerError (`assert_diverse`).
    `num_threads` holds within the oracle's own forwards only. `dtype`: what the runner computes in, which
    decides how far rounding may take its logits. `place`: the device of torch that the model lies on.
    """

    def __init__(
        self, model: ModelSpec, num_threads: int = 2, dtype: FloatType = "float32", place: str = "cpu"
    ) -> None:
        self._num_threads = num_threads
        self._tolerance = TOLERANCES[dtype]
        self._checks: dict[tuple[object, ...], Check] = {}
        with self._forwards():
            self._reference = _load(_Preset(repr(model), dtype, place, model))

    def check(self, request: Request, output_ids: Sequence[int]) -> Check:
        """Judge a request's output; the same output of the same content is judged once.

        Sampling parameters are part of the content unless they are plain (greedy and nothing else).
        """
        prompt, output = request.prompt, tuple(output_ids)
        sampling = None if request.sampling.is_plain else request.sampling
        images = tuple(image.key for image in prompt.images)
        content = (prompt.token_ids, images, prompt.embeds, sampling, output)
        if content not in self._checks:
            logits = self.logits(prompt, output)
            if sampling is None:
                self._checks[content] = judge(logits, output, self._tolerance)
            else:
                reference = self._sampling_of(request)
                self._checks[content] = judge_sampled(logits, output, reference, self._tolerance)
        return self._checks[content]

    def probabilities(self, request: Request, output_ids: Sequence[int]) -> NDArray[np.float64]:
        """What each token is sampled with at each output position, given the ids before it, after all
        processing: (outputs, vocabulary)."""
        rows = self.logits(request.prompt, output_ids).double().cpu().numpy()
        reference = self._sampling_of(request)
        found = [reference.probabilities(row, output_ids[:index]) for index, row in enumerate(rows)]
        return np.stack(found) if found else rows

    def logprobs(self, request: Request, output_ids: Sequence[int]) -> NDArray[np.float64]:
        """Log-probabilities by the model's own logits, before any processing: (outputs, vocabulary)."""
        logits = self.logits(request.prompt, output_ids).double()
        found: NDArray[np.float64] = logits.log_softmax(dim=1).cpu().numpy()
        return found

    def _sampling_of(self, request: Request) -> SamplingReference:
        return SamplingReference(request, self._reference.spec.eos_token_id)

    def logits(self, prompt: Prompt, output_ids: Sequence[int]) -> torch.Tensor:
        """Float32 logits for each output token, given all before it: (outputs, vocabulary)."""
        if not output_ids:
            return torch.empty(0, self._reference.spec.vocab_size)
        with self._forwards():
            embeds = self._reference.embed_prompt(prompt)
            if len(output_ids) > 1:  # the last one is judged but feeds nothing
                embeds = torch.cat([embeds, self._reference.embed(output_ids[:-1])], dim=1)
            positions = self._reference.positions(prompt, embeds.shape[1])
            types = self._reference.token_types([prompt], embeds.shape[1])
            hidden = self._reference.hidden(embeds, positions=positions, types=types)
            return self._reference.logits(hidden[0, len(prompt) - 1 :])

    @contextmanager
    def _forwards(self) -> Iterator[None]:
        before = torch.get_num_threads()
        torch.set_num_threads(self._num_threads)
        try:
            with torch.inference_mode():
                yield
        finally:
            torch.set_num_threads(before)


@dataclass(frozen=True, slots=True)
class _Preset:
    """A spec as a cache key, by its text: a spec itself holds a mapping, which has no hash."""

    recipe: str
    dtype: FloatType
    place: str
    spec: ModelSpec = field(compare=False)


@functools.cache
def _load(preset: _Preset) -> Reference:
    """The spec's model, found diverse where its weights are ours. All oracles of a process share it."""
    model = build_model(preset.spec, _TYPES[preset.dtype])
    # Not `.float()`: transformers refuses that of a model that was read from a quantised file.
    for tensor in (*model.parameters(), *filter(torch.is_floating_point, model.buffers())):
        tensor.data = tensor.data.float()
    reference = Reference(preset.spec, model.to(preset.place), preset.dtype)
    if preset.spec.checkpoint is None:
        assert_diverse(reference)
    return reference


_PROBE_SEED = 20240603
_NUM_PROBES = 4
_PROBE_LENGTH = 24
_PROBE_OUTPUT = 32
_MIN_DISTINCT_SHARE = 0.5


def assert_diverse(reference: Reference) -> None:
    """Refuse (RunnerError) a model whose output looks the same whatever the runner did wrong.

    Over a few seeded prompts at least half of 32 greedy tokens are distinct on average, and prompts
    that differ, by one early token or by an image alone, give different outputs.
    """
    name = reference.spec.name
    outputs = reference.greedy(_probe_prompts(reference.spec), _PROBE_OUTPUT)
    share = sum(len(set(output)) for output in outputs) / (len(outputs) * _PROBE_OUTPUT)
    if share < _MIN_DISTINCT_SHARE:
        raise RunnerError(
            f"model {name} is not diverse: {share:.0%} of its output tokens are distinct, at "
            f"least {_MIN_DISTINCT_SHARE:.0%} must be, or no check of tokens could find a fault; "
            "give its random weights a wider spread (weight_std) or an untied head"
        )
    num_alike = sum(left == right for left, right in combinations(outputs, 2))
    if num_alike:
        raise RunnerError(
            f"model {name} is not diverse: {num_alike} of {math.comb(len(outputs), 2)} pairs of "
            "different prompts give the same output, so no check of tokens could tell their rows "
            "apart; give its random weights (and its image projector) a wider spread"
        )


def _probe_prompts(spec: ModelSpec) -> list[Prompt]:
    """Seeded prompts of one length, each again with one early token changed, or its image."""
    draw = random.Random(_PROBE_SEED)
    ids = [token for token in range(spec.vocab_size) if token not in spec.reserved_ids]
    early = _PROBE_LENGTH // 4
    prompts: list[Prompt] = []
    for _ in range(_NUM_PROBES):
        tokens = tuple(draw.choices(ids, k=_PROBE_LENGTH))
        changed = (*tokens[:early], ids[ids.index(tokens[early]) - 1], *tokens[early + 1 :])
        if spec.vision is None:
            prompts += [Prompt(tokens), Prompt(changed)]
            continue
        head = spec.vision.placeholder_ids()
        first, second = (_probe_image(draw, spec.vision) for _ in range(2))
        prompts += [Prompt(head + tokens, (image,)) for image in (first, second)]
        prompts.append(Prompt(head + changed, (first,)))
    return prompts


def _probe_image(draw: random.Random, vision: VisionSpec) -> Image:
    return Image(draw.randbytes(math.prod(vision.image_shape)), vision.image_shape)
