"""Point: one thing an answer says, under a label, so that page, Markdown and terminal say the same."""

from __future__ import annotations

from dataclasses import dataclass

from suite.report.tables import Mark


@dataclass(frozen=True, slots=True)
class Point:
    """`text` is whole sentences. `mark` colours it, in words too. `command`: to be typed, after it.

    `hint`: what the label means, on the page.
    """

    label: str
    text: str
    mark: Mark = ""
    command: str = ""
    hint: str = ""

    @property
    def plain(self) -> str:
        """On one line, as a terminal shows it."""
        return f"{self.text} {self.command}".rstrip()
