"""How much of the evidence of LoCoMo's questions a search finds, in SQLite and PostgreSQL.

`python -m tests.bench.recall_quality FILE [--postgres URL] [--conversations N]` prints the share of
a question's evidence among the first 5, 10 and 20 messages, and of its sessions among the first 10.

A proxy serves on a loopback port. It imports an export of each conversation, in which each message
has the time of its session, and each question is asked by `POST …/recall`; sessions are those of
the first 100 messages of `GET /om/v1/search`. Each store is asked without notes, and with LoCoMo's
own observations as the notes of the thread. A photo's caption is part of its message, as in
LoCoMo's own evaluation; `--without-captions` leaves it out.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from om_proxy.agents.embedding import EmbeddingModels
from om_proxy.engine.background.embedding import LOCAL_BATCH_MESSAGES, MessageVectors
from om_proxy.engine.recall.similar_messages import Comparison
from om_proxy.memory.model import MESSAGE_FRAMING_TOKENS, Key
from om_proxy.memory.recall.found import NO_FILTER, FoundPassage, RankedMessage, match_passages
from om_proxy.memory.recall.noted import NotedRange, lift_noted
from om_proxy.memory.recall.passages import IndexPlace, MessageText, cut_passages
from om_proxy.memory.recall.ranking import rank, weigh_words
from om_proxy.memory.recall.vectors import StoredVector, encode_vector, fuse, write_embedded_text
from om_proxy.memory.recall.words import query_words
from om_proxy.observability.facts import Facts
from om_proxy.storage.shared.newest_passages import SearchedWithoutIndex
from tests.e2e.running import Running, run_with_scripted_models
from tests.support.postgres_server import own_schema

# a conversation has the notes of its export, and gets no others
MEMORY_SETTINGS = "retrieval: true, observation: {message_tokens: 500000, buffer_tokens: false}"
EVIDENCE = re.compile(r"D\d+:\d+")


class Question(NamedTuple):
    """A question, and the messages that its answer stands in."""

    text: str
    evidence: frozenset[int]  # seqs


class Session(NamedTuple):
    """What two people said at one time."""

    number: int
    at: float  # unix seconds of its beginning
    said: list[dict[str, str]]  # messages of a chat request


class Conversation(NamedTuple):
    """A conversation of LoCoMo."""

    name: str
    sessions: list[Session]
    questions: list[Question]
    notes: list[NotedRange]  # LoCoMo's own observations, an entry for each session

    def find_sessions(self) -> dict[int, int]:
        """Return the number of each message's session, by seq."""
        numbers = [each.number for each in self.sessions for _ in each.said]
        return dict(enumerate(numbers, start=1))


class Quality(NamedTuple):
    """Shares of evidence found, as means over questions."""

    questions: int
    at_5: float
    at_10: float
    at_20: float
    sessions_at_10: float

    def __str__(self) -> str:
        shares = " | ".join(f"{share:.3f}" for share in self[1:])
        return f"{self.questions:,} | {shares}".replace(",", " ")


def read_conversations(file: Path, *, with_captions: bool = True) -> list[Conversation]:
    return [_read_conversation(one, with_captions) for one in orjson.loads(file.read_bytes())]


def _read_conversation(sample: dict[str, Any], with_captions: bool) -> Conversation:
    conversation = sample["conversation"]
    seqs: dict[str, int] = {}
    sessions: list[Session] = []
    for number, turns, at in _list_sessions(conversation):
        said = []
        for turn in turns:
            role = "user" if turn["speaker"] == conversation["speaker_a"] else "assistant"
            caption = turn.get("blip_caption") if with_captions else None
            text = f"{turn['text']}\n{caption}" if caption else turn["text"]
            said.append({"role": role, "name": turn["speaker"], "content": text})
            seqs[turn["dia_id"]] = len(seqs) + 1
        sessions.append(Session(number, at, said))
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
    notes = list(_list_notes(sample, sessions))
    return Conversation(sample["sample_id"], sessions, questions, notes)


