"""Choose which entries of a log a reflection condenses next, and how short it must become.

A log of R tokens holds more notes only if they are condensed more firmly, and the loss grows faster
than the saving. Measured with a language model in the reflector's place, on conversations that the
prompts were not written with: dense notes that were condensed to a half lost 9 of 100 facts, to a
quarter in two steps 16, to an eighth in three 33. To 0.65 they lost 3 to 4. Rewriting the whole log
each time condenses the oldest notes again and again, however little room is needed.

So a reflection takes one *stretch*. Entries that were never condensed become 0.7, others half, but
up to 0.7 where these are far more than must be condensed: a log of few large entries. The stretch
is the oldest of the entries condensed least often, as many as are needed. Each entry has a
*depth*: how often its words have been condensed. Notes of 2 R in all are condensed at most twice,
of 16 R 8 times and of 64 R 17 times; the whole log would have been rewritten 3, 30 and 126 times.
The entries before the stretch keep their bytes, so the provider's prompt cache hits there.

A share r frees 1 - r of the tokens that the reflector reads. So it writes about one token for each new
token of notes: 1.25 if its answers have the size that is asked for, 1.6 if they are just accepted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from om_proxy.memory.model import Observation

MIN_STRETCH_SHARE = 0.2  # of R: less would free too little for a call
# of the stretch; the prompt asks for a tenth less
FIRST_ACCEPTED_SHARE = 0.7  # of entries that were never condensed
LATER_ACCEPTED_SHARE = 0.55
# of the stretch: a reflector that leaves more would be asked again at every request
MAX_PRODUCTIVE_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class LogStretch:
    """The `count` entries of a log from index `start` on, their tokens, and the share of these that
    a reflection may leave."""

    start: int
    count: int
    tokens: int
    accepted_share: float = FIRST_ACCEPTED_SHARE


@dataclass(frozen=True, slots=True)
class _Need:
    """What a stretch must come to: tokens, what it frees, entries with words; and never more tokens
    than `max_tokens` to free them."""

    min_tokens: float
    excess_tokens: int
    min_with_words: int
    max_tokens: int


def take_whole_log(entries: Sequence[Observation]) -> LogStretch:
    """Return the stretch of all entries. `entries` is not empty."""
    return _measure_stretch(entries, _depths(entries), 0, len(entries))


def choose_stretch(
    entries: Sequence[Observation], max_log_tokens: int, excess_entries: int = 0
) -> LogStretch:
    """Return the entries to condense next, so that the log comes below `max_log_tokens` (R), or is
    shorter by `excess_entries`. `entries` is not empty.

    Takes the least depth at which neighbours, condensed at most so often, free enough; of these the
    oldest, as many as are needed. Never takes more than R tokens: a log that grew far beyond R, as
    after an outage of the reflector, comes back in several reflections, and not in one to a fifth.
    A log smaller than the least stretch is taken whole. With `excess_entries` it takes as many with
    words as become one, however small they are.
    """
    excess_tokens = max(0, sum(entry.tokens for entry in entries) - max_log_tokens)
    need = _Need(
        0.0 if excess_entries else MIN_STRETCH_SHARE * max_log_tokens,
        excess_tokens,
        excess_entries + 1,
        max_log_tokens,
    )
    depths = _depths(entries)
    for depth in sorted(set(depths)):
        for group in _group_neighbours([entry_depth <= depth for entry_depth in depths]):
            oldest = _take_oldest(entries, depths, group, need)
            if oldest is None:
                continue
            # twice what the least stretch frees, so that the next reflection is not due at once
            twice_least = 2 * MIN_STRETCH_SHARE * max_log_tokens * (1 - oldest.accepted_share)
            needed = excess_tokens + twice_least
            spared = min(FIRST_ACCEPTED_SHARE, 1 - needed / max(1, oldest.tokens))
            return replace(oldest, accepted_share=max(oldest.accepted_share, spared))
    return take_whole_log(entries)


def acceptance_limit(stretch: LogStretch) -> int:
    """Return the tokens below which a reflection of the stretch is accepted."""
    return round(stretch.tokens * stretch.accepted_share) + 1


def frees_enough(before_tokens: int, after_tokens: int) -> bool:
    """Return whether condensing a stretch was worth its call. Then the next reflection may follow
    at once, else only when the log has grown."""
    return after_tokens <= before_tokens * MAX_PRODUCTIVE_SHARE


def _accepted_share(depth: int) -> float:
    """Return the share for an entry that was condensed so many times."""
    return LATER_ACCEPTED_SHARE if depth else FIRST_ACCEPTED_SHARE


def _measure_stretch(
    entries: Sequence[Observation], depths: Sequence[int], start: int, count: int
) -> LogStretch:
    """Return the stretch. Its share is what its entries may leave, each by how often it was
    condensed: new notes beside old ones are not condensed as firmly as these."""
    tokens = accepted = 0.0
    for entry, depth in zip(entries[start : start + count], depths[start:], strict=False):
        tokens += entry.tokens
        accepted += entry.tokens * _accepted_share(depth)
    share = accepted / tokens if tokens else FIRST_ACCEPTED_SHARE
    return LogStretch(start, count, int(tokens), share)


def _group_neighbours(chosen: Sequence[bool]) -> Iterator[range]:
    """Yield the indexes of the chosen entries that are neighbours, the oldest first."""
    start = 0
    for is_chosen, run in groupby(chosen):
        end = start + len(list(run))
        if is_chosen:
            yield range(start, end)
        start = end


def _depths(entries: Sequence[Observation]) -> list[int]:
    """Return the depth of each entry. A rollback note gets the depth of the entry before it, so
    that it does not separate neighbours, and so does a withdrawn entry."""
    depths: list[int] = []
    for entry in entries:
        is_filler = entry.is_rollback_note or entry.is_withdrawn
        depths.append(depths[-1] if is_filler and depths else entry.depth)
    return depths


def _take_oldest(
    entries: Sequence[Observation], depths: Sequence[int], group: range, need: _Need
) -> LogStretch | None:
    """Return the first entries of the group that meet the need; None where all of them do not."""
    tokens = with_words = 0
    freed = 0.0
    for index in group:
        entry = entries[index]
        tokens += entry.tokens
        freed += entry.tokens * (1 - _accepted_share(depths[index]))
        with_words += bool(entry.text)
        is_full = tokens >= need.max_tokens
        if tokens >= need.min_tokens and (
            is_full or (freed >= need.excess_tokens and with_words >= need.min_with_words)
        ):
            return _measure_stretch(entries, depths, group.start, index - group.start + 1)
    return None
