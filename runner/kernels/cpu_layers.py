"""Layers of a transformers model, made quick for the few rows of a decode step on a CPU (torch).

The values stay those of the layers they stand for, to float32's rounding; no layer is left out. Three
things cost there that are not the model's arithmetic: a weight whose layout suits no small matrix, several
products of one input run one by one, and a norm of six operations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, Protocol, cast
from weakref import WeakValueDictionary

import torch
from torch import nn

_JOINED = (("self_attn", ("q_proj", "k_proj", "v_proj")), ("mlp", ("gate_proj", "up_proj")))
_NORMS = {"LlamaRMSNorm": 0.0, "Qwen2RMSNorm": 0.0, "Qwen3RMSNorm": 0.0, "Gemma3RMSNorm": 1.0}
"""Class of transformers -> what it adds to its weight before it multiplies."""


class Product(Protocol):
    """A weight [outer, inner] that takes [..., inner] to [..., outer]."""

    @property
    def inner(self) -> int: ...
    @property
    def outer(self) -> int: ...
    def __call__(self, given: torch.Tensor) -> torch.Tensor: ...


def can_pack() -> bool:
    """Whether this torch has oneDNN, and its operator for a linear layer with a reordered weight."""
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return bool(has_onednn) and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def is_quickened(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the runner's forward runs there on the layers of this file, and not on the model's own."""
    return device.type == "cpu" and dtype is torch.float32


class PackedLinear(nn.Module):
    """A linear layer whose float32 weight is kept in the layout oneDNN wants.

    torch.compile knows no such layout: to it a layer is an operator with a number.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.outer, self.inner = weight.shape
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)
        self._bias = None if bias is None else bias.detach()
        self._number = next(_NUMBERS)
        _NUMBERED[self._number] = self

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling():
            return cast(torch.Tensor, torch.ops.stepcost.packed_linear(given, self._number, self.outer))
        return self.multiply(given)

    def multiply(self, given: torch.Tensor) -> torch.Tensor:
        product = torch.ops.mkldnn._linear_pointwise(given, self._weight, self._bias, "none", [], "")
        return cast(torch.Tensor, product)


_NUMBERS = count()
_NUMBERED: WeakValueDictionary[int, PackedLinear] = WeakValueDictionary()


@torch.library.custom_op(
    "stepcost::packed_linear", mutates_args=(), schema="(Tensor given, int number, int outer) -> Tensor"
)
def multiply_by_number(given: torch.Tensor, number: int, outer: int) -> torch.Tensor:
    """The product with the layer of that number, which has `outer` outputs."""
    return _NUMBERED[number].multiply(given)


@multiply_by_number.register_fake
def _shape_of_product(given: torch.Tensor, _number: int, outer: int) -> torch.Tensor:
    return given.new_empty(*given.shape[:-1], outer)


class _Joined:
    """One product for several layers of one input: the first asked computes it, others take their part."""

    def __init__(self, linears: Sequence[nn.Linear]) -> None:
        biases = [linear.bias for linear in linears]
        joined = None if biases[0] is None else torch.cat(cast(list[torch.Tensor], biases))
        self.product = PackedLinear(torch.cat([linear.weight for linear in linears]), joined)
        self._widths = [linear.out_features for linear in linears]
        self._given: torch.Tensor | None = None
        self._parts: Sequence[torch.Tensor] = ()

    def part(self, index: int, given: torch.Tensor) -> torch.Tensor:
        if given is not self._given:
            self._given = given
            self._parts = self.product(given).split(self._widths, dim=-1)
        part = self._parts[index]
        if index == len(self._widths) - 1:  # nothing is kept of a step that is over
            self._given, self._parts = None, ()
        return part


class JoinedLinear(nn.Module):
    """In the place of one of the layers of a joined product."""

    def __init__(self, joined: _Joined, index: int) -> None:
        super().__init__()
        self._joined = joined
        self._index = index

    @property
    def product(self) -> Product | None:
        """The product of all, told by the first of them alone."""
        return self._joined.product if self._index == 0 else None

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self._joined.part(self._index, given)


class OneCallNorm(nn.Module):
    """Root mean square norm as one operation."""

    def __init__(self, weight: torch.Tensor, epsilon: float) -> None:
        super().__init__()
        self._weight = weight
        self._epsilon = epsilon

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return nn.functional.rms_norm(given, self._weight.shape, self._weight, self._epsilon)


def quicken(language_model: nn.Module) -> None:
    """Replace linear layers and norms of a float32 model on the CPU, in place; harmless where it was done."""
    for layer in cast(Any, language_model).layers:
        for parent_name, names in _JOINED:
            _join(getattr(layer, parent_name), names)
    for parent, name, child in [*_children(language_model)]:
        if type(child) is nn.Linear and can_pack():
            setattr(parent, name, PackedLinear(child.weight, child.bias))
        elif type(child).__name__ in _NORMS:
            setattr(parent, name, _one_call(child))


def quickened_head(head: nn.Module) -> nn.Module:
    """The output head, packed; the given one where that cannot be."""
    is_plain = type(head) is nn.Linear and can_pack()
    return PackedLinear(head.weight, head.bias) if is_plain else head  # type: ignore[arg-type]


def products(language_model: nn.Module) -> Iterator[Product]:
    """The products of its layers in the order in which a step runs them, as `quicken` left them."""
    for module in cast(Any, language_model).layers.modules():
        if isinstance(module, PackedLinear):
            yield module
        elif isinstance(module, JoinedLinear) and module.product is not None:
            yield module.product


def _join(parent: nn.Module, names: Sequence[str]) -> None:
    linears = [getattr(parent, name, None) for name in names]
    if not can_pack() or not all(type(linear) is nn.Linear for linear in linears):
        return
    joined = _Joined(cast(Sequence[nn.Linear], linears))
    for index, name in enumerate(names):
        setattr(parent, name, JoinedLinear(joined, index))


def _one_call(norm: nn.Module) -> OneCallNorm:
    """transformers names the epsilon one way or the other."""
    given = cast(Any, norm)
    epsilon = getattr(given, "variance_epsilon", None) or given.eps
    return OneCallNorm(given.weight.detach() + _NORMS[type(norm).__name__], float(epsilon))


def _children(module: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    for name, child in module.named_children():
        yield module, name, child
        yield from _children(child)
