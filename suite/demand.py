"""What a case asks for: when each request comes, how long it is, its images, whether it brings embeddings.

Pure and cheap, so that `validate` finds every request that could never run.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from runner.config import RunnerConfig
from runner.models import ModelSpec
from suite.arrival_kinds import Gamma, Poisson, Ramp, TraceReplay, is_closed_loop, most_at_once, process_of
from suite.embeds_demand import with_embeds
from suite.errors import KeyedError
from suite.image_demand import draw_images
from suite.need import Demand, Need, exact_share, image_positions, room
from suite.prefix_demand import with_prefixes
from suite.seeding import seeded
from suite.step_list import RecordedRun, WrittenSteps
from suite.step_list_plan import plan_written
from suite.step_list_recorded import read_recorded
from suite.trace_demand import TraceDemand
from suite.traffic import Traffic


def plan_demand(traffic: Traffic, model: ModelSpec, runner: RunnerConfig, seed: int) -> Demand:
    """The requests of one case; SuiteError names what can never run and how to mend it."""
    if isinstance(traffic.steps, RecordedRun):
        return _recorded(traffic.steps, model, runner)
    if isinstance(traffic.steps, WrittenSteps):
        listed = plan_written(traffic.steps, model, runner)
        return replace(listed, notes=(*listed.notes, *_noise_notes(traffic), *traffic.sampling.notes()))
    if isinstance(traffic.arrivals, TraceReplay):
        demand = TraceDemand(traffic, traffic.arrivals, model, runner, seed).demand()
    else:
        demand = _synthetic(traffic, model, runner, seed)
    if traffic.shared_prefix is not None and any(need.blocks is not None for need in demand.needs):
        raise KeyedError("traffic.shared_prefix", "the trace has its own equal beginnings: remove it")
    needs, embeds_notes = with_embeds(demand.needs, traffic, model, runner, seed)
    _check_files(needs, runner)
    needs, prefix_notes = with_prefixes(needs, traffic, seed)
    _check_min_tokens(needs, traffic)
    notes = (
        *demand.notes,
        *embeds_notes,
        *prefix_notes,
        *_pace_notes(needs, traffic),
        *traffic.sampling.notes(),
    )
    return Demand(needs, notes)


def _recorded(steps: RecordedRun, model: ModelSpec, runner: RunnerConfig) -> Demand:
    """The requests of a recorded run once more, each before the step that it came before then."""
    recorded = read_recorded(Path(steps.recorded), steps.run)
    recorded.check_runner(model, runner)
    demand = plan_demand(recorded.origin.traffic, model, runner, recorded.origin.seed)
    if len(demand.needs) != len(recorded.asks):
        raise KeyedError(
            "traffic.steps.run",
            f"it recorded {len(recorded.asks)} requests, and its scenario now makes {len(demand.needs)}: a "
            "file it is made of has changed; record it again",
        )
    asks = zip(demand.needs, recorded.asks, strict=True)
    return Demand(
        tuple(replace(need, ask=ask) for need, ask in asks),
        (*demand.notes, *recorded.notes),
        recorded.steps,
        recorded.origin,
    )


def _noise_notes(traffic: Traffic) -> Iterator[str]:
    if traffic.embeds_noise:
        yield f"noise of {traffic.embeds_noise:g} of their own spread is added to supplied rows"


def _check_min_tokens(needs: Sequence[Need], traffic: Traffic) -> None:
    """No request may be asked for more tokens than it may have, whatever this seed draws."""
    least = min(need.output_tokens for need in needs)
    mend = "raise traffic.arrivals.length_scale"
    if traffic.output_tokens is not None:
        least, mend = traffic.output_tokens.smallest, "raise traffic.output_tokens"
    if traffic.sampling.min_tokens > least:
        raise KeyedError(
            "traffic.sampling.min_tokens",
            f"the shortest output asked for has {least} tokens: lower it, or {mend}",
        )


def _check_files(needs: Sequence[Need], runner: RunnerConfig) -> None:
    """A file's length is not the distributions', so it is checked by itself."""
    most, limit = room(runner)
    for need in needs:
        if need.rows is not None and need.text_tokens + need.output_tokens > most:
            raise KeyedError(
                "traffic.embeds_files",
                f"{need.rows.path} has {need.text_tokens} rows, with {need.output_tokens} output tokens more "
                f"than fit, since {limit}: shorten it, lower traffic.output_tokens, or raise that limit",
            )


def _synthetic(traffic: Traffic, model: ModelSpec, runner: RunnerConfig, seed: int) -> Demand:
    assert traffic.num_requests is not None
    assert traffic.prompt_tokens is not None and traffic.output_tokens is not None
    images = draw_images(traffic, model, traffic.num_requests, seed)
    _check_longest(traffic, model, runner)
    texts = traffic.prompt_tokens.draw(seeded(seed, "prompt_tokens"), traffic.num_requests)
    outputs = traffic.output_tokens.draw(seeded(seed, "output_tokens"), traffic.num_requests)
    process = process_of(traffic.arrivals)
    assert not isinstance(process, TraceReplay)
    times = process.times(traffic.num_requests, seeded(seed, "arrivals"))
    needs = tuple(itertools.starmap(Need, zip(times, texts, images, outputs, strict=True)))
    return Demand(needs, (_count_note(needs, traffic.multimodal_ratio, model),))


def _pace_notes(needs: Sequence[Need], traffic: Traffic) -> Iterator[str]:
    """When requests are sent, where that is drawn, or depends on others."""
    process, most = process_of(traffic.arrivals), most_at_once(traffic.arrivals)
    if isinstance(process, (Poisson, Gamma, Ramp)):
        last_s = needs[-1].arrival_s
        drawn = f", {(len(needs) - 1) / last_s:.4g} requests/s" if last_s else ""
        yield f"{process.kind} arrivals: {len(needs)} requests within {last_s:.3f} s{drawn}"
    if is_closed_loop(traffic.arrivals):
        yield f"closed loop: a request is sent, and due, when one of {most} places is free"
    elif most is not None:
        yield f"at most {most} requests at once: one that waits longer is still due at its scheduled time"


def _count_note(needs: Sequence[Need], ratio: float, model: ModelSpec) -> str:
    with_images = sum(need.num_images > 0 for need in needs)
    note = f"{len(needs)} requests, {with_images} with images (traffic.multimodal_ratio {ratio:g})"
    if not with_images:
        return note
    return f"{note}; each image takes {image_positions(model)} prompt positions beside the text"


def _check_longest(traffic: Traffic, model: ModelSpec, runner: RunnerConfig) -> None:
    """Refuse the longest request the distributions can draw, whatever this seed draws."""
    assert traffic.prompt_tokens is not None and traffic.output_tokens is not None
    text, output = traffic.prompt_tokens.largest, traffic.output_tokens.largest
    has_images = exact_share(traffic.num_requests or 0, traffic.multimodal_ratio) > 0
    images = traffic.images_per_request.largest if has_images else 0
    length = text + images * image_positions(model) + output
    most, limit = room(runner)
    if length > most:
        raise KeyedError(
            "traffic.prompt_tokens",
            f"the longest request has {text} text + {images} x {image_positions(model)} image + "
            f"{output} output = {length} tokens, but {limit}: lower traffic.prompt_tokens or "
            "traffic.output_tokens, or raise that limit",
        )
