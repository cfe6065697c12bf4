"""Negative controls, arms that are wrong by design: what came of one, in words.

A control whose wrong tokens are not found would mean that the check is blind.
"""

from __future__ import annotations

from collections.abc import Sequence

from suite.record import RunRecord, Status

AS_IT_MUST = "wrong, as it must be"
NOT_EXERCISED = "not exercised"
NOT_CHECKED = "not checked"
UNPREDICTED = "wrong where its flags predict nothing"
BLIND = "right where its flags predict wrong tokens"


def control_verdict(records: Sequence[RunRecord]) -> str | None:
    """What the runs of one arm say of it as a negative control; None where it is none."""
    if not any(record.is_control for record in records):
        return None
    done = [record for record in records if record.status is Status.COMPLETED and record.tokens]
    if not done:
        return NOT_CHECKED
    wrong = [record for record in done if record.tokens and record.tokens.num_wrong]
    if any(record.predicts_wrong is False for record in wrong):
        return UNPREDICTED
    if wrong:
        return AS_IT_MUST
    return BLIND if any(record.predicts_wrong for record in done) else NOT_EXERCISED
