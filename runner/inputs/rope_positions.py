"""M-RoPE positions of a prompt: text advances three equal axes, an image spans its grid (numpy)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from runner.core import RequestState
from runner.models import VisionSpec


def prompt_positions(state: RequestState, vision: VisionSpec) -> tuple[NDArray[np.int64], int]:
    """Positions [num_prompt, 3] (time, height, width), and what a later position adds to its index.

    As Qwen2-VL's rule has it: an image's rows share one time and count height and width from there; text
    after it goes on from the largest position so far plus one. Supplied rows count as text (vLLM #45252).
    """
    positions = np.empty((state.num_prompt, 3), np.int64)
    done, offset = 0, 0  # prompt rows written; position minus index of the text that follows
    for span in state.spans:
        positions[done : span.first] = np.arange(done, span.first)[:, None] + offset
        start = span.first + offset
        grid = np.indices((vision.grid_height, vision.grid_width)).reshape(2, -1).T
        positions[span.first : span.end, 0] = start
        positions[span.first : span.end, 1:] = start + grid
        done = span.end
        offset = start + max(vision.grid_height, vision.grid_width) - span.end
    positions[done:] = np.arange(done, state.num_prompt)[:, None] + offset
    return positions, offset
