"""How much of the evidence of LoCoMo's questions a search finds, in SQLite and PostgreSQL.

`python -m tests.bench.recall_quality FILE [--postgres URL] [--conversations N]` prints the share of
a question's evidence among the first 5, 10 and 20 messages, and of its sessions among the first 10.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from msgspec.structs import replace

from om_proxy.memory.model import EMPTY_CHAIN, Item, Key, Memory, Message, extend_chain
from om_proxy.memory.recall.ranking import rank
from om_proxy.memory.recall.words import query_words
from om_proxy.message_index import MessageIndex
from om_proxy.storage.base import Store
from om_proxy.storage.postgres.store import PostgresOptions, PostgresStore
from om_proxy.storage.sqlite.store import SqliteStore
from tests.support.postgres_server import own_schema

SECONDS_A_MESSAGE = 20.0
EVIDENCE = re.compile(r"D\d+:\d+")


class Question(NamedTuple):
    """A question, and the messages that its answer stands in."""

    text: str
    evidence: frozenset[int]  # seqs


class Conversation(NamedTuple):
    """A conversation of LoCoMo as a thread."""

    memory: Memory
    sessions: dict[int, int]  # of each seq
    questions: list[Question]


class Quality(NamedTuple):
    """Shares of evidence found, as means over questions."""

    questions: int
    at_5: float
    at_10: float
    at_20: float
    sessions_at_10: float
    index_us: float  # for each message
    search_ms: float  # for each question

    def __str__(self) -> str:
        return (
            f"{self.questions} questions: R@5 {self.at_5:.3f}, R@10 {self.at_10:.3f}, "
            f"R@20 {self.at_20:.3f}, sessions R@10 {self.sessions_at_10:.3f}; "
            f"index {self.index_us:.0f} µs a message, search {self.search_ms:.1f} ms"
        )


def read_conversations(file: Path) -> list[Conversation]:
    return [_read_conversation(one) for one in orjson.loads(file.read_bytes())]


def _read_conversation(sample: dict[str, Any]) -> Conversation:
    conversation = sample["conversation"]
    messages: list[Message] = []
    seqs: dict[str, int] = {}
    sessions: dict[int, int] = {}
    chain = EMPTY_CHAIN
    for number, turn, at in _list_turns(conversation):
        role = "user" if turn["speaker"] == conversation["speaker_a"] else "assistant"
        said = {"role": role, "name": turn["speaker"], "content": turn["text"]}
        raw = orjson.dumps(said)
        item = Item(raw, role, extend_chain(EMPTY_CHAIN, raw))
        chain = extend_chain(chain, item.fp)
        seq = len(messages) + 1
        messages.append(Message(seq, item, chain, 1, at))
        seqs[turn["dia_id"]] = seq
        sessions[seq] = number
    key = Key("tenant", sample["sample_id"], "thread")
    memory = Memory(key=key, next_seq=len(messages) + 1, tail=tuple(messages), turns=1)
    questions = [
        Question(asked["question"], frozenset(evidence))
        for asked in sample["qa"]
        if (
            evidence := {
                seqs[name]
                for name in EVIDENCE.findall(" ".join(asked.get("evidence", [])))
                if name in seqs
            }
        )
    ]
    return Conversation(memory, sessions, questions)


def _list_turns(conversation: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any], float]]:
    """Yield the number of the session, the turn and its time."""
    for number in range(1, 100):
        for place, turn in enumerate(conversation.get(f"session_{number}", ())):
            written = conversation[f"session_{number}_date_time"]
            began = datetime.strptime(written, "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC)
            yield number, turn, began.timestamp() + place * SECONDS_A_MESSAGE


async def measure(store: Store, conversations: list[Conversation]) -> Quality:
    """Index the conversations, and ask each its questions."""
    index = MessageIndex(store)
    shares: list[tuple[float, float, float, float]] = []
    index_s = search_s = 0.0
    for conversation in conversations:
        key = conversation.memory.key
        await store.commit(Memory(key=key), replace(conversation.memory))
        began = time.perf_counter()
        await index.index_thread(key)
        index_s += time.perf_counter() - began
        began = time.perf_counter()
        for question in conversation.questions:
            words = query_words(question.text)
            found = await store.find_passages(key, words)
            seqs = [message.seq for message in rank(found, words)]
            shares.append(_share_found(seqs, question, conversation.sessions))
        search_s += time.perf_counter() - began
    count = len(shares)
    at_5, at_10, at_20, sessions = (sum(column) / count for column in zip(*shares, strict=True))
    messages = sum(len(conversation.sessions) for conversation in conversations)
    return Quality(
        count, at_5, at_10, at_20, sessions, index_s / messages * 1e6, search_s / count * 1e3
    )


def _share_found(
    seqs: list[int], question: Question, sessions: dict[int, int]
) -> tuple[float, float, float, float]:
    wanted = question.evidence
    at_5, at_10, at_20 = (len(wanted.intersection(seqs[:k])) / len(wanted) for k in (5, 10, 20))
    wanted_sessions = {sessions[seq] for seq in wanted}
    first_sessions = list(dict.fromkeys(sessions[seq] for seq in seqs))[:10]
    return (
        at_5,
        at_10,
        at_20,
        len(wanted_sessions.intersection(first_sessions)) / len(wanted_sessions),
    )


async def measure_sqlite(conversations: list[Conversation]) -> Quality:
    store = await SqliteStore.open(":memory:")
    try:
        return await measure(store, conversations)
    finally:
        await store.close()


async def measure_postgres(conversations: list[Conversation], url: str, schema: str) -> Quality:
    store = await PostgresStore.open(url, PostgresOptions(prefix=schema, timeout_s=30.0))
    try:
        return await measure(store, conversations)
    finally:
        await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="locomo10.json")
    parser.add_argument("--postgres", help="measure in a new schema of this server too")
    parser.add_argument("--conversations", type=int, help="only so many")
    options = parser.parse_args()
    conversations = read_conversations(options.file)[: options.conversations]
    print("sqlite    ", asyncio.run(measure_sqlite(conversations)))
    if options.postgres:
        with own_schema(options.postgres) as schema:
            found = asyncio.run(measure_postgres(conversations, options.postgres, schema))
            print("postgresql", found)


if __name__ == "__main__":
    main()
