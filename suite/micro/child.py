"""The process that measures: an order on standard input, messages on standard output (torch)."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import torch

from runner.models import ModelSpec, get_model
from runner.spans import LEVELS
from suite.ceiling_store import fingerprint, load, save
from suite.micro.case import Case, row_of
from suite.micro.catalogue import CEILINGS, Row, groups_of, is_chosen
from suite.micro.ceiling_probes import measure_ceilings
from suite.micro.hashing import hashing
from suite.micro.instrument import span_cost_ns
from suite.micro.machine import Machine, open_machine
from suite.micro.median import Estimate
from suite.micro.protocol import Message, Order
from suite.micro.timing import DEFAULT_EFFORT, floor, measure
from suite.micro.transfers import WIDE, flag_uploads, routes, row_cases

Tell = Callable[[Message], None]

EXIT_INTERRUPTED = 130


def main() -> None:
    """Entry point of the process."""
    # What a library prints must not come between the messages.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as messages:
        os.dup2(2, 1)

        def tell(message: Message) -> None:
            print(message.model_dump_json(), file=messages, flush=True)

        try:
            carry_out(Order.model_validate_json(sys.stdin.readline()), tell)
        except (KeyboardInterrupt, BrokenPipeError):
            with suppress(OSError):
                messages.flush()
            os._exit(EXIT_INTERRUPTED)
        except Exception as error:
            traceback.print_exc()
            tell(Message(kind="failed", text=f"{type(error).__name__}: {error}"))


def carry_out(order: Order, tell: Tell) -> None:
    """Measure what is ordered; every figure is told as soon as it is there."""
    effort = DEFAULT_EFFORT
    if order.budget_ns is not None:
        effort = replace(effort, budget_ns=order.budget_ns)
    machine, model = open_machine(order.device, order.num_threads, effort), get_model(order.model)
    with torch.inference_mode():
        if CEILINGS in order.chosen:
            tell(_ceilings(machine, model, order, tell))
        groups = groups_of(order.chosen)
        if any(group != CEILINGS for group in groups):
            tell(Message(kind="row", row=row_of("empty loop", "", floor(machine.timer, effort), "warm")))
        for case in cases_of(machine, model, groups, tell):
            if is_chosen(case.group, case.name, order.chosen):
                tell(Message(kind="row", row=measured(machine, case)))
        if "instrument" in groups:
            for row in instrument_rows():
                if is_chosen("instrument", row.name, order.chosen):
                    tell(Message(kind="row", row=row))
    tell(Message(kind="done"))


def _ceilings(machine: Machine, model: ModelSpec, order: Order, tell: Tell) -> Message:
    key = fingerprint(machine.kind, machine.name, machine.num_threads, model, order.dtype)
    if not order.is_fresh:
        kept = load(key)
        if kept.note:
            tell(Message(kind="note", text=kept.note))
        if kept.ceilings is not None:
            return Message(kind="ceilings", ceilings=kept.ceilings, is_cached=True)
    ceilings = measure_ceilings(
        machine, model, lambda text: tell(Message(kind="progress", text=text)), order.dtype
    )
    refusal = save(key, ceilings)
    if refusal:
        tell(Message(kind="note", text=refusal))
    return Message(kind="ceilings", ceilings=ceilings)


def cases_of(machine: Machine, model: ModelSpec, groups: Sequence[str], tell: Tell) -> Iterator[Case]:
    """The cases of the groups, in order; they are made one by one, for each takes memory."""
    hidden = tuple(dict.fromkeys((model.hidden_size, WIDE)))
    sources: tuple[tuple[tuple[str, ...], Callable[[], Iterator[Case]]], ...] = (
        (("flag-upload",), lambda: flag_uploads(machine)),
        (("embedding-upload", "merge"), lambda: row_cases(machine, hidden)),
        (("route",), lambda: routes(machine)),
        (("hash",), lambda: hashing(hidden)),
    )
    for names, make in sources:
        if any(name in groups for name in names):
            tell(Message(kind="progress", text=", ".join(name for name in names if name in groups)))
            yield from make()


def measured(machine: Machine, case: Case) -> Row:
    calls, is_cold = case.prepare()
    timing = measure(case.timer or machine.timer, calls, machine.effort)
    return row_of(case.name, case.size, timing, "cold" if is_cold else "warm", case.work)


def instrument_rows() -> Iterator[Row]:
    """Per span, at every level but `off`."""
    for level in LEVELS[1:]:
        cost = span_cost_ns(level)
        for kind, found in (("host", cost.host), ("command", cost.command), ("read", cost.read)):
            if found.value or kind != "read":
                yield _span_row(f"span.{kind}", level, found)


def _span_row(name: str, size: str, found: Estimate) -> Row:
    return Row(
        name=name,
        size=size,
        best_ns=found.least,
        median_ns=found.value,
        low_ns=found.low,
        high_ns=found.high,
        interval_reason=found.reason,
        n=found.n,
        calls=1,
        enqueue_ns=None,
        launch_bound=False,
        memory="warm",
        rate=None,
        unit=None,
    )
