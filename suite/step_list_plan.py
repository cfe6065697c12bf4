"""From a written list of steps to the requests that make a scheduler plan exactly those.

A request that decodes is handed over before it is needed: its prompt is computed in a lead-in step. A prompt
of the mix is a request of its own, which asks for one token and so is gone with its step. Which request
comes before which step, and how long it is, decides every plan: decodes are scheduled first, then whoever
waits, and a request that reached its length is in no further step, whether its last token is known yet or
not. Under async scheduling what a request holds is free one step later than under sync, so there must be
room for both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from runner.config import RunnerConfig
from runner.models import ModelSpec
from suite.errors import KeyedError
from suite.need import Demand, EmbedsKind, ListedStep, Need, image_positions
from suite.step_list import StepMix, WrittenSteps, exact_count

_MIX = "traffic.steps.mix"
_CONTEXT = "traffic.steps.context.tokens"
_LATER = "an async arm gives back what a request held one step after it ended"


def plan_written(written: WrittenSteps, model: ModelSpec, runner: RunnerConfig) -> Demand:
    """The requests and the steps they make; KeyedError where the runner is too small for a step."""
    _check_mix(written, model, runner)
    planner = _Planner(written, model, runner)
    for _ in range(written.repeat):
        for place, entry in enumerate(written.mix):
            for _ in range(entry.repeat):
                planner.measured_step(entry, place)
    return planner.demand()


def _check_mix(written: WrittenSteps, model: ModelSpec, runner: RunnerConfig) -> None:
    """What no size of a step tells: the model, the rows that decode, and drafts."""
    for place, entry in enumerate(written.mix):
        if entry.images and model.vision is None:
            raise KeyedError(f"{_MIX}.{place}.images", f"{model.name} is a text model: remove it")
    tokens = written.context.tokens
    if any(entry.decode for entry in written.mix) and tokens + 2 > runner.max_model_len:
        raise KeyedError(
            _CONTEXT,
            f"a row of it that decodes takes {tokens + 2} positions, and runner.max_model_len is "
            f"{runner.max_model_len}: lower it, or raise that limit",
        )
    if runner.num_speculative_tokens:
        raise KeyedError(
            "runner.num_speculative_tokens",
            "how long a step is would hang on drafts, not on the list: set it to 0",
        )


@dataclass(slots=True, eq=False)
class _Prompt:
    """A request in the making. `num_outputs` grows with every step that it decodes in."""

    ask: int
    text_tokens: int
    num_images: int
    num_supplied: int
    image_tokens: int
    num_outputs: int = 1

    @property
    def num_prompt(self) -> int:
        return self.text_tokens + self.image_tokens

    @property
    def num_computed(self) -> int:
        """Positions, after its last step so far; the last token it sampled is not computed."""
        return self.num_prompt + self.num_outputs - 1

    def need(self) -> Need:
        kind: EmbedsKind | None = None
        if self.num_supplied:
            is_whole = self.num_supplied == self.text_tokens and not self.num_images
            kind = "pure" if is_whole else "spliced"
        return Need(
            arrival_s=0.0,
            text_tokens=self.text_tokens,
            num_images=self.num_images,
            output_tokens=self.num_outputs,
            embeds=kind,
            num_supplied=self.num_supplied or None,
            ask=self.ask,
        )


@dataclass(slots=True)
class _Planner:
    """Plays the scheduler's part: who is there in which step, and what all of them hold."""

    written: WrittenSteps
    model: ModelSpec
    runner: RunnerConfig
    _steps: list[ListedStep] = field(default_factory=list)
    _prompts: list[_Prompt] = field(default_factory=list)
    _decoding: list[_Prompt] = field(default_factory=list)
    _gone: list[_Prompt] = field(
        default_factory=list
    )  # after the last step: they may still hold what they had

    def measured_step(self, entry: StepMix, place: int) -> None:
        """The step that an entry of the mix describes, behind the lead-in that it needs."""
        self._let_go(entry.decode)
        num_lead_in = 0
        while len(self._decoding) < entry.decode:
            self._check_filling(entry.decode, num_lead_in)
            self._decoding += self._step(self._newcomers(entry.decode), is_lead_in=True)
            self._let_go(entry.decode)
            num_lead_in += 1
        self._gone = self._step(self._prefills(entry, place), is_lead_in=False)

    def demand(self) -> Demand:
        return Demand(tuple(one.need() for one in self._prompts), self._notes(), tuple(self._steps))

    def _let_go(self, num_decode: int) -> None:
        """Of rows that have no room for one more token, then of the oldest of too many."""
        has_room = [one.num_prompt + one.num_outputs < self.runner.max_model_len for one in self._decoding]
        num_left_out = max(0, sum(has_room) - num_decode)
        staying: list[_Prompt] = []
        for one, may_stay in zip(self._decoding, has_room, strict=True):
            if may_stay and num_left_out == 0:
                staying.append(one)
            else:
                num_left_out -= may_stay
                self._gone.append(one)
        self._decoding = staying

    def _newcomers(self, num_decode: int) -> list[_Prompt]:
        """As many rows to come as the next step has room for, one at least."""
        tokens = self.written.context.tokens
        num_decoding = len(self._decoding)
        most = min(
            num_decode - num_decoding,
            (self.runner.max_num_batched_tokens - num_decoding) // tokens,
            self.runner.max_num_seqs - num_decoding - len(self._gone),
        )
        supplied = exact_count(tokens, self.written.context_share)
        return [_Prompt(len(self._steps), tokens, 0, supplied, 0) for _ in range(max(1, most))]

    def _prefills(self, entry: StepMix, place: int) -> list[_Prompt]:
        found = []
        for index, num_positions in enumerate(entry.prefill):
            num_images = entry.images // len(entry.prefill) + (index < entry.images % len(entry.prefill))
            image_tokens = num_images * image_positions(self.model)
            num_text = num_positions - image_tokens
            if num_text < 1:
                raise KeyedError(
                    f"{_MIX}.{place}.prefill",
                    f"{num_positions} positions do not hold {num_images} x {image_positions(self.model)} of "
                    "images and one of text: make it longer, or bring fewer images",
                )
            supplied = exact_count(num_text, self.written.share(entry))
            found.append(_Prompt(len(self._steps), num_text, num_images, supplied, image_tokens))
        return found

    def _step(self, newcomers: list[_Prompt], *, is_lead_in: bool) -> list[_Prompt]:
        """One step of all that decode and of `newcomers`, who are returned."""
        for one in self._decoding:
            one.num_outputs += 1
        num_images = sum(one.num_images for one in newcomers)
        vision = self.model.vision
        step = ListedStep(
            num_rows=len(self._decoding) + len(newcomers),
            num_decode_rows=len(self._decoding),
            num_prefill_tokens=sum(one.num_prompt for one in newcomers),
            num_image_rows=num_images * (vision.rows_per_image if vision else 0),
            num_images_encoded=num_images,
            num_supplied_rows=sum(one.num_supplied for one in newcomers),
            is_lead_in=is_lead_in,
        )
        self._check(step, newcomers)
        self._steps.append(step)
        self._prompts += newcomers
        self._gone = []
        return newcomers

    def _check(self, step: ListedStep, newcomers: Sequence[_Prompt]) -> None:
        """KeyedError for the first size of the runner that a step does not fit, whatever its arm."""
        holding = [*self._decoding, *newcomers, *self._gone]
        block = self.runner.block_size
        resident = sum(one.num_prompt for one in holding if one.num_supplied)
        longest = max((one.num_prompt + 1 for one in newcomers), default=0)
        needed = {
            "max_model_len": (longest, "positions of one request"),
            "max_num_batched_tokens": (step.num_decode_rows + step.num_prefill_tokens, "tokens"),
            "max_num_seqs": (len(holding), f"places ({_LATER})"),
            "num_blocks": (sum(-(-one.num_computed // block) for one in holding), f"blocks ({_LATER})"),
            "num_resident_rows": (resident, f"rows kept on the device ({_LATER})"),
            "max_images_per_step": (step.num_images_encoded, "images"),
            "max_encoder_tokens_per_step": (step.num_image_rows, "image rows"),
            "num_encoder_slots": (sum(one.num_images for one in holding), f"images kept ({_LATER})"),
        }
        for name, (count, what) in needed.items():
            if count > getattr(self.runner, name):
                raise KeyedError(
                    f"runner.{name}",
                    f"a step of {_shape(step, newcomers)} needs {count} {what}: raise it",
                )

    def _check_filling(self, num_decode: int, num_lead_in: int) -> None:
        """Refuse rows that end before the last of them is there."""
        if num_lead_in > 2 * num_decode:
            raise KeyedError(
                "runner.max_num_batched_tokens",
                f"{num_decode} rows never decode together: the first reaches runner.max_model_len, "
                f"{self.runner.max_model_len}, before the last is there; raise one of the two, or lower "
                f"{_CONTEXT}",
            )

    def _notes(self) -> tuple[str, ...]:
        kinds = Counter(step.kind for step in self._steps if not step.is_lead_in)
        shown = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        num_lead_in = sum(step.is_lead_in for step in self._steps)
        share = self.written.context_share
        return (
            f"{sum(kinds.values())} written steps (traffic.steps): {shown}; the same in every arm",
            f"{num_lead_in} steps of lead-in bring {self._num_decoded()} prompts of "
            f"{self.written.context.tokens} tokens, {share:g} of them supplied, as far as decoding: they are "
            "in no attribution",
        )

    def _num_decoded(self) -> int:
        lead_in = {number for number, step in enumerate(self._steps) if step.is_lead_in}
        return sum(one.ask in lead_in for one in self._prompts)


def _shape(step: ListedStep, newcomers: Sequence[_Prompt]) -> str:
    prompts = [one.num_prompt for one in newcomers]
    told = f" and prompts of {prompts if len(prompts) < 5 else f'{len(prompts)} x {max(prompts)} at most'}"
    lead_in = " (lead-in)" if step.is_lead_in else ""
    return f"{step.num_decode_rows} decodes{told if prompts else ''}{lead_in}"
