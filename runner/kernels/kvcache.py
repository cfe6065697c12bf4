"""KVCache: keys and values of all layers in blocks, and the scratch they are gathered into (torch)."""

from __future__ import annotations

import torch

from runner.config import RunnerConfig
from runner.kernels.kept_contexts import KeptContexts
from runner.models import ModelSpec

# Large and finite: a read of a position nobody wrote gives absurd attention scores, while masked positions
# still contribute exactly zero (a NaN would not).
POISON = 1e4


class KVCache:
    """keys, values: one [num_blocks + 1, block_size, num_kv_heads, head_dim] tensor a layer.

    The block behind those of the configuration is scratch: rows that only fill a step up are written there.
    Blocks come first so that a request's context is gathered by whole blocks; gathers write into memory of
    their own that stays, because fresh temporaries cost several times the copy itself on a CPU.

    `kept`: on a CPU, what decode rows attend to in one piece. It has to be told what is written: of a step's
    positions, as the step begins; of anything else, by `write_all`.
    """

    def __init__(
        self, model: ModelSpec, config: RunnerConfig, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (config.num_blocks + 1, config.block_size, model.num_kv_heads, model.head_dim)
        self.scratch_block = config.num_blocks
        self.block_size = config.block_size
        layers = range(model.num_layers)
        self.keys = [torch.empty(shape, dtype=dtype, device=device) for _ in layers]
        self.values = [torch.empty(shape, dtype=dtype, device=device) for _ in layers]
        self._scratch = (
            torch.empty((0, *shape[1:]), dtype=dtype, device=device),
            torch.empty((0, *shape[1:]), dtype=dtype, device=device),
        )
        # Whether a copy is out of date is asked for once a step: on a GPU the host would wait for that.
        is_kept = device.type == "cpu"
        self.kept = KeptContexts(*shape[:3]) if is_kept else None
        self.poison()

    def poison(self) -> None:
        """Overwrite everything with a value no computation produces."""
        for tensor in (*self.keys, *self.values):
            tensor.fill_(POISON)
        if self.kept is not None:
            self.kept.write_all()

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        """Store key and value [tokens, num_kv_heads, head_dim] at flat positions slot_mapping [tokens]."""
        self.keys[layer].flatten(0, 1).index_copy_(0, slot_mapping, key)
        self.values[layer].flatten(0, 1).index_copy_(0, slot_mapping, value)

    def gather(self, layer: int, block_ids: torch.Tensor, num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of `block_ids` [num_rows * width] as [num_rows, kv_heads, positions, head_dim].

        Views of scratch: valid until the next gather.
        """
        count = block_ids.shape[0]
        if count > self._scratch[0].shape[0]:
            shape = (count, *self._scratch[0].shape[1:])
            self._scratch = (self._scratch[0].new_empty(shape), self._scratch[0].new_empty(shape))
        gathered = []
        for cache, scratch in zip((self.keys, self.values), self._scratch, strict=True):
            target = scratch[:count]
            torch.index_select(cache[layer], 0, block_ids, out=target)
            gathered.append(target.view(num_rows, -1, *target.shape[2:]).transpose(1, 2))
        return gathered[0], gathered[1]
