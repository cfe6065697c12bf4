"""Rule and Finding: what a run must keep to be believed, and that it did not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from suite.record import RunRecord

MIN_ROUNDS = 2
"""One measured round shows no spread at all."""

MAX_UNASKED_HIT_RATE = 1.0
"""Percent of prompt positions that prompts drawn at random may find in the prefix cache."""

FAULT = "a fault of the program: please report it with the run folder"


@dataclass(frozen=True, slots=True)
class Rule:
    """`text` says what must hold.

    `is_timing`: what it finds casts doubt on the times, not on the tokens or the accounts.
    `is_of_run`: a run that breaks it enters no figure. Else what it finds is about all rounds of an arm, and
    says nothing against the run it stands at.
    `is_fault`: a figure is not what it says, which is no matter of noise or of what was asked for.
    """

    name: str
    text: str
    remedy: str
    is_timing: bool = False
    is_of_run: bool = True
    is_fault: bool = False


Broken = Mapping[str, tuple[str, ...]]
"""run_id -> the rules it broke, for which it is INVALID and enters no figure."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that a run broke: `message` holds what was seen."""

    run_id: str
    rule: str
    message: str
    remedy: str
    is_timing: bool


_CORRECTNESS = (
    Rule(
        "run-failed",
        "every run comes to its end",
        "see the failure's detail; the times of such a run enter no statistic",
    ),
    Rule(
        "tables-damaged",
        "the steps and requests of a run are in its folder",
        "put the file back, or have the run made again: `python -m suite run --resume RUN_DIR`",
    ),
    Rule(
        "tokens-wrong",
        "every output token is the model's own choice, and no more are ties than rounding explains "
        "(negative controls excepted)",
        "find the cause with `check` on the same scenario; a wrong arm gets no speed verdict",
    ),
    Rule(
        "tokens-unchecked",
        "output tokens are held against the oracle",
        "let at least one request complete",
    ),
    Rule(
        "logprobs-wrong",
        "every log-probability is the model's own (negative controls excepted)",
        "find the cause with `check` on the same scenario: the tokens may be right and the logits not",
    ),
    Rule(
        "requests-failed",
        "every request gets all of its tokens",
        "mend the requests the report lists, or the limits they exceed",
    ),
    Rule(
        "requests-conserved",
        "requests in = completed + failed + running, each of them once",
        FAULT,
        is_fault=True,
    ),
    Rule(
        "tokens-conserved",
        "positions computed by steps = prompts + outputs - cached + recomputed + wasted + rejected drafts, "
        "over all requests",
        FAULT,
        is_fault=True,
    ),
    Rule(
        "other-steps",
        "a run of a list of steps takes exactly those: how many, the rows, tokens and images of each",
        "raise runner.max_num_seqs, runner.num_blocks, runner.num_encoder_slots or runner.num_resident_rows: "
        "an async arm gives back what a request held one step after it ended. Record runs whose requests end "
        "by their length: one that a token ends takes a step more under async",
    ),
    Rule(
        "tokens-counted",
        "the output tokens of a request are counted alike by its number, its ids and its times",
        FAULT,
        is_fault=True,
    ),
    Rule(
        "times-in-order",
        "a request is sent, computed, gets its tokens and ends, in this order and on one clock",
        FAULT,
        is_fault=True,
    ),
    Rule(
        "littles-law",
        "mean number of requests in the system, as the steps saw it = rate x mean time in the system, as the "
        "requests saw it, within 5 % and the steps in which a request came or went",
        FAULT,
        is_fault=True,
    ),
    Rule(
        "peak-above-mean",
        "of every quantity: mean and percentiles <= maximum, in order",
        FAULT,
        is_fault=True,
    ),
    Rule(
        "spans-within-step",
        "the leaf spans of a step add up to no more than the step, on the host and on the device",
        FAULT,
        is_fault=True,
    ),
)

