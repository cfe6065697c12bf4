"""Program: the device half. Maps each command to work on the device's tensors (torch)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import torch

from runner.commands import BufferSpec, MetadataLayout, RowFlag
from runner.config import RunnerConfig
from runner.core import Compiled, RunnerError, first_line
from runner.kernels import merge
from runner.kernels.attention import AttentionBackend
from runner.kernels.attention_choice import choose_attention
from runner.kernels.decode_inputs import DecodeInputs
from runner.kernels.geometry import StepGeometry, StepLimits
from runner.kernels.kvcache import KVCache
from runner.kernels.model import DeviceModel
from runner.kernels.sample import SlotTables, sample, token_logprobs
from runner.kernels.speculation import Expanded, accept, expand, propose
from runner.kernels.sync_watch import SyncWatch
from runner.models import ModelSpec
from runner.slot_state import SamplerNeed

Wire = tuple[str | int, ...]

_DTYPES = {
    "int32": torch.int32,
    "int64": torch.int64,
    "uint8": torch.uint8,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_UNSET_ID = -1

Body = Callable[[], torch.Tensor]
Capture = Callable[[Body], Body]
"""Makes of work over tensors that stay where they are what does the same work again when it is called."""


class CopyCounter:
    """Copies between the sides, counted where they are made, from the tensors copied."""

    def __init__(self) -> None:
        self.uploads: dict[str, tuple[int, int]] = {}
        self.download_bytes = 0

    def upload(self, buffer: str, source: torch.Tensor) -> None:
        copies, num_bytes = self.uploads.get(buffer, (0, 0))
        self.uploads[buffer] = (copies + 1, num_bytes + source.nbytes)

    @property
    def copies_by_buffer(self) -> dict[str, int]:
        return {name: copies for name, (copies, _) in self.uploads.items()}

    @property
    def bytes_by_buffer(self) -> dict[str, int]:
        return {name: num_bytes for name, (_, num_bytes) in self.uploads.items()}


class Program:
    """Executes commands given as wire tuples against `host`: the host sides of all buffers.

    Any error of a command is the caller's to report; the state is undefined after it. `model`: the spec's,
    where several programs share one. `watch` sees what a command does, unless its mode is off.
    """

    def __init__(
        self,
        spec: ModelSpec,
        config: RunnerConfig,
        buffers: Mapping[str, BufferSpec],
        host: Mapping[str, torch.Tensor],
        device: torch.device,
        model: DeviceModel | None = None,
    ) -> None:
        dtype = _DTYPES[config.dtype]
        self.watch = SyncWatch(host.values())
        self._copies = CopyCounter()
        self._spec = spec
        self._config = config
        # 16-bit values come as their bits: a view gives them their type, and a copy of it changes none.
        self._host = {name: tensor.view(_DTYPES[buffers[name].dtype]) for name, tensor in host.items()}
        self._device = device
        self._model = model or DeviceModel(spec, dtype, device, config.torch_compile)
        self._cache = KVCache(spec, config, dtype, device)
        self._buffers = {
            name: torch.zeros(item.shape, dtype=_DTYPES[item.dtype], device=device)
            for name, item in buffers.items()
        }
        self._table = self._join_table()
        rows_per_image = spec.vision.rows_per_image if spec.vision else 0
        self._encoder_rows = torch.zeros(
            config.num_encoder_slots, rows_per_image, spec.hidden_size, dtype=dtype, device=device
        )
        self._safe_ids = torch.empty(0)
        self._looked_up = torch.empty(0)
        self._hidden = torch.empty(0)
        self._logits = torch.empty(0)
        self._tokens = torch.empty(0)
        # Positions a slot's request has computed: the host may be guessing.
        self._computed = torch.zeros(config.max_num_seqs, dtype=torch.int64, device=device)
        self._attention: AttentionBackend = choose_attention(config, spec, dtype, device)
        self._geometry: StepGeometry | None = None
        self._decode_inputs: DecodeInputs | None = None
        self._input_kernels = _input_kernels(self._attention)
        self._is_filled = False  # whether the decode inputs are those of the current step
        self._graphs: dict[tuple[int, str], Body] = {}
        self._metadata: _StepMetadata | None = None
        self._handlers: dict[str, Callable[..., None]] = {
            "upload": self._upload,
            "positions": self._positions,
            "route.ids": self._route_ids,
            "route.drafts": self._route_drafts,
            "flags": self._flags,
            "place": self._place,
            "encode": self._encode,
            "merge.ids": self._make_safe_ids,
            "lookup": self._lookup,
            "splice": self._splice,
            "merge": self._merge,
            "forward": self._forward,
            "sample": self._sample,
            "logprobs": self._logprobs,
            "draft": self._draft,
            "download": self._download,
        }
        self.compiled = self._compile_forward() if config.torch_compile else None
        self._num_graphs_at_reset = 0

    @property
    def attention(self) -> str:
        """How attention is computed, for a record."""
        return self._attention.description

    @property
    def can_be_captured(self) -> bool:
        return self._attention.can_be_captured

    @property
    def fuses_routes(self) -> bool:
        return self._input_kernels is not None and self._decode_inputs is not None

    @property
    def num_recompiled(self) -> int:
        """Graphs of the forward compiled since the reset: none, if the warm-up knew every step."""
        return self._model.num_graphs - self._num_graphs_at_reset

    def _compile_forward(self) -> Compiled:
        """Compile it for one token, for several and for the most, of whatever the model may read.

        RunnerError where torch.compile cannot.
        """
        start_s, most = perf_counter(), self._config.max_num_batched_tokens
        positions = torch.zeros(3 if self._spec.rope == "mrope" else 1, most, dtype=torch.int64)
        positions = positions.to(self._device)
        try:
            with torch.inference_mode():
                for inputs in self._forward_inputs:
                    for count in sorted({1, min(2, most), most}):
                        given = {inputs: self._buffers[inputs][:count]}
                        self._model.warm_up(positions[:, :count], **given)
        except Exception as error:
            cause = getattr(error, "inner_exception", error)  # of a backend
            raise RunnerError(
                f"runner.torch_compile is true, but torch.compile cannot compile {self._spec.name} here: "
                f"{first_line(cause)}; set it to false"
            ) from error
        return Compiled(self._model.num_graphs, perf_counter() - start_s)

    @property
    def _forward_inputs(self) -> tuple[str, ...]:
        """What the model may read; plain ids are looked up inside the forward, images are not."""
        return ("inputs_embeds",) if self._spec.is_multimodal else ("input_ids", "inputs_embeds")

    def capture_graphs(self, sizes: Sequence[int], capture: Capture = lambda body: body) -> None:
        """Have decode steps of these numbers of rows ready, each for what the model may read.

        The lookup of plain ids is inside; embeddings are made outside, and read where they were made.
        """
        config = self._config
        self._decode_inputs = DecodeInputs(
            num_rows=config.max_num_seqs,
            table_width=config.max_blocks_per_seq,
            num_axes=3 if self._spec.rope == "mrope" else 1,
            block_size=config.block_size,
            scratch=self._cache.scratch_block,
            device=self._device,
        )
        self._buffers["input_ids"].zero_()  # warming up looks ids up
        with torch.inference_mode():
            for size in sorted(sizes, reverse=True):  # the memory of the largest then does for all
                for inputs in self._forward_inputs:
                    self._graphs[size, inputs] = capture(self._decode_body(size, inputs))

    def _decode_body(self, size: int, inputs: str) -> Body:
        decode, given = self._decode_inputs, self._buffers[inputs][:size]
        assert decode is not None
        limits = StepLimits(1, self._config.max_model_len, size)
        geometry = decode.geometry(size)

        def body() -> torch.Tensor:
            step = self._attention.begin(geometry, self._cache, limits)
            return self._model.forward(step, **{inputs: given})

        return body

    def execute(self, command: Wire, copies: CopyCounter) -> None:
        """Run one command; copies between the sides are counted in `copies`."""
        self._copies = copies
        with torch.inference_mode():
            if self.watch.mode == "off":
                self._handlers[str(command[0])](*command[1:])
                return
            with self.watch.over(command):
                self._handlers[str(command[0])](*command[1:])

    def reset(self) -> None:
        """Poison everything a step must write before it reads."""
        self._cache.poison()
        self._encoder_rows.fill_(torch.nan)
        for tensor in self._buffers.values():
            if tensor.is_floating_point():
                tensor.fill_(torch.nan)
            else:
                tensor.fill_(_UNSET_ID if tensor.dtype != torch.uint8 else 0)
        self._computed.fill_(_UNSET_ID)
        self._geometry = self._metadata = None
        self._is_filled = False
        self._num_graphs_at_reset = self._model.num_graphs

    def _join_table(self) -> torch.Tensor:
        """Embedding table and arena in one allocation, so that `fused` is a single gather.

        The table is stored as looked up (scaled), which keeps the gather equal to the lookup bit by bit.
        """
        with torch.no_grad():
            arena = self._buffers["resident_rows"]
            table = torch.cat([self._model.embedding_table(), arena])
        self._buffers["resident_rows"] = table[self._spec.vocab_size :]
        return table

    # ---- one method per command

    def _upload(self, buffer: str, host_first: int, device_first: int, count: int) -> None:
        source = _rows(self._host[buffer], host_first, count)
        target = _rows(self._buffers[buffer], device_first, count)
        target.copy_(source, non_blocking=True)
        self._copies.upload(buffer, source)

    def _positions(
        self,
        buffer: str,
        count: int,
        num_rows: int,
        table_width: int,
        num_routed: int,
        num_placed: int,
        derives_flags: bool,
        by_slot: bool,
        num_drafted: int,
        num_images: int,
        routed: str = "",
    ) -> None:
        layout = MetadataLayout(
            num_rows, table_width, num_routed, num_placed, derives_flags, by_slot, num_drafted, num_images
        )
        self._is_filled = self.fuses_routes and count == num_rows
        if self._is_filled:
            self._fill_decode_inputs(layout, self._buffers[buffer], routed)
            return
        assert not routed, "routed along only where the positions are one launch"
        metadata = _StepMetadata(layout, self._buffers[buffer], count, self._computed)
        _check_range("position", metadata.positions, self._config.max_model_len)
        blocks = metadata.block_table[metadata.row_of_token, metadata.positions // self._config.block_size]
        _check_range("block id", metadata.block_table, self._config.num_blocks)
        self._metadata = metadata
        self._geometry = StepGeometry(
            starts=metadata.starts,
            first=metadata.first,
            ends=metadata.first + metadata.starts.diff(),
            block_table=metadata.block_table,
            slot_mapping=blocks * self._config.block_size + metadata.positions % self._config.block_size,
            rope_positions=self._rope_positions(metadata, count),
            key_ends=metadata.key_ends,
        )

    def _fill_decode_inputs(self, layout: MetadataLayout, packed: torch.Tensor, routed: str) -> None:
        """The same, and the routed ids, in one launch of a step of one token a row."""
        decode, kernels = self._decode_inputs, self._input_kernels
        assert decode is not None and kernels is not None
        rope = self._buffers["rope_positions"] if self._spec.rope == "mrope" else None
        sampled = self._buffers[routed] if routed else None
        given = kernels.GivenRows(packed, layout, self._computed, rope, sampled)
        kernels.fill_decode_inputs(decode, given, self._buffers["input_ids"], self._config.block_size)
        self._geometry = decode.geometry(layout.num_rows)
        self._metadata = _StepMetadata(layout, packed, layout.num_rows, self._computed, self._geometry)

    def _rope_positions(self, metadata: _StepMetadata, count: int) -> torch.Tensor:
        """[axes, tokens]; the host's are moved back by what it took for computed and was not."""
        if self._spec.rope != "mrope":
            return metadata.positions[None]
        given = self._buffers["rope_positions"][:count].T
        return given - metadata.lag[metadata.row_of_token] if metadata.by_slot else given

    def _route_ids(self, kind: str, source: str, count: int) -> None:
        ids, sampled = self._buffers["input_ids"], self._buffers[source]
        if kind == "slice":
            ids[:count].copy_(sampled[:count])
        else:
            metadata = self._current_metadata()
            ids.index_copy_(0, metadata.route_target, sampled[metadata.route_source])

    def _route_drafts(self, source: str, count: int) -> None:
        metadata = self._current_metadata()
        places, proposed = metadata.draft_source, self._buffers[source].flatten()
        _check_range("draft", places, len(proposed))
        drafts = proposed[places].clamp(min=0)
        self._buffers["input_ids"].index_copy_(0, metadata.draft_target, drafts)

    def _flags(self, kind: str, count: int) -> None:
        flags = self._buffers["is_token_ids"][:count]
        if kind == "fill":
            flags.fill_(1)
        else:
            flags.copy_(self._derive_flags())

    def _derive_flags(self) -> torch.Tensor:
        """[tokens] bool: beyond the supplied length, or not supplied by the row's mask."""
        metadata = self._current_metadata()
        mask = self._buffers["resident_mask"][metadata.arena_rows(self._config.num_resident_rows)]
        return (metadata.positions >= metadata.supplied_length) | (metadata.has_mask & (mask == 0))

    def _place(self, kind: str, count: int) -> None:
        metadata = self._current_metadata()
        if kind == "scatter":
            rows = self._buffers["supplied_rows"][:count]
        else:
            _check_range("arena row", metadata.place_source, self._config.num_resident_rows)
            rows = self._buffers["resident_rows"].index_select(0, metadata.place_source)
        self._buffers["inputs_embeds"].index_copy_(0, metadata.place_target, rows)

    def _encode(self, item: int, slot: int) -> None:
        (pixels,) = _rows(self._buffers["pixels"], item, 1)
        _rows(self._encoder_rows, slot, 1)[0].copy_(self._model.encode(pixels))

    def _make_safe_ids(self, kind: str, count: int) -> None:
        ids = self._buffers["input_ids"][:count]
        if kind == "where":
            self._safe_ids = merge.safe_ids_where(ids, self._buffers["is_token_ids"][:count])
        else:
            self._safe_ids = merge.safe_ids_clamp(ids)

    def _lookup(self, kind: str, count: int) -> None:
        if kind == "safe":
            ids = self._safe_ids
        elif kind == "indexed":
            ids = self._buffers["input_ids"][self._buffers["token_index"][:count]]
        else:
            ids = self._buffers["input_ids"][:count]
        self._looked_up = self._model.lookup(ids)

    def _splice(self, target: str, slot: int, item_first: int, row_first: int, count: int) -> None:
        rows = _rows(_rows(self._encoder_rows, slot, 1)[0], item_first, count)
        into = self._looked_up if target == "looked_up" else self._buffers["inputs_embeds"]
        _rows(into, row_first, count).copy_(rows)

    def _merge(self, kind: str, count: int) -> None:
        embeds = self._buffers["inputs_embeds"]
        if kind == "copy":
            merge.merge_copy(self._looked_up, embeds[:count])
        elif kind == "where":
            flags = self._buffers["is_token_ids"][:count]
            merge.merge_where(self._looked_up, flags, embeds[:count])
        elif kind == "index":
            merge.merge_index(self._looked_up, self._buffers["token_index"][:count], embeds)
        elif kind == "overlay":
            metadata = self._current_metadata()
            _check_range("arena row", metadata.place_source, self._config.num_resident_rows)
            arena = self._buffers["resident_rows"]
            overlay = self._input_kernels.merge_overlay if self._input_kernels else merge.merge_overlay
            overlay(arena, metadata.place_source, metadata.place_target, embeds)
        else:
            merge.merge_fused(self._table, self._fused_index(count), embeds[:count])

    def _fused_index(self, count: int) -> torch.Tensor:
        """Row of the joint table of each position; on an all-token step, the ids themselves."""
        metadata = self._current_metadata()
        if not metadata.derives_flags:
            ids = self._buffers["input_ids"][:count]
            _check_range("token id", ids, self._spec.vocab_size)
            return ids
        rows = metadata.arena_rows(self._config.num_resident_rows)
        ids = self._buffers["input_ids"][:count]
        index = merge.fused_index(ids, self._derive_flags(), rows, self._spec.vocab_size)
        _check_range("row of the joint table", index, len(self._table))
        return index

    def _forward(
        self, count: int, inputs: str, max_query: int, max_context: int, num_decodes: int, graph: int
    ) -> None:
        assert self._geometry is not None
        if graph:
            assert self._decode_inputs is not None
            if not self._is_filled:
                self._decode_inputs.fill(self._geometry, self._buffers["input_ids"])
            self._hidden = self._graphs[graph, inputs]()[:count]
            return
        limits = StepLimits(max_query, max_context, num_decodes)
        step = self._attention.begin(self._geometry, self._cache, limits)
        self._hidden = self._model.forward(step, **{inputs: self._buffers[inputs][:count]})

    def _sample(self, buffer: str, count: int, num_logits: int, needs: int, accepted: str) -> None:
        metadata = self._current_metadata()
        if not metadata.by_slot:
            self._logits = self._model.logits(self._hidden[metadata.starts[1:] - 1])
            self._tokens = self._logits.argmax(dim=-1)
            self._buffers[buffer][:count].copy_(self._tokens)
            return
        expanded = expand(metadata.starts, metadata.num_drafts, num_logits)
        self._logits = self._model.logits(self._hidden[expanded.offset])
        self._remember_drafts(expanded)
        self._tokens = self._choose(expanded, needs)
        ids, max_drafts = self._buffers["input_ids"], self._config.num_speculative_tokens
        kept = accept(self._tokens, ids, expanded, count, max_drafts)
        num_kept = (kept >= 0).sum(dim=1)
        self._remember(kept, num_kept)
        self._buffers[buffer][:count].copy_(kept.gather(1, num_kept[:, None] - 1)[:, 0])
        if accepted:
            self._buffers[accepted][:count].copy_(kept)

    def _choose(self, expanded: Expanded, needs: int) -> torch.Tensor:
        """[num_logits] the token of each sampled position, by its slot's parameters."""
        if not needs:
            return self._logits.argmax(dim=-1)
        metadata = self._current_metadata()
        tables = SlotTables(
            self._buffers["sampling_reals"], self._buffers["sampling_wholes"], self._buffers["token_history"]
        )
        positions = metadata.positions[expanded.offset] + 1
        has_params = metadata.has_flag(RowFlag.HAS_PARAMS)[expanded.row]
        slots = metadata.slots[expanded.row]
        return sample(self._logits, slots, positions, has_params, tables, SamplerNeed(needs))

    def _remember_drafts(self, expanded: Expanded) -> None:
        """Drafts are ids before the positions behind them; a row's first id is in its history already."""
        metadata, history = self._current_metadata(), self._buffers["token_history"]
        slots, places = metadata.slots[expanded.row], metadata.positions[expanded.offset]
        ids = self._buffers["input_ids"][expanded.offset]
        history[slots, places] = torch.where(expanded.within > 0, ids, history[slots, places])

    def _remember(self, kept: torch.Tensor, num_kept: torch.Tensor) -> None:
        """Append what counts to the histories, and note how far each slot's request is computed."""
        metadata, history = self._current_metadata(), self._buffers["token_history"]
        slots = metadata.slots
        samples = metadata.has_flag(RowFlag.SAMPLES)
        first = metadata.first + metadata.starts.diff() - metadata.num_drafts  # of the first sampled token
        places = first[:, None] + torch.arange(kept.shape[1], device=kept.device)
        counts = samples[:, None] & (kept >= 0)
        history[slots[:, None], places] = torch.where(
            counts, kept.to(history.dtype), history[slots[:, None], places]
        )
        self._computed[slots] = torch.where(samples, first + num_kept - 1, self._computed[slots])

    def _logprobs(self, values: str, ids: str, count: int) -> None:
        given = token_logprobs(self._logits, self._tokens, self._buffers[ids].shape[1] - 1)
        self._buffers[values][:count].copy_(given[0])
        self._buffers[ids][:count].copy_(given[1])

    def _draft(self, buffer: str, count: int) -> None:
        slots, config = self._current_metadata().slots, self._config
        history, lengths = self._buffers["token_history"][slots], self._computed[slots] + 1
        drafts = propose(
            history,
            lengths,
            config.num_speculative_tokens,
            config.prompt_lookup_min,
            config.prompt_lookup_max,
        )
        self._buffers[buffer][:count].copy_(drafts)

    def _download(self, buffer: str, count: int) -> None:
        source = _rows(self._buffers[buffer], 0, count)
        _rows(self._host[buffer], 0, count).copy_(source, non_blocking=True)
        self._copies.download_bytes += source.nbytes

    def _current_metadata(self) -> _StepMetadata:
        assert self._metadata is not None
        return self._metadata


