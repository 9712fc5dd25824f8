"""Write a list of conversations as the text that answers a look-up.

conversations 1 to 3, newest first
- "Trip to Rome" [3f9c2a77], 812 messages, Mar 1 – May 8, 2023, ← current
"""

from __future__ import annotations

from datetime import tzinfo
from typing import NamedTuple

from om_proxy.memory.dates import format_day, read_time
from om_proxy.memory.escaping import escape
from om_proxy.memory.recall.arguments import MAX_PAGE
from om_proxy.memory.recall.clipping import CountTokens
from om_proxy.memory.recall.message_ids import shorten_label
from om_proxy.memory.recall.quoted_message import (
    MAX_TITLE_CHARS,
    clean_line,
    clean_text,
)

# of an answer, for each conversation that a page may hold: its line without title and resource
MIN_TOKENS_A_THREAD = 40
_TITLE_CHARS = (MAX_TITLE_CHARS, 30, 12, 0)
# more than a time loses when it is written in microseconds
_WRITTEN_TIME_ERROR_S = 2e-6
# before a time that was written of a conversation, more than lies between the two
MAX_TIME_BEFORE_WRITTEN_S = 2 * _WRITTEN_TIME_ERROR_S


class ListedThread(NamedTuple):
    """One conversation of a list. Times are in unix seconds."""

    label: str
    title: str | None
    messages: int
    began_at: float
    active_at: float
    is_current: bool
    resource: str = ""  # in a list of several resources' threads


class ThreadListPage(NamedTuple):
    """Some conversations, newest first."""

    threads: tuple[ListedThread, ...]
    page: int
    limit: int
    next_at: float | None = None  # `active_at` of the first one behind these; None: there is none


def find_list_limit(limit: int, max_tokens: int) -> int:
    """Return how many conversations a page holds: as many as are asked for, if an answer of
    `max_tokens` has room for a line of each."""
    return max(1, min(limit, max_tokens // MIN_TOKENS_A_THREAD))


def write_thread_list(
    listed: ThreadListPage, zone: tzinfo, max_tokens: int, count_tokens: CountTokens
) -> tuple[str, int]:
    """Write the list in at most `max_tokens`. Return the text, and how many conversations it shows.
    Titles are shortened as far as needed; then the last ones are left out, and the first line says
    how to go on."""
    if not listed.threads:
        return "recall: nothing found; no conversation is here", 0
    shown = len(listed.threads)
    for title_chars in _TITLE_CHARS:
        text = _write(listed, shown, title_chars, zone)
        if count_tokens(text) <= max_tokens:
            return text, shown
    while shown > 1:
        shown -= 1
        text = _write(listed, shown, 0, zone)
        if count_tokens(text) <= max_tokens:
            break
    return text, shown


def _write(listed: ThreadListPage, shown: int, title_chars: int, zone: tzinfo) -> str:
    first = (listed.page - 1) * listed.limit + 1
    header = f"conversations {first} to {first + shown - 1}, newest first"
    lines = [_write_thread(thread, zone, title_chars) for thread in listed.threads[:shown]]
    return "\n".join((f"{header}{_write_way_on(listed, shown, zone)}", *lines))


def _write_way_on(listed: ThreadListPage, shown: int, zone: tzinfo) -> str:
    is_cut = shown < len(listed.threads)
    next_at = listed.threads[shown].active_at if is_cut else listed.next_at
    if next_at is None:
        return ""
    if not is_cut and listed.page < MAX_PAGE:
        return f"; more: page {listed.page + 1}"
    before = read_time(next_at + _WRITTEN_TIME_ERROR_S, zone)
    last = listed.threads[shown - 1]
    # the time alone would show the last one again
    behind = f" {last.label}" if last.active_at < before.timestamp() else ""
    return f"; more: before {before.isoformat()}{behind}"


def _write_thread(thread: ListedThread, zone: tzinfo, title_chars: int) -> str:
    title = clean_line(thread.title or "", title_chars) if title_chars else ""
    named = f'"{title}"' if title else "untitled"
    count = f"{thread.messages} message{'' if thread.messages == 1 else 's'}"
    days = _format_days(thread.began_at, thread.active_at, zone)
    current = ", ← current" if thread.is_current else ""
    whose = f", resource {write_resource_name(thread.resource)}" if thread.resource else ""
    return f"- {named} [{shorten_label(thread.label)}], {count}, {days}{whose}{current}"


def _format_days(first: float, last: float, zone: tzinfo) -> str:
    """Write a span of days: `Mar 1 – May 8, 2023`."""
    began, ended = read_time(min(first, last), zone), read_time(max(first, last), zone)
    if began.date() == ended.date():
        return format_day(ended)
    begin = format_day(began)
    begin = begin.partition(",")[0] if began.year == ended.year else begin
    return f"{begin} – {format_day(ended)}"


def write_resource_name(resource: str) -> str:
    """Write the name of a resource so that a reader can give it back: in double quotes, those
    inside it and backslashes after a backslash."""
    name = " ".join(clean_text(resource).split("\n"))
    return escape('"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"')
