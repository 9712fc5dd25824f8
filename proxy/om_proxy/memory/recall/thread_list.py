"""Write a list of conversations as the text that answers a look-up.

conversations 1 to 3, newest first
- "Trip to Rome" [3f9c2a77], 812 messages, Mar 1 – May 8, 2023, ← current
"""

from __future__ import annotations

from datetime import tzinfo
from typing import NamedTuple

from om_proxy.memory.escaping import escape
from om_proxy.memory.recall.clipping import CountTokens
from om_proxy.memory.recall.message_ids import shorten_label
from om_proxy.memory.recall.quoted_message import MAX_TITLE_CHARS, format_days
from om_proxy.memory.recall.quoting import clean_line, clean_text

_TITLE_CHARS = (MAX_TITLE_CHARS, 30, 12, 0)


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
    has_more: bool


def write_thread_list(
    listed: ThreadListPage, zone: tzinfo, max_tokens: int, count_tokens: CountTokens
) -> str:
    """Write the list in at most `max_tokens`; titles are shortened as far as needed."""
    if not listed.threads:
        return "recall: nothing found; no conversation is here"
    for title_chars in _TITLE_CHARS:
        lines = [_write_thread(thread, zone, title_chars) for thread in listed.threads]
        text = "\n".join((_write_header(listed), *lines))
        if count_tokens(text) <= max_tokens:
            break
    return text


def _write_header(listed: ThreadListPage) -> str:
    first = (listed.page - 1) * listed.limit + 1
    more = f"; more: page {listed.page + 1}" if listed.has_more else ""
    return f"conversations {first} to {first + len(listed.threads) - 1}, newest first{more}"


def _write_thread(thread: ListedThread, zone: tzinfo, title_chars: int) -> str:
    title = clean_line(thread.title or "", title_chars) if title_chars else ""
    named = f'"{title}"' if title else "untitled"
    count = f"{thread.messages} message{'' if thread.messages == 1 else 's'}"
    days = format_days(thread.began_at, thread.active_at, zone)
    current = ", ← current" if thread.is_current else ""
    whose = f", resource {write_resource_name(thread.resource)}" if thread.resource else ""
    return f"- {named} [{shorten_label(thread.label)}], {count}, {days}{whose}{current}"


def write_resource_name(resource: str) -> str:
    """Write the name of a resource so that a reader can give it back: in double quotes, those
    inside it and backslashes behind a backslash."""
    name = " ".join(clean_text(resource).split("\n"))
    return escape('"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"')
