"""PackedLinear: a linear layer whose weight suits the small matrices of a decode step on a CPU (torch)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import cast
from weakref import WeakValueDictionary

import torch
from torch import nn


def can_pack() -> bool:
    """Whether this torch has oneDNN, and its operator for a linear layer with a reordered weight."""
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return bool(has_onednn) and hasattr(torch.ops.mkldnn, "_linear_pointwise")


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

    @staticmethod
    def of(linears: Sequence[nn.Linear]) -> PackedLinear:
        """One product for several layers of one input: their outputs one behind the other."""
        biases = [linear.bias for linear in linears]
        bias = None if biases[0] is None else torch.cat(cast(list[torch.Tensor], biases))
        return PackedLinear(torch.cat([linear.weight for linear in linears]), bias)

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
