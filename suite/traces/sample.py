"""Make a trace in the Azure LMM format from a seed: `python -m suite.traces.sample > FILE`.

Nothing of it is taken from recorded data. The recipe: gaps between requests are exponential with a mean of
0.8 s, one in twenty requests shares its time with the one before, and one silence of 42 s lies in the
middle; half of the requests bring images, 1 mostly and up to 6; text lengths are lognormal with a median of
400, each image adds 256 tokens to the context, outputs are lognormal with a median of 150; all are rounded
to whole tokens, at least 1.
"""

from __future__ import annotations

import math
import random
import sys
from datetime import UTC, datetime, timedelta

_START = datetime(2025, 3, 3, 9, 0, 0, 125_000, tzinfo=UTC)
_SILENCE_S = 42.0
_IMAGES = (1, 1, 1, 1, 1, 1, 2, 2, 3, 6)
_TOKENS_PER_IMAGE = 256


def sample_text(seed: int = 20250303, num_rows: int = 80) -> str:
    """The file's text, with a header and `num_rows` rows, ended by a newline."""
    generator = random.Random(seed)
    lines = ["TIMESTAMP,NumImages,ContextTokens,GeneratedTokens"]
    now_s = 0.0
    for number in range(num_rows):
        if number:
            now_s += _gap_s(generator) + (_SILENCE_S if number == num_rows // 2 else 0.0)
        num_images = generator.choice(_IMAGES) if generator.random() < 0.5 else 0
        context = _lognormal(generator, median=400, sigma=0.9) + num_images * _TOKENS_PER_IMAGE
        output = _lognormal(generator, median=150, sigma=0.8)
        lines.append(f"{_stamp(now_s)},{num_images},{context},{output}")
    return "\n".join(lines) + "\n"


def _gap_s(generator: random.Random) -> float:
    shares_its_time = generator.random() < 0.05
    gap_s = -0.8 * math.log(1.0 - generator.random())
    return 0.0 if shares_its_time else gap_s


def _lognormal(generator: random.Random, *, median: float, sigma: float) -> int:
    # A sum of twelve uniform numbers stands for the normal one: the same on every platform.
    normal = sum(generator.random() for _ in range(12)) - 6.0
    return max(1, round(median * math.exp(sigma * normal)))


def _stamp(seconds: float) -> str:
    moment = _START + timedelta(milliseconds=round(seconds * 1000))
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"


if __name__ == "__main__":
    sys.stdout.write(sample_text())