_TIMING = (
    Rule(
        "off-schedule",
        "requests are handed over at their scheduled time, give or take the step that was running",
        "leave a core for the host, lower the arrival rate, or shorten the steps",
        is_timing=True,
    ),
    Rule(
        "off-rate",
        "over the whole run an open loop sends within 2 % of the rate of its schedule",
        "lower the arrival rate, shorten the steps, or send more requests: none can be sent within a step",
        is_timing=True,
    ),
    Rule(
        "not-steady",
        "a closed loop's batch settles, and an open loop of one rate has no queue that grows all the time",
        "more requests, or room for all of them; of a growing queue, a lower rate: its latencies depend on "
        "how long the run is",
        is_timing=True,
    ),
    Rule(
        "cache-hits",
        f"at most {MAX_UNASKED_HIT_RATE:g} % of prompt positions are found in the prefix cache where "
        "nothing is meant to be shared",
        "set traffic.shared_prefix where prompts begin alike by design; else draw distinct prompts, or turn "
        "runner.prefix_caching off: repeated prompts make a run faster than distinct ones would",
        is_timing=True,
    ),
    Rule(
        "foreign-load",
        "other processes use at most a tenth of the cores' time during a run",
        "end what else runs on this machine, or wait for it, and run again",
        is_timing=True,
    ),
    Rule(
        "stolen-time",
        "the hypervisor takes at most 2 % of the cores' time during a run",
        "run on a machine that is not shared, or at another time",
        is_timing=True,
    ),
    Rule(
        "compiled-within",
        "under runner.torch_compile all is compiled before the first run, nothing within one",
        "report it with the run folder, for the warm-up should know every step; set runner.torch_compile to "
        "false meanwhile",
        is_timing=True,
    ),
    Rule(
        "gpu-throttled",
        "the GPU is not slowed down by its temperature or a limit of power",
        "cool it, or lock its clocks lower than it can hold: nvidia-smi --lock-gpu-clocks",
        is_timing=True,
    ),
    Rule(
        "gpu-shared",
        "no other process computes on the GPU",
        "end the other process, or choose another GPU by CUDA_VISIBLE_DEVICES",
        is_timing=True,
    ),
    Rule(
        "gpu-clocks",
        "the GPU's clock is within 5 % of the highest it had in any run of the case",
        "lock its clocks: nvidia-smi --lock-gpu-clocks",
        is_timing=True,
    ),
    Rule(
        "too-few-rounds",
        f"at least {MIN_ROUNDS} rounds are measured, so that a spread can be seen",
        f"use --rounds {MIN_ROUNDS} or more",
        is_timing=True,
        is_of_run=False,
    ),
    Rule(
        "drift",
        "over the rounds of an arm no ratio to the reference arm that decides has a trend of 3 % or more "
        "(slope of its logarithm, p < 0.01); where an arm ran alone, no figure that decides",
        "warm up for longer (warmup_rounds), let the machine settle, and run again",
        is_timing=True,
        is_of_run=False,
    ),
)
RULES: Mapping[str, Rule] = MappingProxyType({rule.name: rule for rule in (*_CORRECTNESS, *_TIMING)})


def broken(rule: str, run: RunRecord, message: str) -> Finding:
    """That `run` broke the rule of that name."""
    found = RULES[rule]
    return Finding(run.run_id, rule, message, found.remedy, found.is_timing)


def invalid_runs(findings: Iterable[Finding]) -> frozenset[str]:
    """The ids of the runs that enter no figure; a rule that is unknown by now counts as well."""
    return frozenset(broken_rules(findings))


def broken_rules(findings: Iterable[Finding]) -> Broken:
    """Of the runs that enter no figure."""
    found: dict[str, tuple[str, ...]] = {}
    for finding in findings:
        if finding.rule not in RULES or RULES[finding.rule].is_of_run:
            found[finding.run_id] = tuple(dict.fromkeys((*found.get(finding.run_id, ()), finding.rule)))
    return found
