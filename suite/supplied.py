"""The rows that a workload's embeddings are made of: the model's own lookup, by transformers alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from runner.core import FloatType
from runner.models import ModelSpec
from suite.workload import Embed


def embedding_lookup(model: ModelSpec, dtype: FloatType = "float32") -> Embed:
    """A function from ids to float32 rows [ids, hidden], scaled as the model in `dtype` scales them.

    Imports torch and transformers, so a worker calls it and a command line does not.
    """
    # Imported here: what only checks or explains a scenario must not wait for torch.
    import torch

    from runner.weights import build_embedding

    embedding = build_embedding(model, getattr(torch, dtype))

    def embed(token_ids: Sequence[int]) -> NDArray[np.float32]:
        with torch.inference_mode():
            rows: NDArray[np.float32] = embedding(torch.tensor(token_ids)).float().numpy()
        return rows

    return embed
