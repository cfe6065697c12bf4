"""What the host half must know of supplied rows beyond their shape (numpy)."""

from __future__ import annotations

import numpy as np

from runner.core import Request, RequestError


def check_finite(request: Request) -> None:
    """Refuse (RequestError) a NaN or infinite value: through a reused block it would spoil other requests."""
    embeds = request.prompt.embeds
    if embeds is None:
        return
    rows = np.frombuffer(embeds.data, np.float32).reshape(embeds.num_rows, embeds.hidden_size)
    finite = np.isfinite(rows)
    if not finite.all():
        row, column = (int(place) for place in np.argwhere(~finite)[0])
        raise RequestError(
            f"request {request.request_id}: supplied row {row} holds {rows[row, column]} at value {column}; "
            f"every value must be finite"
        )