def _list_notes(sample: dict[str, Any], sessions: Sequence[Session]) -> Iterator[NotedRange]:
    last = 0
    for session in sessions:
        after, last = last, last + len(session.said)
        observed = sample["observation"].get(f"session_{session.number}_observation", {})
        day = datetime.fromtimestamp(session.at, UTC)
        lines = [f"* 🟡 {line}" for noted in observed.values() for line, _ in noted]
        text = "\n".join([f"Date: {day:%B} {day.day}, {day.year}", *lines])
        yield NotedRange("t", after, last, text, UTC)


def _list_sessions(
    conversation: dict[str, Any],
) -> Iterator[tuple[int, list[dict[str, Any]], float]]:
    """Yield the number of each session, its turns and its time."""
    for number in range(1, 100):
        if turns := conversation.get(f"session_{number}"):
            written = conversation[f"session_{number}_date_time"]
            began = datetime.strptime(written, "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC)
            yield number, turns, began.timestamp()


def _share_found(
    seqs: list[int], session_numbers: list[int], question: Question, sessions: Mapping[int, int]
) -> tuple[float, float, float, float]:
    wanted = question.evidence
    at_5, at_10, at_20 = (len(wanted.intersection(seqs[:k])) / len(wanted) for k in (5, 10, 20))
    wanted_sessions = {sessions[seq] for seq in wanted}
    first_sessions = list(dict.fromkeys(session_numbers))[:10]
    found_sessions = wanted_sessions.intersection(first_sessions)
    return at_5, at_10, at_20, len(found_sessions) / len(wanted_sessions)


def measure_rules(conversations: Sequence[Conversation], *, with_notes: bool = False) -> Quality:
    """Rank in this process, without a store: the same order, in less time."""
    shares = [
        _share_found(ranked, [sessions[seq] for seq in ranked[:100]], question, sessions)
        for conversation in conversations
        for sessions in [conversation.find_sessions()]
        for question, hits in rank_all(conversation, with_notes=with_notes)
        for ranked in [[message.seq for message in hits]]
    ]
    return _average(shares)


def list_texts(conversation: Conversation) -> list[MessageText]:
    return [
        MessageText(seq, said["role"], session.at, said["name"], (said["content"],))
        for seq, (session, said) in enumerate(
            ((session, said) for session in conversation.sessions for said in session.said), start=1
        )
    ]


def rank_all(
    conversation: Conversation, *, with_notes: bool = False
) -> Iterator[tuple[Question, list[RankedMessage]]]:
    """Yield each question with the messages that are found, the best first."""
    texts = list_texts(conversation)
    passages = [FoundPassage("t", cut) for cut in cut_passages(texts, IndexPlace(), None)[0]]
    for question in conversation.questions:
        words = query_words(question.text)
        found = match_passages(passages, words)
        ranked = rank(found, words)
        if with_notes:
            ranked = lift_noted(ranked, found, conversation.notes, weigh_words(found, words))
        yield question, ranked


def _average(shares: Sequence[tuple[float, ...]]) -> Quality:
    means = [sum(column) / len(shares) for column in zip(*shares, strict=True)]
    return Quality(len(shares), *means)


async def write_exports(
    conversations: Sequence[Conversation], *, with_notes: bool = False
) -> list[bytes]:
    """Return an export of each conversation, as one thread of a resource of its name. Its messages
    have the times of their sessions: a proxy gives all that it takes in the time of its store."""
    with tempfile.TemporaryDirectory() as folder:
        async with run_with_scripted_models(Path(folder), MEMORY_SETTINGS) as run:
            exports = [await _export(run, conversation) for conversation in conversations]
    if with_notes:
        for conversation, records in zip(conversations, exports, strict=True):
            _add_notes(records, conversation.notes)
    return [b"\n".join(map(orjson.dumps, records)) for records in exports]


async def _export(run: Running, conversation: Conversation) -> list[dict[str, Any]]:
    said = [message for session in conversation.sessions for message in session.said]
    body = {"model": "scripted-actor", "messages": said}
    url = f"{run.base}/om/v1/threads/t/messages?resource={conversation.name}"
    (await run.http.post(url, json=body)).raise_for_status()
    asked = {"thread": "t", "resource": conversation.name}
    exported = await run.http.get(f"{run.base}/om/v1/export", params=asked)
    lines = exported.raise_for_status().content.splitlines()
    times = [session.at for session in conversation.sessions for _ in session.said]
    records: list[dict[str, Any]] = [orjson.loads(line) for line in lines]
    for record in records:
        if record["om"] == "message":
            record["at"] = times[record["seq"] - 1]
    return records


def _add_notes(records: list[dict[str, Any]], notes: Sequence[NotedRange]) -> None:
    """Make the notes the log of the thread, which covers all of its messages."""
    _, thread, *messages, _ = records
    tokens = [message["tokens"] + MESSAGE_FRAMING_TOKENS for message in messages]
    thread["coverage"] = thread["covered_count"] = len(messages)
    thread["covered_tokens"] = sum(tokens)
    thread["next_id"] = len(notes) + 1
    entries = [
        {
            "om": "observation",
            "state": "log",
            "id": number,
            "after": noted.after,
            "last": noted.last,
            "chain": messages[noted.last - 1]["chain"],
            "text": noted.text,
            "tokens": 1,
            "source_tokens": sum(tokens[noted.after : noted.last]),
            "at": messages[noted.last - 1]["at"],
        }
        for number, noted in enumerate(notes, start=1)
    ]
    ids = [entry["id"] for entry in entries]
    generation = {"om": "generation", "number": 0, "entries": ids, "began": None}
    records[-1:-1] = [*entries, generation]


async def measure(
    conversations: Sequence[Conversation], storage: str, folder: Path, *, with_notes: bool
) -> Quality:
    """Serve a proxy with this storage (keys of the section), import the conversations, and ask each
    its questions."""
    shares: list[tuple[float, float, float, float]] = []
    exports = await write_exports(conversations, with_notes=with_notes)
    async with run_with_scripted_models(folder, MEMORY_SETTINGS, storage=storage) as run:
        for conversation, export in zip(conversations, exports, strict=True):
            await _import(run, conversation.name, export)
            sessions = conversation.find_sessions()
            for question in conversation.questions:
                seqs = await _recall(run, conversation.name, question.text)
                found = await _search(run, conversation.name, question.text)
                numbers = [sessions[item["seq"]] for item in found["items"]]
                shares.append(_share_found(seqs, numbers, question, sessions))
    return _average(shares)


async def measure_vectors(conversations: Sequence[Conversation], model: str) -> Quality:
    """Rank by words and vectors in this process, as the proxy does, without its limits of time."""
    shares = []
    models = EmbeddingModels()
    vectors = MessageVectors(SearchedWithoutIndex(), models, Facts())
    for conversation in conversations:
        key = Key("tenant", conversation.name, "t")
        sessions = conversation.find_sessions()
        stored = await _embed_messages(conversation, models, model)
        for question, ranked in rank_all(conversation):
            query = await vectors.embed_query(key, model, question.text)
            comparison = Comparison(query, NO_FILTER, ranked)
            comparison.add(stored)
            similarity = comparison.choose()
            fused = fuse(ranked, similarity) if similarity else ranked
            seqs = [message.seq for message in fused]
            shares.append(
                _share_found(seqs, [sessions[seq] for seq in seqs[:100]], question, sessions)
            )
    models.close()
    return _average(shares)


async def _embed_messages(
    conversation: Conversation, models: EmbeddingModels, model: str
) -> list[StoredVector]:
    """Make the vectors of the messages that have words."""
    texts = {text.seq: text for text in list_texts(conversation)}
    firsts = [
        each for each in cut_passages(texts.values(), IndexPlace(), None)[0] if not each.place
    ]
    written = []
    for before, each in pairwise((None, *firsts)):
        assert each is not None
        follows = before is not None and before.visit == each.visit
        earlier = (texts[before.seq], before.length) if before and follows else (None, 0)
        written.append(write_embedded_text(texts[each.seq], each.length, *earlier))
    found: list[StoredVector] = []
    for begin in range(0, len(firsts), LOCAL_BATCH_MESSAGES):
        batch = slice(begin, begin + LOCAL_BATCH_MESSAGES)
        embedded = await models.embed_texts(model, written[batch])
        found += (
            StoredVector("t", each.seq, each.role, each.at, each.length, encode_vector(vector))
            for each, vector in zip(firsts[batch], embedded.vectors, strict=True)
        )
    return found


async def _import(run: Running, name: str, export: bytes) -> None:
    """Import the conversation, and wait until all is indexed."""
    headers = {"content-type": "application/x-ndjson"}
    url = f"{run.base}/om/v1/import"
    (await run.http.post(url, content=export, headers=headers)).raise_for_status()
    while (await _search(run, name, "hello"))["share_read"] < 1:
        continue  # each search indexes some messages more


async def _recall(run: Running, name: str, query: str) -> list[int]:
    body = {"mode": "search", "query": query, "limit": 20}
    answer = await run.http.post(f"{run.base}/om/v1/threads/t/recall?resource={name}", json=body)
    items = answer.raise_for_status().json()["items"]
    # results that touch stand together: back to the order of the ranking
    items.sort(key=lambda item: (-item["score"], -item["at"], -item["seq"]))
    return [item["seq"] for item in items]


async def _search(run: Running, name: str, query: str) -> dict[str, Any]:
    asked = {"q": query, "resource": name, "limit": "100"}
    answer = await run.http.get(f"{run.base}/om/v1/search", params=asked)
    found: dict[str, Any] = answer.raise_for_status().json()
    return found


async def measure_sqlite(
    conversations: Sequence[Conversation], folder: Path, *, with_notes: bool = False
) -> Quality:
    storage = f'url: "sqlite:///{folder}/om.db"'
    return await measure(conversations, storage, folder, with_notes=with_notes)


async def measure_postgres(
    conversations: Sequence[Conversation], url: str, folder: Path, *, with_notes: bool = False
) -> Quality:
    with own_schema(url) as schema:
        storage = f'url: "{url}", prefix: {schema}'
        return await measure(conversations, storage, folder, with_notes=with_notes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="locomo10.json")
    parser.add_argument("--postgres", help="measure in a new schema of this server too")
    parser.add_argument("--conversations", type=int, help="only so many")
    parser.add_argument("--vectors", metavar="MODEL", help="in this process, and nothing served")
    parser.add_argument("--without-captions", action="store_true", help="only what was said")
    options = parser.parse_args()
    read = read_conversations(options.file, with_captions=not options.without_captions)
    conversations = read[: options.conversations]
    print("| store | questions | R@5 | R@10 | R@20 | sessions R@10 |\n|---|---|---|---|---|---|")
    if options.vectors:
        print(f"| words | {measure_rules(conversations)} |", flush=True)
        found = asyncio.run(measure_vectors(conversations, options.vectors))
        print(f"| words and vectors | {found} |")
        return
    for with_notes, suffix in ((False, ""), (True, ", with LoCoMo's notes")):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            found = asyncio.run(measure_sqlite(conversations, folder, with_notes=with_notes))
            print(f"| SQLite{suffix} | {found} |", flush=True)
            if options.postgres:
                measured = measure_postgres(
                    conversations, options.postgres, folder, with_notes=with_notes
                )
                print(f"| PostgreSQL{suffix} | {asyncio.run(measured)} |", flush=True)
        ruled = measure_rules(conversations, with_notes=with_notes)
        print(f"| the rules alone{suffix} | {ruled} |", flush=True)


if __name__ == "__main__":
    main()
