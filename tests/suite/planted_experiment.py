"""One real experiment of an arm against itself, with or without a slowdown planted in one of the two.

The two are one arm in two spellings, so that their commands are the same; all else is what `suite run` does.
A run takes a third of a second: of a tenth, a single burst of a busy neighbour decides a round.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

from runner.inputs.arms import ARMS
from suite.arms import choices_text
from suite.case_design import AT_ONCE_METRICS, Design
from suite.comparison import Comparison, compare
from suite.errors import SuiteError
from suite.experiment import Experiment, Stop
from suite.plan import Options, make_plan
from suite.record import Status
from suite.verdict import Word

ARM = "refresh"
TWIN = choices_text(ARMS[ARM])
SCENARIO = """\
name: planted
model: tiny-gemma3-vl
runner: {max_num_seqs: 4, max_num_batched_tokens: 32, max_model_len: 64, num_blocks: 32}
traffic: {num_requests: 4, prompt_tokens: 6, output_tokens: 48, embeds_ratio: 1}
arms: [refresh]
warmup_rounds: 2
aa: true
timeout_s: 60
"""


class _Silent:
    """An observer that tells nobody."""

    def case_started(self, planned) -> None: ...
    def run_started(self, planned, run) -> None: ...
    def run_progressed(self, run, progress) -> None: ...
    def run_finished(self, planned, record) -> None: ...


@dataclass(frozen=True)
class Found:
    """What the experiment made of the twin against the arm itself."""

    comparison: Comparison

    @property
    def word(self) -> Word:
        return self.comparison.verdict.word

    @property
    def has_winner(self) -> bool:
        return self.word in (Word.FASTER, Word.SLOWER)


def planted_experiment(folder: Path, share: float, num_rounds: int, seed: int) -> Found:
    """The twin slower by `share` of every step. SuiteError where a run failed or has wrong tokens."""
    file = folder / "planted.yaml"
    file.write_text(SCENARIO, encoding="utf-8")
    plan = make_plan([file], Options(device="process", rounds=num_rounds, seed=seed))
    (case,) = plan.cases
    case = replace(case, arms=(ARM, TWIN))
    code = "import sys; sys.path.insert(0, {!r}); from planted_worker import main; main({!r}, {!r})"
    command = (sys.executable, "-P", "-c", code.format(str(Path(__file__).parent), share, TWIN))
    experiment = Experiment(
        replace(plan, cases=(case,)),
        None,
        _Silent(),
        Stop(),
        lambda record: None,
        lambda device: None,
        worker_command=command,
    )
    for record in experiment.run():
        if record.status is not Status.COMPLETED or record.tokens is None or not record.tokens.is_right:
            raise SuiteError(f"{record.run_id}: {record.failure or record.tokens}")
    design = {(case.case.scenario.name, case.case.case_id): Design(ARM, AT_ONCE_METRICS)}
    (one,) = compare(experiment.records, design)
    return Found(one)
