"""Whether a request's tokens are right: transformers alone, one forward a request, teacher-forced.

Embeddings go in as they were given, image rows and M-RoPE positions are transformers' own. Nothing of the
runner's kernels or host half is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from arm_models import MICRO, MICRO_BOTH_WAYS, TINY
from transformers import Gemma3ImageProcessor
from transformers.models.qwen2_vl import Qwen2VLImageProcessor

from runner.core import Image, Prompt, Request, SuppliedRows
from runner.models import ModelSpec
from runner.weights import build_model

TIE_MARGIN = 1e-4  # in standard deviations of the logits


class ArmReference:
    """One model's unmodified transformers twin; verdicts are cached by the request's content and output."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.model: Any = build_model(spec)
        self._text: Any = self.model.model.language_model if spec.is_multimodal else self.model.model
        self._verdicts: dict[tuple[object, ...], int | None] = {}
        self._features: dict[Image, torch.Tensor] = {}

    @torch.inference_mode()
    def embed(self, token_ids: Sequence[int]) -> torch.Tensor:
        """Embeddings [tokens, hidden], scaled as the model scales them."""
        rows: torch.Tensor = self._text.get_input_embeddings()(torch.tensor(token_ids, dtype=torch.long))
        return rows

    @torch.inference_mode()
    def image_rows(self, image: Image) -> torch.Tensor:
        """[rows_per_image, hidden] of one image, by the family's own image processor and tower."""
        if image not in self._features:
            self._features[image] = self._encode(image)
        return self._features[image]

    def prompt_rows(self, prompt: Prompt) -> torch.Tensor:
        """What the model must be given for a prompt: [tokens, hidden]."""
        ids = prompt.token_ids or (0,) * len(prompt)
        rows = self.embed(ids).clone()
        places = self.image_places(prompt)
        if places:
            rows[places] = torch.cat([self.image_rows(image) for image in prompt.images])
        if prompt.embeds is not None:
            supplied = [p for p in range(len(prompt)) if prompt.embeds.is_supplied(p)]
            rows[supplied] = given_rows(prompt.embeds)[supplied]
        return rows

    def image_places(self, prompt: Prompt) -> list[int]:
        """Positions that image rows fill."""
        vision, embeds = self.spec.vision, prompt.embeds
        if vision is None:
            return []
        return [
            position
            for position, token_id in enumerate(prompt.token_ids)
            if token_id == vision.image_token_id and not (embeds is not None and embeds.is_supplied(position))
        ]

    def rope_positions(self, prompt: Prompt, length: int) -> torch.Tensor | None:
        """[3, 1, length] as transformers indexes them; None leaves the positions to the model."""
        vision = self.spec.vision
        if self.spec.rope != "mrope" or vision is None or not prompt.images:
            return None
        places = self.image_places(prompt)
        text_id = 5
        ids = torch.full((1, length), text_id)
        ids[0, places] = vision.image_token_id
        types = torch.zeros_like(ids, dtype=torch.int32)
        types[0, places] = 1
        merge = vision.merge_size
        grid = torch.tensor([[1, vision.grid_height * merge, vision.grid_width * merge]] * len(prompt.images))
        positions: torch.Tensor = self.model.model.get_rope_index(
            input_ids=ids, mm_token_type_ids=types, image_grid_thw=grid
        )[0]
        return positions

    @torch.inference_mode()
    def logits(self, prompt: Prompt, output_ids: Sequence[int]) -> torch.Tensor:
        """[outputs, vocabulary]: for each output token, given all before it."""
        rows = torch.cat([self.prompt_rows(prompt), self.embed(output_ids[:-1])])
        positions = self.rope_positions(prompt, len(rows))
        extra = {} if positions is None else {"position_ids": positions}
        model = self._text
        if self.spec.attends_both_ways:  # of which tokens are an image's only the whole model makes masks
            types = torch.zeros(1, len(rows), dtype=torch.int64)
            types[0, self.image_places(prompt)] = 1
            model, extra = self.model.model, {"token_type_ids": types}
        hidden = model(inputs_embeds=rows[None], use_cache=False, **extra).last_hidden_state[0]
        logits: torch.Tensor = self.model.lm_head(hidden[len(prompt) - 1 :]).float()
        return logits

    def first_wrong(self, request: Request, output_ids: Sequence[int]) -> int | None:
        """Index of the first output token that is not the maximum (ties excused), or None."""
        key = (request.prompt, tuple(output_ids))
        if key not in self._verdicts:
            self._verdicts[key] = self._judge(request.prompt, output_ids)
        return self._verdicts[key]

    def greedy(self, prompt: Prompt, num_tokens: int) -> list[int]:
        """The model's own continuation, computed from the start for every token."""
        output: list[int] = []
        for _ in range(num_tokens):
            output.append(int(self.logits(prompt, [*output, 0])[-1].argmax()))
        return output

    def _judge(self, prompt: Prompt, output_ids: Sequence[int]) -> int | None:
        if any(not 0 <= token_id < self.spec.vocab_size for token_id in output_ids):
            return next(i for i, t in enumerate(output_ids) if not 0 <= t < self.spec.vocab_size)
        logits = self.logits(prompt, output_ids)
        chosen = logits.gather(1, torch.tensor(output_ids)[:, None])[:, 0]
        wrong = logits.amax(dim=1) - chosen >= TIE_MARGIN * logits.std(dim=1)
        return int(wrong.nonzero()[0]) if bool(wrong.any()) else None

    def _encode(self, image: Image) -> torch.Tensor:
        vision = self.spec.vision
        assert vision is not None
        pixels = np.frombuffer(image.data, np.uint8).reshape(image.shape)
        if self.spec.family == "gemma3":
            size = {"height": vision.image_height, "width": vision.image_width}
            gemma = Gemma3ImageProcessor(size=size, do_pan_and_scan=False)
            values = gemma(pixels, return_tensors="pt")["pixel_values"]
            rows: torch.Tensor = self.model.model.get_image_features(values).pooler_output[0]
            return rows
        qwen = qwen_patches(pixels)
        features = self.model.model.get_image_features(qwen["pixel_values"], qwen["image_grid_thw"])
        merged: torch.Tensor = features.pooler_output[0]
        return merged


def qwen_patches(pixels: np.ndarray[Any, Any]) -> Any:
    """What the Qwen2-VL image processor makes of uint8 [height, width, 3]: pixel_values, image_grid_thw."""
    return Qwen2VLImageProcessor(min_pixels=1, max_pixels=1 << 24)(pixels, return_tensors="pt")


def given_rows(embeds: SuppliedRows) -> torch.Tensor:
    rows = np.frombuffer(embeds.data, np.float32).reshape(embeds.num_rows, embeds.hidden_size)
    return torch.from_numpy(rows.copy())


@cache
def reference_of(name: str) -> ArmReference:
    """The reference of a tiny or micro model, one a process."""
    (spec,) = [spec for spec in (*TINY, *MICRO, MICRO_BOTH_WAYS) if spec.name == name]
    return ArmReference(spec)
