"""OneCallNorm: a root mean square norm of transformers as one operation (torch)."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn

_NORMS = {
    "LlamaRMSNorm": 0.0,
    "Qwen2RMSNorm": 0.0,
    "Qwen2_5_VLRMSNorm": 0.0,
    "Qwen3RMSNorm": 0.0,
    "Gemma3RMSNorm": 1.0,
}
"""Class of transformers -> what it adds to its weight before it multiplies."""


class OneCallNorm(nn.Module):
    """Over the last dimension of what it is given."""

    def __init__(self, weight: torch.Tensor, epsilon: float) -> None:
        super().__init__()
        self.weight = weight
        self.epsilon = epsilon

    @staticmethod
    def knows(module: nn.Module) -> bool:
        return type(module).__name__ in _NORMS

    @staticmethod
    def of(module: nn.Module) -> OneCallNorm:
        """In the place of a norm of transformers, which names its epsilon one way or the other."""
        given = cast(Any, module)
        epsilon = given.variance_epsilon if hasattr(given, "variance_epsilon") else given.eps
        return OneCallNorm(given.weight.detach() + _NORMS[type(module).__name__], float(epsilon))

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return nn.functional.rms_norm(given, self.weight.shape, self.weight, self.epsilon)