class _StepMetadata:
    """A step's small integers on the device, as int64, and what follows from them for every token."""

    def __init__(
        self,
        layout: MetadataLayout,
        packed: torch.Tensor,
        count: int,
        computed: torch.Tensor,
        known: StepGeometry | None = None,
    ) -> None:
        """`computed` [slots]: what the device knows, for rows of which the host does not.

        `known`: what was derived already, of a step of one token a row.
        """
        rows = layout.num_rows
        self._layout = layout
        self._packed = packed
        if layout.by_slot:
            self.slots = packed[layout.slots : layout.block_table].long()
        if known is not None:
            self.starts, self.first = known.starts, known.first
            self.row_of_token, self.positions = known.starts[:rows], known.first
            return
        table = packed[layout.block_table : layout.route_target]
        self.starts = packed[: rows + 1].long()
        self.first = packed[layout.num_computed : layout.slots].long()
        if layout.by_slot:
            planned = self.first
            self.first = torch.where(self.has_flag(RowFlag.ON_DEVICE), computed[self.slots], planned)
            self.lag = planned - self.first
        self.block_table = table.view(rows, layout.table_width).long()
        self.row_of_token = torch.repeat_interleave(self.starts.diff(), output_size=count)
        offsets = torch.arange(count, device=packed.device)
        self.positions = offsets - self.starts[self.row_of_token] + self.first[self.row_of_token]

    @property
    def by_slot(self) -> bool:
        return self._layout.by_slot

    def has_flag(self, flag: RowFlag) -> torch.Tensor:
        """[rows] bool"""
        part = self._packed[self._layout.row_flags : self._layout.row_drafts]
        return (part & int(flag)) != 0

    @property
    def num_drafts(self) -> torch.Tensor:
        """[rows]"""
        return self._packed[self._layout.row_drafts : self._layout.draft_target].long()

    @property
    def draft_target(self) -> torch.Tensor:
        return self._packed[self._layout.draft_target : self._layout.draft_source].long()

    @property
    def draft_source(self) -> torch.Tensor:
        return self._packed[self._layout.draft_source : self._layout.image_first].long()

    @property
    def key_ends(self) -> torch.Tensor | None:
        """[tokens] behind the last position each token sees: its own, or its image's last; None: no image."""
        if not self._layout.num_images:
            return None
        firsts = self._packed[self._layout.image_first : self._layout.image_end].long()
        ends = self._packed[self._layout.image_end : self._layout.size].long()
        offsets = torch.arange(len(self.positions), device=self._packed.device)
        image = torch.searchsorted(firsts, offsets, right=True) - 1  # the last that begins no later, or none
        num_later = (ends[image.clamp(min=0)] - offsets - 1).clamp(min=0)
        return self.positions + 1 + num_later * (image >= 0)

    @property
    def derives_flags(self) -> bool:
        return self._layout.derives_flags

    @property
    def route_target(self) -> torch.Tensor:
        return self._packed[self._layout.route_target : self._layout.route_source].long()

    @property
    def route_source(self) -> torch.Tensor:
        return self._packed[self._layout.route_source : self._layout.place_target].long()

    @property
    def place_target(self) -> torch.Tensor:
        return self._packed[self._layout.place_target : self._layout.place_source].long()

    @property
    def place_source(self) -> torch.Tensor:
        return self._packed[self._layout.place_source : self._layout.supplied_length].long()

    @property
    def supplied_length(self) -> torch.Tensor:
        """[tokens]"""
        part = self._packed[self._layout.supplied_length : self._layout.resident_first]
        return part[self.row_of_token]

    @property
    def has_mask(self) -> torch.Tensor:
        """[tokens] bool"""
        return self._packed[self._layout.has_mask : self._layout.row_flags][self.row_of_token] == 1

    def arena_rows(self, num_resident_rows: int) -> torch.Tensor:
        """[tokens] the arena row of each position; of no meaning where its row has none there."""
        firsts = self._packed[self._layout.resident_first : self._layout.has_mask].long()
        return (firsts[self.row_of_token] + self.positions).clamp(0, num_resident_rows - 1)


def _input_kernels(attention: AttentionBackend) -> Any:
    """Our kernels of a step's inputs, where those of its attention are ours; None elsewhere."""
    if attention.name != "triton":
        return None
    from runner.kernels import triton_inputs

    return triton_inputs


def _rows(tensor: torch.Tensor, first: int, count: int) -> torch.Tensor:
    """Rows [first, first + count), all of them: a slice would leave out what is not there."""
    if first < 0 or count < 0 or first + count > len(tensor):
        raise IndexError(f"rows [{first}, {first + count}) of a tensor of {len(tensor)}")
    return tensor[first : first + count]


def _check_range(what: str, values: torch.Tensor, limit: int) -> None:
    """An out-of-range index corrupts a neighbour in silence on some devices; on a CPU it is an error."""
    if values.is_cuda or not values.numel():
        return
    if int(values.min()) < 0 or int(values.max()) >= limit:
        raise IndexError(f"{what} outside [0, {limit}): {values.tolist()}")
