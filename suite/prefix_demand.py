"""Which requests begin alike, and with how much text: traffic.shared_prefix.

Drawn after everything else and from seeds of its own, so that the cases of a sweep over its keys differ in
nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from suite.errors import KeyedError
from suite.need import Need, SharedPrefix
from suite.seeding import seeded
from suite.traffic import SharedPrefixes, Traffic


def with_prefixes(
    needs: Sequence[Need], traffic: Traffic, seed: int
) -> tuple[tuple[Need, ...], tuple[str, ...]]:
    """The needs with what each shares, and notes. KeyedError where no prompt is as long as a prefix.

    A prompt from a file is what it is: it shares nothing, and is not counted when requests are spread.
    """
    shared = traffic.shared_prefix
    if shared is None:
        return tuple(needs), ()
    _check_lengths(shared, traffic)
    sharing = [index for index, need in enumerate(needs) if need.rows is None]
    lengths = shared.tokens.draw(seeded(seed, "prefix tokens"), min(shared.groups, len(sharing)))
    groups = seeded(seed, "prefix groups").permutation(np.arange(len(sharing)) % shared.groups).tolist()
    given = list(needs)
    for index, group in zip(sharing, groups, strict=True):
        num_tokens = min(lengths[group], needs[index].text_tokens)
        prefix = SharedPrefix(group, lengths[group], num_tokens, shared.images == "shared")
        given[index] = replace(needs[index], prefix=prefix)
    return tuple(given), _notes([need.prefix for need in given if need.prefix], shared)


def _check_lengths(shared: SharedPrefixes, traffic: Traffic) -> None:
    longest = traffic.prompt_tokens.largest if traffic.prompt_tokens is not None else None
    if longest is not None and shared.tokens.largest > longest:
        raise KeyedError(
            "traffic.shared_prefix.tokens",
            f"a shared prefix counts within a prompt's text, and the longest has {longest} tokens: lower it, "
            "or raise traffic.prompt_tokens",
        )


def _notes(prefixes: Sequence[SharedPrefix], shared: SharedPrefixes) -> tuple[str, ...]:
    sizes = Counter(prefix.group for prefix in prefixes)
    if not sizes:
        return ("traffic.shared_prefix is not used: no request has text of its own",)
    lengths = [prefix.group_tokens for prefix in prefixes]
    span = f"{min(lengths)}" if min(lengths) == max(lengths) else f"{min(lengths)} to {max(lengths)}"
    images = "are the group's too" if shared.images == "shared" else "are each request's own, behind it"
    notes = [
        f"{len(prefixes)} requests in {len(sizes)} groups of {min(sizes.values())} to {max(sizes.values())} "
        f"begin with their group's {span} text tokens (traffic.shared_prefix); images {images}"
    ]
    num_short = sum(prefix.num_tokens < prefix.group_tokens for prefix in prefixes)
    if num_short:
        notes.append(f"requests with less text than their group's prefix, all of it shared: {num_short}")
    if max(sizes.values()) == 1:
        notes.append(
            f"traffic.shared_prefix.groups {shared.groups} leaves one request to a group: none shares"
        )
    return tuple(notes)
