"""SuiteError: the one exception for a mistake a user can mend. Imports nothing of ours."""

from __future__ import annotations


class SuiteError(Exception):
    """A user's mistake, told in one clear text: the file, line or key, the value, and the fix.

    The command line prints the text alone and exits with code 2; no traceback is shown.
    """


class KeyedError(SuiteError):
    """A mistake in the value of one dotted key; who knows the file puts the line before the text."""

    def __init__(self, key: str, text: str) -> None:
        super().__init__(text)
        self.key = key
