"""Prompts that no runner may serve, by what is wrong with them. Holds no assertion.

The longest prompt allowed has 47 positions, and the arena 40 rows, where they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from arm_models import MICRO_GEMMA3_VL
from arm_workloads import image_of, text_ids

from runner.core import Prompt, SuppliedRows
from runner.models import ModelSpec


def rows(model: ModelSpec, count: int, value: float = 0.0) -> SuppliedRows:
    """`count` rows, of which the last value is `value`."""
    made = np.zeros((count, model.hidden_size), np.float32)
    made[-1, -1] = value
    return SuppliedRows(made.tobytes(), count, model.hidden_size)


def of_embeds(embeds: SuppliedRows) -> Prompt:
    return Prompt((), (), embeds)


def in_half_precision(model: ModelSpec, bits: int) -> SuppliedRows:
    made = np.zeros((4, model.hidden_size), np.uint16)
    made[-1, -1] = bits
    return SuppliedRows(made.tobytes(), 4, model.hidden_size, "bfloat16")


BAD: Mapping[str, Callable[[ModelSpec], Prompt]] = {
    "holds nan": lambda model: of_embeds(rows(model, 4, np.nan)),
    "holds inf": lambda model: of_embeds(rows(model, 4, -np.inf)),
    "wrong hidden size": lambda model: of_embeds(rows(replace(model, hidden_size=32), 4)),
    "holds nan in 16 bits": lambda model: of_embeds(in_half_precision(model, 0x7FC0)),
    "arena too small": lambda model: of_embeds(rows(model, 41)),
    "ids without a mask": lambda model: Prompt((5, 6, 7, 8), (), rows(model, 4)),
    "too few ids beside rows": lambda model: Prompt(
        (5, 6, 7), (), replace(rows(model, 4), mask=bytes((1, 0, 1, 0)))
    ),
    "too long": lambda model: Prompt(text_ids(model, 48, seed=1)),
    "no such id": lambda model: Prompt((5, model.vocab_size)),
    "negative id": lambda model: Prompt((-1, 5)),
    "empty": lambda model: Prompt(()),
    "an image too many": lambda model: with_placeholders(model, 1, 2),
    "an image too few": lambda model: with_placeholders(model, 2, 1),
}


def with_placeholders(model: ModelSpec, num_placeholders: int, num_images: int) -> Prompt:
    """Placeholders and images that disagree; for a text model, images it does not take."""
    vision = model.vision
    ids = text_ids(model, 4, seed=2)
    if vision is None:
        image = image_of(MICRO_GEMMA3_VL.name, 1)
        return Prompt(ids, (image,) * num_images)
    images = tuple(image_of(model.name, seed) for seed in range(num_images))
    return Prompt(vision.placeholder_ids() * num_placeholders + ids, images)
