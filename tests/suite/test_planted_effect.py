"""One A/A experiment and one with a planted slowdown, for real; tools/planted_effect.py runs twenty of each.

The slowdown here is far beyond what a busy machine does by itself, so that the test needs no quiet one.
"""

from __future__ import annotations

import pytest
from planted_experiment import planted_experiment

from suite.verdict import Word

pytestmark = pytest.mark.alone


def test_an_arm_against_itself_has_no_winner(tmp_path):
    """One experiment in twenty may have one; two of two would be one pair in four hundred."""
    found = planted_experiment(tmp_path, 0.0, 6, seed=1)
    assert found.comparison.ratio.num_rounds == 6 and found.comparison.floor.num_rounds == 6
    assert not found.has_winner or not planted_experiment(tmp_path, 0.0, 6, seed=3).has_winner


def test_a_slowdown_planted_in_one_command_is_found(tmp_path):
    found = planted_experiment(tmp_path, 3.0, 6, seed=2)
    assert found.word is Word.SLOWER
    assert found.comparison.ratio.value < 0.6
