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
of 16 R 8 times and of 64 R 16 times; the whole log would have been rewritten 3, 30 and 126 times.
The entries before the stretch keep their bytes, so the provider's prompt cache hits there.

A share r frees 1 - r of the tokens that the reflector reads. So it writes about one token for each new
token of notes: 1.1 if its answers have the size that is asked for, 1.5 if they are just accepted.
"""

from __future__ import annotations

import math
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


def take_whole_log(entries: Sequence[Observation]) -> LogStretch:
    """Return the stretch of all entries. `entries` is not empty."""
    return LogStretch(
        0,
        len(entries),
        sum(entry.tokens for entry in entries),
        _accepted_share(max(entry.depth for entry in entries)),
    )


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
    min_tokens = 0.0 if excess_entries else MIN_STRETCH_SHARE * max_log_tokens
    least_count = excess_entries + 1
    depths = _depths(entries)
    for depth in sorted(set(depths)):
        share = _accepted_share(depth)
        least = max(min_tokens, min(max_log_tokens, math.ceil(excess_tokens / (1 - share))))
        for group in _group_neighbours(entries, [entry_depth <= depth for entry_depth in depths]):
            if group.tokens >= least and _count_with_words(entries, group) >= least_count:
                oldest = _take_oldest(entries, group, least, least_count, max_log_tokens)
                # twice what the least stretch frees, so that the next reflection is not due at once
                freed_tokens = 2 * MIN_STRETCH_SHARE * max_log_tokens * (1 - share)
                needed = excess_tokens + freed_tokens
                spared = min(FIRST_ACCEPTED_SHARE, 1 - needed / max(1, oldest.tokens))
                return replace(oldest, accepted_share=max(share, spared))
    return take_whole_log(entries)


def acceptance_limit(stretch: LogStretch) -> int:
    """Return the tokens below which a reflection of the stretch is accepted."""
    return round(stretch.tokens * stretch.accepted_share) + 1


def frees_enough(before_tokens: int, after_tokens: int) -> bool:
    """Return whether condensing a stretch was worth its call. Then the next reflection may follow
    at once, else only when the log has grown."""
    return after_tokens <= before_tokens * MAX_PRODUCTIVE_SHARE


def _accepted_share(depth: int) -> float:
    """Return the share for entries that were condensed at most `depth` times."""
    return LATER_ACCEPTED_SHARE if depth else FIRST_ACCEPTED_SHARE


def _group_neighbours(
    entries: Sequence[Observation], chosen: Sequence[bool]
) -> Iterator[LogStretch]:
    """Yield the chosen entries that are neighbours, the oldest first."""
    start = 0
    for is_chosen, run in groupby(chosen):
        count = len(list(run))
        if is_chosen:
            yield LogStretch(
                start, count, sum(entry.tokens for entry in entries[start : start + count])
            )
        start += count


def _depths(entries: Sequence[Observation]) -> list[int]:
    """Return the depth of each entry. A rollback note gets the depth of the entry before it, so
    that it does not separate neighbours, and so does a withdrawn entry."""
    depths: list[int] = []
    for entry in entries:
        is_filler = entry.is_rollback_note or entry.is_withdrawn
        depths.append(depths[-1] if is_filler and depths else entry.depth)
    return depths


def _count_with_words(entries: Sequence[Observation], group: LogStretch) -> int:
    return sum(1 for entry in entries[group.start : group.start + group.count] if entry.text)


def _take_oldest(
    entries: Sequence[Observation],
    group: LogStretch,
    least: float,
    least_count: int,
    max_log_tokens: int,
) -> LogStretch:
    """Return the first entries of the group that come to `least` tokens, and are `least_count` with
    words unless these come to `max_log_tokens` before."""
    tokens = count = with_words = 0
    while tokens < least or (with_words < least_count and tokens < max_log_tokens):
        entry = entries[group.start + count]
        tokens += entry.tokens
        with_words += bool(entry.text)
        count += 1
    return LogStretch(group.start, count, tokens)
