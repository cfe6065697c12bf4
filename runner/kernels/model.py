"""DeviceModel: a transformers model behind the few calls a step makes of it (torch).

Its weights are unmodified; on a CPU equal layers of fewer operations stand for its own (cpu_layers.py).
"""

from __future__ import annotations

from typing import Any, cast

import torch
from transformers import AttentionInterface

from runner.kernels.attention import ATTENTION_NAME, PagedStep, paged_attention
from runner.kernels.compiled_forward import CompiledForward
from runner.kernels.cpu_layers import is_quickened, quicken, quickened_head
from runner.kernels.encoder import normalise_pixels, to_patches
from runner.models import ModelSpec
from runner.weights import build_model

AttentionInterface.register(ATTENTION_NAME, paged_attention)

# A dict skips transformers' own mask building: the mask of packed rows is ours.
_NO_MASKS = {"full_attention": None, "sliding_attention": None}


class DeviceModel:
    """`compiles`: its forward runs under torch.compile; each kind of input is to be warmed up first."""

    def __init__(
        self, spec: ModelSpec, dtype: torch.dtype, device: torch.device, compiles: bool = False
    ) -> None:
        model = build_model(spec, dtype).to(device)
        self._spec = spec
        self._model = model
        self._language_model: Any = model.model.language_model if spec.is_multimodal else model.model
        # On the whole model this would switch the vision tower as well, whose layers have no index.
        self._language_model.set_attn_implementation(ATTENTION_NAME)
        self._embedding: Any = model.get_input_embeddings()
        self._head: Any = model.lm_head
        self._dtype = dtype
        if is_quickened(device, dtype):
            quicken(self._language_model)
            self._head = quickened_head(self._head)
        self._softcap: float | None = getattr(self._language_model.config, "final_logit_softcapping", None)
        self._compiled = CompiledForward(self._hidden) if compiles else None

    def lookup(self, ids: torch.Tensor) -> torch.Tensor:
        """Embeddings [tokens, hidden] of ids [tokens], scaled as the model scales them."""
        return cast(torch.Tensor, self._embedding(ids))

    def embedding_table(self) -> torch.Tensor:
        """What `lookup` gives for every id [vocab, hidden], bit for bit."""
        return self.lookup(torch.arange(self._spec.vocab_size, device=self._embedding.weight.device))

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        """Rows [rows_per_image, hidden] of one uint8 image [height, width, 3]."""
        vision = self._spec.vision
        assert vision is not None
        normalised = normalise_pixels(pixels[None], vision.channel_mean, vision.channel_std)
        inputs = normalised.to(self._dtype)
        if not vision.patch_size:
            features = self._model.model.get_image_features(inputs)
            return cast(torch.Tensor, features.pooler_output[0])
        grid = (1, vision.grid_height * vision.merge_size, vision.grid_width * vision.merge_size)
        features = self._model.model.get_image_features(
            to_patches(inputs[0], vision), torch.tensor([grid], device=pixels.device)
        )
        return cast(torch.Tensor, features.pooler_output[0])

    def forward(
        self,
        paged_step: PagedStep,
        input_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Hidden states [tokens, hidden] of packed ids [tokens] or embeddings [tokens, hidden]."""
        positions = paged_step.geometry.rope_positions
        if self._compiled is not None:
            return self._compiled(paged_step, positions, input_ids, inputs_embeds)
        return self._hidden(positions, input_ids, inputs_embeds, paged_step)

    def warm_up(
        self,
        positions: torch.Tensor,
        input_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> None:
        """Compile the forward for inputs like these, where that was not done; positions [axes, tokens]."""
        assert self._compiled is not None
        self._compiled.warm_up(positions, input_ids, inputs_embeds)

    @property
    def num_graphs(self) -> int:
        """Compiled so far."""
        return self._compiled.num_graphs if self._compiled is not None else 0

    def _hidden(
        self,
        positions: torch.Tensor,
        input_ids: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None,
        paged_step: PagedStep | None = None,
    ) -> torch.Tensor:
        output = self._language_model(
            input_ids=None if input_ids is None else input_ids[None],
            inputs_embeds=None if inputs_embeds is None else inputs_embeds[None],
            position_ids=positions if len(positions) == 1 else positions[:, None],
            use_cache=False,
            attention_mask=_NO_MASKS,
            paged_step=paged_step,
        )
        return cast(torch.Tensor, output.last_hidden_state[0])

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [rows, vocab] of hidden states [rows, hidden], float32 whatever the head computes in."""
        logits = cast(torch.Tensor, self._head(hidden)).float()
        if self._softcap is not None:
            logits = torch.tanh(logits / self._softcap) * self._softcap
        return logits
