"""Write what a search found as the text that answers a look-up.

8 of 31 messages for "support group", best first. To read around one: mode "messages", cursor its id.
[m118] user, May 8, 2023 13:56
  I went to a LGBTQ support group yesterday and it was so powerful.
[3f9c2a77.m40] assistant, Apr 2, 2023 09:12, in "Trip to Rome"
  … the group meets on Mondays …
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import tzinfo
from typing import NamedTuple

from om_proxy.memory.recall.clipping import CountTokens, Hit, cut_snippet, find_hits
from om_proxy.memory.recall.quoted_message import (
    MAX_TITLE_CHARS,
    QuotedMessage,
    QuotedPart,
    clean_line,
    quote,
    write_attachment,
    write_message_header,
)
from om_proxy.memory.recall.words import find_words

MAX_SHOWN_QUERY_CHARS = 100
MAX_MISSING_WORDS = 8


class _Clips(NamedTuple):
    """How much of each text is shown, in tokens, and of the query and of titles, in characters."""

    snippet: int
    query: int = MAX_SHOWN_QUERY_CHARS
    title: int = MAX_TITLE_CHARS


# from the widest to the narrowest; the first that fits is taken
_CLIPS = (
    _Clips(80),
    _Clips(65),
    _Clips(50),
    _Clips(40),
    _Clips(30, 60, 30),
    _Clips(20, 30, 20),
    _Clips(12, 12, 12),
)


class SeqPlace(NamedTuple):
    """A message of a thread, by its place in what a search found."""

    thread: str
    seq: int


class FoundMessages(NamedTuple):
    """The results of a search. `messages`: those to show, the best first, as join_neighbours has
    them."""

    query: str
    words: tuple[str, ...]  # of the query: index words
    messages: tuple[QuotedMessage, ...]
    total: int  # messages that fit
    share_read: float = 1.0  # of the messages that could be found


def join_neighbours(ranked: Sequence[SeqPlace], limit: int) -> list[SeqPlace]:
    """Choose the first `limit` results of a ranking. Results of one thread that touch are one, in
    order of seq, at the place of the best."""
    groups: list[list[SeqPlace]] = []
    group_of: dict[SeqPlace, list[SeqPlace]] = {}
    for place in ranked:
        thread, seq = place
        beside = next(
            (
                group
                for step in (-1, 1)
                if (group := group_of.get(SeqPlace(thread, seq + step))) is not None
            ),
            None,
        )
        if beside is None and len(groups) >= limit:
            continue
        if beside is None:
            groups.append(beside := [])
        beside.append(place)
        group_of[place] = beside
    return [place for group in groups for place in sorted(group)]


def write_found_messages(
    found: FoundMessages,
    zone: tzinfo,
    max_tokens: int,
    count_tokens: CountTokens,
) -> tuple[str, int]:
    """Write the results in at most `max_tokens`. Return the text, and how many messages it shows.
    What does not fit is left out from the end, and told by the first line."""
    chosen = [_choose_part(message, found.words) for message in found.messages]

    def write_blocks(clips: _Clips) -> list[str]:
        return _write_blocks(found, chosen, clips, zone, max_tokens, count_tokens)

    blocks = write_blocks(_CLIPS[-1])
    if len(blocks) == len(found.messages):  # else no width has room for all of them
        for clips in _CLIPS[:-1]:
            wider = write_blocks(clips)
            text = _join(found, wider, clips)
            if len(wider) == len(blocks) and count_tokens(text) <= max_tokens:
                return text, len(wider)
    shown = len(blocks)
    text = _join(found, blocks, _CLIPS[-1])
    while shown > 1 and count_tokens(text) > max_tokens:
        shown -= 1
        text = _join(found, blocks[:shown], _CLIPS[-1])
    return text, shown


def write_nothing_found(query: str, counts: Mapping[str, int], share_read: float) -> str:
    """Write that nothing was found, and which words of the query no message has. `counts`: of each
    index word of the query."""
    missing: dict[str, None] = {}
    for run in find_words(query):
        if not any(counts.get(word, 0) for word in run.words):
            missing.setdefault(clean_line(query[run.start : run.end], 40))
    words = list(missing)[:MAX_MISSING_WORDS]
    more = ", …" if len(missing) > MAX_MISSING_WORDS else ""
    which = f"; no message has: {', '.join(words)}{more}" if words else ""
    return f"recall: nothing found{which}{_write_share(share_read)}. Try other words"


def _write_blocks(
    found: FoundMessages,
    chosen: Sequence[tuple[QuotedPart | None, list[Hit]]],
    clips: _Clips,
    zone: tzinfo,
    max_tokens: int,
    count_tokens: CountTokens,
) -> list[str]:
    """Write the messages until they surely have more than `max_tokens`: writing all of a hundred
    that do not fit takes a hundred times as long as reading them."""
    blocks: list[str] = []
    tokens = 0
    for message, (part, hits) in zip(found.messages, chosen, strict=True):
        lines = [write_message_header(message, zone, title_chars=clips.title)]
        if part is not None and part.kind in ("image", "file"):
            lines.append(write_attachment(part))
        elif part is not None:
            lines.append(quote(cut_snippet(part.text, hits, clips.snippet, count_tokens)))
        blocks.append("\n".join(lines))
        tokens += count_tokens(blocks[-1])
        # where two blocks meet, a token may be saved
        if tokens > max_tokens + len(blocks):
            break
    return blocks


def _join(found: FoundMessages, blocks: Sequence[str], clips: _Clips) -> str:
    return "\n".join((_write_header(found, len(blocks), clips.query), *blocks))


def _write_header(found: FoundMessages, shown: int, query_chars: int) -> str:
    query = clean_line(found.query, query_chars)
    return (
        f'{shown} of {max(found.total, shown)} messages for "{query}", best first'
        f'{_write_share(found.share_read)}. To read around one: mode "messages", cursor its id.'
    )


def _write_share(share: float) -> str:
    """Say how much of the messages is indexed, where it is not all."""
    return "" if share >= 1 else f" (indexed {min(int(share * 100), 99)} %)"


def _choose_part(
    message: QuotedMessage, words: Sequence[str]
) -> tuple[QuotedPart | None, list[Hit]]:
    """Return the part with the most different words of the query, and where they are in it. Of
    equals, the first."""
    best: tuple[QuotedPart | None, list[Hit]] = (next(iter(message.parts), None), [])
    best_count = 0
    for part in message.parts:
        hits = find_hits(part.text, words)
        count = len(frozenset[str]().union(*(hit.words for hit in hits)))
        if count > best_count:
            best, best_count = (part, hits), count
    return best
