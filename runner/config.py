"""RunnerConfig: the sizes a runner is built with, checked once, frozen ever after. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass, fields

from runner.core import RunnerError
from runner.models import ModelSpec


@dataclass(frozen=True, slots=True)
class RunnerConfig:
    """Sizes in tokens, blocks and requests.

    `num_blocks` blocks of `block_size` positions each hold the keys and values of all requests;
    `num_encoder_slots` encoded images are kept; at most `max_images_per_step` are encoded in a step.
    """

    max_num_seqs: int = 16
    max_num_batched_tokens: int = 256
    max_model_len: int = 512
    block_size: int = 16
    num_blocks: int = 512
    num_encoder_slots: int = 16
    max_images_per_step: int = 4
    num_threads: int = 1

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise RunnerError(f"runner.{item.name} is {value!r}; it must be a whole number of at least 1")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise RunnerError(
                f"runner.max_num_batched_tokens is {self.max_num_batched_tokens}, less than "
                f"runner.max_num_seqs {self.max_num_seqs}: a step of all decodes would not fit; raise it"
            )

    def check_model(self, model: ModelSpec) -> None:
        """Refuse sizes this model cannot have (RunnerError)."""
        if self.max_model_len > model.max_position:
            raise RunnerError(
                f"runner.max_model_len is {self.max_model_len}, but {model.name} has "
                f"{model.max_position} positions; lower it"
            )

    @property
    def max_blocks_per_seq(self) -> int:
        return -(-self.max_model_len // self.block_size)
