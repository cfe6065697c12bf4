"""Layers of a transformers model, made quick for the few rows of a decode step on a CPU (torch).

The values stay those of the layers they stand for, to float32's rounding; no layer is left out. What costs
there and is not the model's arithmetic: a weight whose layout suits no small matrix, several products of one
input run one by one, a norm of six operations, and a call for each of a layer's parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import nn

from runner.kernels.packed_linear import PackedLinear, can_pack
from runner.kernels.quick_layer import QuickLayer
from runner.kernels.quick_norm import QuickNorm


def is_quickened(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the runner's forward runs there on quick layers, and not on the model's own."""
    return device.type == "cpu" and dtype is torch.float32


def quicken(language_model: nn.Module) -> None:
    """Replace layers and norms of a float32 model on the CPU, in place; harmless where it was done.

    Its attention is then the runner's own (attention.py), whatever the model was told.
    """
    layers = cast(Any, language_model).layers
    for index, layer in enumerate(layers):
        if can_pack() and QuickLayer.knows(layer):
            layers[index] = QuickLayer(layer)
    for parent, name, child in [*_children(language_model)]:
        if type(child) is nn.Linear and can_pack():
            setattr(parent, name, PackedLinear.of([child]))
        elif QuickNorm.knows(child):
            setattr(parent, name, QuickNorm.of(child))


def quickened_head(head: nn.Module) -> nn.Module:
    """The output head, packed; the given one where that cannot be."""
    return PackedLinear.of([head]) if type(head) is nn.Linear and can_pack() else head


def products(language_model: nn.Module) -> Iterator[PackedLinear]:
    """The products of its layers in the order in which a step runs them, as `quicken` left them."""
    for module in cast(Any, language_model).layers.modules():
        if isinstance(module, PackedLinear):
            yield module


def _children(module: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    for name, child in module.named_children():
        yield module, name, child
        yield from _children(child)
