"""ModelSpec: what the host half, the workload and the oracle must know of a model.

Standard library only. `hf_config` holds the keyword arguments of the transformers config class, so that
the device half and the oracle build the same unmodified transformers model from one description.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

ImageAttention = Literal["causal", "bidirectional"]


@dataclass(frozen=True, slots=True)
class VisionSpec:
    """The image side of a model: its pixels, its grid of rows per image, and its placeholder ids.

    An image becomes grid_height * grid_width rows. `patch_size` and `merge_size` say how pixels become
    them on a model that takes patches (0 where the tower takes whole images).
    """

    image_token_id: int
    begin_token_id: int
    end_token_id: int
    image_height: int
    image_width: int
    grid_height: int
    grid_width: int
    channel_mean: tuple[float, float, float]
    channel_std: tuple[float, float, float]
    patch_size: int = 0
    merge_size: int = 0

    @property
    def rows_per_image(self) -> int:
        return self.grid_height * self.grid_width

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return (self.image_height, self.image_width, 3)

    def placeholder_ids(self) -> tuple[int, ...]:
        """The ids one image takes in a prompt: begin, one placeholder for each row, end."""
        return (
            self.begin_token_id,
            *(self.image_token_id,) * self.rows_per_image,
            self.end_token_id,
        )


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One preset.

    `weight_std` and `weight_seed` are the recipe of its random weights (runner/weights.py), unless
    `checkpoint`, a folder, has weights of its own. `reserved_ids` never stand for text: padding, end of
    sequence, image placeholders. `image_attention`: whether the rows of one image attend to one another in
    both directions, in layers with a sliding window too (its lower end holds there), or causally like text.
    """

    name: str
    family: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position: int
    eos_token_id: int
    sliding_window: int | None
    reserved_ids: frozenset[int]
    vision: VisionSpec | None
    rope: Literal["1d", "mrope"]
    weight_std: float
    weight_seed: int
    hf_config: Mapping[str, object]
    checkpoint: str | None = None
    image_attention: ImageAttention = "causal"

    @property
    def is_multimodal(self) -> bool:
        return self.vision is not None

    @property
    def attends_both_ways(self) -> bool:
        """Whether image rows see later rows of their image, so that one step must compute all of them."""
        return self.vision is not None and self.image_attention == "bidirectional"
