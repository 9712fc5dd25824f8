"""Plain messages: a line for each message (`{role, content, created_at?}`), or for each conversation
(`{messages: […]}`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from om_proxy.proof.conversation import Conversation, HistoryError, Usage
from om_proxy.proof.readers.exports import Chat, Entry, create_conversation
from om_proxy.proof.readers.records import Head, Record, read_records, read_time

MESSAGE_FIELDS = ("role", "content", "name", "tool_calls", "tool_call_id", "refusal", "created_at")
# in the arrays of other programs' exports
OTHER_ARRAYS = (b'"mapping"', b'"chat_messages"', b'"history"')
OTHER_MEMBERS = frozenset(("request", "exportAt"))  # in the lines of other programs
MAX_ARRAY_BYTES = 256 * 1024 * 1024
OTHER_RECORDS = "skipped: no message"
ROLES = frozenset(("system", "developer", "user", "assistant", "tool", "function"))


def fits(head: Head) -> bool:
    if head.start.lstrip()[:1] == b"[":
        return b'"role"' in head.start and not any(key in head.start for key in OTHER_ARRAYS)
    return any(
        record.get("role") in ROLES or isinstance(record.get("messages"), list)
        for record in head.records
        if OTHER_MEMBERS.isdisjoint(record)
    )


def read(path: Path, program: str) -> Iterator[Conversation]:
    notices: Counter[str] = Counter()
    lines: list[Record] = []
    for number, record in enumerate(read_values(path, notices), 1):
        if isinstance(record.get("messages"), list):
            name = str(record.get("id") or f"{path.stem}-{number}")
            said = [one for one in record["messages"] if is_message(one)]
            skipped = len(record["messages"]) - len(said)
            own = Counter({OTHER_RECORDS: skipped}) if skipped else Counter[str]()
            yield create_conversation(program, _create_chat(name, record.get("title"), said), own)
        elif is_message(record):
            lines.append(record)
        else:
            notices[OTHER_RECORDS] += 1
    if lines:
        yield create_conversation(program, _create_chat(path.stem, None, lines), notices)


def read_values(path: Path, notices: Counter[str]) -> Iterator[Record]:
    """Yield the records of a JSON array, or of lines."""
    with path.open("rb") as file:
        is_array = file.read(64).lstrip()[:1] == b"["
        file.seek(0)
        text = file.read(MAX_ARRAY_BYTES) if is_array else b""
    if not is_array:
        yield from read_records(path, notices)
        return
    try:
        values = orjson.loads(text)
    except ValueError as exc:
        raise HistoryError(
            f"{path} holds no whole JSON array of at most 256 MiB: write a line for each message"
        ) from exc
    yield from (value for value in values if isinstance(value, dict))


def is_message(value: object) -> bool:
    return isinstance(value, dict) and value.get("role") in ROLES


def _create_chat(name: str, title: str | None, records: list[Record]) -> Chat:
    entries = [
        Entry(read_message(one), one.get("model"), read_usage(one.get("usage") or {}))
        for one in records
    ]
    return Chat(name, title, 0.0, entries)


def read_message(record: Mapping[str, Any]) -> Record:
    """Return the chat message of a record. A member that is null is left out, but for the content."""
    message = {
        name: record[name]
        for name in MESSAGE_FIELDS
        if record.get(name) is not None or (name == "content" and name in record)
    }
    return message | {"created_at": read_time(record.get("created_at"))}


def read_usage(usage: Mapping[str, Any]) -> Usage | None:
    """Read the usage of chat completions, or of agents that write each kind of token apart."""
    if "prompt_tokens" in usage:
        details = usage.get("prompt_tokens_details") or {}
        return Usage(
            int(usage["prompt_tokens"]),
            int(details.get("cached_tokens") or 0),
            int(details.get("cache_write_tokens") or 0),
            int(usage.get("completion_tokens") or 0),
        )
    if "cacheRead" in usage:
        read, written = int(usage["cacheRead"]), int(usage.get("cacheWrite") or 0)
        return Usage(
            int(usage.get("input") or 0) + read + written,
            read,
            written,
            int(usage.get("output") or 0),
        )
    return None
