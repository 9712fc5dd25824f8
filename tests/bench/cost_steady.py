"""What reflecting costs once a log is long: the rules of memory/lifecycle, played over notes that
keep coming.

The memory's own decisions are performed, with a reflector that writes as many tokens as it is let.
Two figures: tokens it writes for each token of new notes, and how often an old note is rewritten
while 100 000 tokens of new ones come.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from om_proxy.agents.reflector import compute_requested_tokens
from om_proxy.memory.lifecycle import decisions, transitions
from om_proxy.memory.lifecycle.decisions import Reflect, RequestState, Swap
from om_proxy.memory.lifecycle.thresholds import Limits
from om_proxy.memory.model import EMPTY_CHAIN, Key, Memory, Observation, Reflection, replace_log

ENTRY_TOKENS = 480  # of one observation: what chunks of chat came to, as measured
NEW_TOKENS = 400_000  # of notes, from the first swap on

Length = Callable[
    [int, int], int
]  # tokens of the log, and below which its reflection is accepted → tokens of the reflection


def write_as_accepted(source: int, accept_below: int) -> int:
    """The longest reflection that is accepted at once."""
    return min(source, accept_below) - 1


def write_as_asked(source: int, accept_below: int) -> int:
    """A reflection of the size the prompt names."""
    return compute_requested_tokens("none", accept_below)


@dataclass(slots=True)
class Steady:
    """Tokens and counts from the first swap on."""

    new: int = 0
    read: int = 0
    written: int = 0
    swaps: int = 0
    oldest_rewritten: int = 0  # how often the oldest notes were

    @property
    def written_per_new(self) -> float:
        return self.written / max(self.new, 1)

    @property
    def read_per_new(self) -> float:
        return self.read / max(self.new, 1)

    @property
    def rewrites(self) -> float:
        """Of the oldest notes, per 100 000 tokens of new ones."""
        return self.oldest_rewritten * 100_000 / max(self.new, 1)


def play_notes(limits: Limits, length: Length) -> Steady:
    """Notes of one thread, one observation at a time; a reflection is done before the next one
    comes."""
    found, memory, swapped = Steady(), Memory(key=Key("", "", "bench")), False
    while found.new < NEW_TOKENS:
        memory = _noted(memory)
        found.new += ENTRY_TOKENS * swapped
        while decision := _due(memory, limits):
            if isinstance(decision, Swap):
                oldest = memory.log.entries[0]
                memory = transitions.swap_reflection(memory, now=0.0)
                found.swaps += swapped
                found.oldest_rewritten += swapped and memory.log.entries[0] != oldest
                swapped = True
            else:
                source = sum(o.tokens for o in stretch(memory, decision))
                tokens = length(source, decision.accept_below)
                found.read += source * swapped
                found.written += tokens * swapped
                memory = _reflected(memory, decision, source, tokens)
    return found


def stretch(memory: Memory, decision: Reflect) -> tuple[Observation, ...]:
    """The entries that a reflection condenses."""
    return memory.log.entries[decision.start : decision.start + decision.entries]


def _due(memory: Memory, limits: Limits) -> Swap | Reflect | None:
    """Of what is due, before a request and behind its reply, what concerns the log."""
    decision = decisions.decide_before_forwarding(
        memory, limits, RequestState(last_observable_seq=0)
    ) or decisions.decide_after_reply(memory, limits)
    return decision if isinstance(decision, Swap | Reflect) else None


def _noted(memory: Memory) -> Memory:
    entry = Observation(
        id=memory.next_id,
        after=0,
        last=0,
        chain=EMPTY_CHAIN,
        text="noted",
        tokens=ENTRY_TOKENS,
        source_tokens=0,
        at=0.0,
    )
    return replace(
        replace_log(memory, entries=(*memory.log.entries, entry)), next_id=memory.next_id + 1
    )


def _reflected(memory: Memory, decision: Reflect, source: int, tokens: int) -> Memory:
    """Beside the log, or in its place at once where a request waits for it."""
    made = Reflection(
        generation=memory.log.generation,
        sources=tuple(o.id for o in stretch(memory, decision)),
        text="noted",
        tokens=tokens,
        source_tokens=source,
        at=0.0,
    )
    return transitions.keep_reflection(memory, made)
