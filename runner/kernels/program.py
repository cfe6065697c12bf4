"""Program: the device half. Maps each command to work on the device's tensors (torch)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from runner.commands import BufferSpec, MetadataLayout
from runner.config import RunnerConfig
from runner.kernels.attention import PagedStep, StepGeometry
from runner.kernels.kvcache import KVCache
from runner.kernels.model import DeviceModel
from runner.models import ModelSpec

Wire = tuple[str | int, ...]

_DTYPES = {"int32": torch.int32, "uint8": torch.uint8}


class CopyCounter:
    """Copies between the sides, counted where they are made, from the tensors copied."""

    def __init__(self) -> None:
        self.uploads: dict[str, tuple[int, int]] = {}
        self.download_bytes = 0

    def upload(self, buffer: str, source: torch.Tensor) -> None:
        copies, num_bytes = self.uploads.get(buffer, (0, 0))
        self.uploads[buffer] = (copies + 1, num_bytes + source.nbytes)


class Program:
    """Executes commands given as wire tuples, in order, against `host`: the host sides of all buffers."""

    def __init__(
        self,
        spec: ModelSpec,
        config: RunnerConfig,
        buffers: Mapping[str, BufferSpec],
        host: Mapping[str, torch.Tensor],
    ) -> None:
        dtype = torch.float32
        self.copies = CopyCounter()
        self._config = config
        self._host = host
        self._buffers = {
            name: torch.zeros(item.shape, dtype=_DTYPES[item.dtype]) for name, item in buffers.items()
        }
        self._model = DeviceModel(spec, dtype)
        self._cache = KVCache(spec, config, dtype)
        self._inputs_embeds = torch.zeros(config.max_num_batched_tokens, spec.hidden_size)
        rows_per_image = spec.vision.rows_per_image if spec.vision else 0
        self._encoder_rows = torch.zeros(
            config.num_encoder_slots, rows_per_image, spec.hidden_size, dtype=dtype
        )
        self._looked_up = torch.empty(0)
        self._hidden = torch.empty(0)
        self._step: PagedStep | None = None
        self._handlers: dict[str, Callable[..., None]] = {
            "upload": self._upload,
            "positions": self._positions,
            "encode": self._encode,
            "lookup": self._lookup,
            "splice": self._splice,
            "merge": self._merge,
            "forward": self._forward,
            "sample": self._sample,
            "download": self._download,
        }

    def execute(self, command: Wire) -> None:
        """Run one command. Any error is the caller's to report; the state is then undefined."""
        with torch.inference_mode():
            self._handlers[str(command[0])](*command[1:])

    def take_copies(self) -> CopyCounter:
        """What was copied since the last call."""
        copies, self.copies = self.copies, CopyCounter()
        return copies

    def reset(self) -> None:
        """Poison everything a step must write before it reads."""
        self._cache.poison()
        for tensor in (self._inputs_embeds, self._encoder_rows):
            tensor.fill_(torch.nan)
        for name, tensor in self._buffers.items():
            tensor.fill_(0 if name == "pixels" else -1)
        self._step = None

    # ---- one method per command

    def _upload(self, buffer: str, host_first: int, device_first: int, count: int) -> None:
        source = self._host[buffer][host_first : host_first + count]
        self._buffers[buffer][device_first : device_first + count].copy_(source)
        self.copies.upload(buffer, source)

    def _positions(self, buffer: str, count: int, num_rows: int, table_width: int) -> None:
        layout = MetadataLayout(num_rows, table_width)
        metadata = self._buffers[buffer]
        starts = metadata[: num_rows + 1].long()
        first = metadata[layout.num_computed : layout.slots].long()
        table = metadata[layout.block_table : layout.size].view(num_rows, table_width).long()
        counts = starts.diff()
        row_of_token = torch.repeat_interleave(counts, output_size=count)
        positions = torch.arange(count) - starts[row_of_token] + first[row_of_token]
        block_size = self._config.block_size
        blocks = table[row_of_token, positions // block_size]
        _check_range("block id", table, self._config.num_blocks)
        geometry = StepGeometry(
            starts=starts.tolist(),
            first=first.tolist(),
            ends=(first + counts).tolist(),
            block_table=table,
            slot_mapping=blocks * block_size + positions % block_size,
            positions=positions,
        )
        self._step = PagedStep(geometry, self._cache)

    def _encode(self, item: int, slot: int) -> None:
        self._encoder_rows[slot].copy_(self._model.encode(self._buffers["pixels"][item]))

    def _lookup(self, count: int) -> None:
        self._looked_up = self._model.lookup(self._buffers["input_ids"][:count])

    def _splice(self, slot: int, item_first: int, row_first: int, count: int) -> None:
        rows = self._encoder_rows[slot, item_first : item_first + count]
        self._looked_up[row_first : row_first + count].copy_(rows)

    def _merge(self, kind: str, count: int) -> None:
        assert kind == "copy"
        self._inputs_embeds[:count].copy_(self._looked_up)

    def _forward(self, count: int, inputs: str) -> None:
        assert self._step is not None
        if inputs == "input_ids":
            ids = self._buffers["input_ids"][:count]
            self._hidden = self._model.forward(self._step, input_ids=ids)
        else:
            rows = self._inputs_embeds[:count]
            self._hidden = self._model.forward(self._step, inputs_embeds=rows)

    def _sample(self, buffer: str, count: int) -> None:
        assert self._step is not None
        last = torch.tensor(self._step.geometry.starts[1:]) - 1
        logits = self._model.logits(self._hidden[last])
        self._buffers[buffer][:count].copy_(logits.argmax(dim=-1))

    def _download(self, buffer: str, count: int) -> None:
        source = self._buffers[buffer][:count]
        self._host[buffer][:count].copy_(source)
        self.copies.download_bytes += source.nbytes


def _check_range(what: str, values: torch.Tensor, limit: int) -> None:
    """An out-of-range index corrupts a neighbour in silence on some devices; here it is an error."""
    if values.numel() and (int(values.min()) < 0 or int(values.max()) >= limit):
        raise IndexError(f"{what} outside [0, {limit}): {values.tolist()}")
