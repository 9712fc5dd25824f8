"""What the store holds against what the client saw and what the observers were shown."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from om_proxy.memory.model import Key, Memory, Message
from om_proxy.storage.base import Store
from om_proxy.storage.sqlite.queries import UNIX_NOW
from om_proxy.testing.scripted import message_text
from om_proxy.wire.apis.registry import get_api
from tests.e2e.crash.client import Conversation
from tests.e2e.crash.models import NOTED, SAID, Models


@dataclass
class Findings:
    """What is wrong; all of it empty when every promise was kept."""

    lost: list[str] = field(default_factory=list)  # seen completed, and not in the transcript
    foreign: list[str] = field(
        default_factory=list
    )  # in the transcript, and not what the client holds
    stored_twice: list[str] = field(default_factory=list)
    observed_twice: list[str] = field(default_factory=list)
    unobserved: list[str] = field(
        default_factory=list
    )  # in a committed range whose notes are not about them
    other: list[str] = field(default_factory=list)

    def __iadd__(self, more: Findings) -> Findings:
        for name, found in vars(more).items():
            getattr(self, name).extend(found)
        return self

    def __bool__(self) -> bool:
        return any(vars(self).values())


async def examine(store: Store, conversation: Conversation, models: Models) -> Findings:
    """For a thread on which nothing is under way; or, if the client still asks, for what a kill has
    left of it."""
    found = Findings()
    memory = await store.load(conversation.key)
    live = await store.messages(conversation.key, 0)
    outline = await store.outline(conversation.key)
    _transcript(
        found,
        [_told(get_api(m.item.api).read_chat_message(m.item.raw)) for m in live],
        conversation,
    )
    _frame(found, memory, live)
    _observed(found, memory, live, models)
    if [m.seq for m in outline.live] != [m.seq for m in live] or len(live) != memory.count:
        found.other.append("the outline, the messages and the count differ")
    if memory.failures.count or memory.failures.suspended:
        found.other.append(f"in trouble: {memory.failures}")
    return found


def _transcript(found: Findings, held: list[str], conversation: Conversation) -> None:
    """The live messages are those the client has seen completed, each once and in order.

    Of what it asks and has no answer to, all may be there, with a reply or without, or nothing.
    """
    meant = [_told(m) for m in conversation.history]
    asked = [_told(m) for m in conversation.asking]
    if asked and held[: len(asked)] == asked and len(held) <= len(asked) + 1:
        return
    found.lost += (Counter(meant) - Counter(held)).keys()
    found.foreign += (Counter(held) - Counter(meant)).keys()
    found.stored_twice += [told for told, times in Counter(held).items() if times > 1]
    if held != meant and not (found.lost or found.foreign or found.stored_twice):
        found.other.append("the order of the messages")


def _told(message: Mapping[str, Any]) -> str:
    return f"{message['role']} {message_text(message)}"


def _frame(found: Findings, memory: Memory, live: tuple[Message, ...]) -> None:
    """Ranges meet without gap or overlap, and end at live messages with the chain they name; what
    follows is the tail."""
    covered = [(o.after, o.last) for o in memory.log.entries]
    ranges = covered + [(o.after, o.last) for o in memory.chunks]
    chains = {m.seq: m.chain for m in live}
    if memory.coverage != (covered[-1][1] if covered else 0) or (ranges and ranges[0][0] != 0):
        found.other.append("coverage is not where the log ends")
    if any(first[1] != second[0] for first, second in pairwise(ranges)):
        found.other.append(f"ranges do not meet: {ranges}")
    if any(chains.get(o.last) != o.chain for o in (*memory.log.entries, *memory.chunks)):
        found.other.append("a range of another branch")
    if [m.seq for m in memory.tail] != [m.seq for m in live if m.seq > memory.coverage]:
        found.other.append("the tail is not what follows coverage")


def _observed(found: Findings, memory: Memory, live: tuple[Message, ...], models: Models) -> None:
    """Every message in a committed range is the subject of exactly one committed answer of an
    observer."""
    answers = [
        name for o in (*memory.log.entries, *memory.chunks) for name in NOTED.findall(o.text)
    ]
    shown = Counter(said for name in answers for said in models.shown[name])
    meant = {
        said
        for m in live
        if m.seq <= memory.chunked_to
        for said in SAID.findall(m.item.raw.decode())
    }
    found.observed_twice += [said for said, times in shown.items() if times > 1]
    found.unobserved += meant - set(shown)
    found.foreign += [f"observed: {said}" for said in set(shown) - meant]


@dataclass(frozen=True)
class Lease:
    key: Key
    holder: str
    left: float  # seconds


def leases(database: Path) -> list[Lease]:
    """Those that hold."""
    sql = f"SELECT tenant, resource, thread, holder, until - {UNIX_NOW} FROM lease WHERE until > {UNIX_NOW}"  # noqa: S608 - our own text
    return [Lease(Key(*row[:3]), row[3], row[4]) for row in _rows(database, sql)]


def broken(database: Path) -> list[str]:
    """What SQLite itself finds wrong with the file."""
    integrity = [str(row[0]) for row in _rows(database, "PRAGMA integrity_check") if row[0] != "ok"]
    return integrity + [
        f"foreign key of {row[0]}" for row in _rows(database, "PRAGMA foreign_key_check")
    ]


def _rows(database: Path, sql: str) -> Iterator[Any]:
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=5)) as connection:
        return iter(connection.execute(sql).fetchall())
