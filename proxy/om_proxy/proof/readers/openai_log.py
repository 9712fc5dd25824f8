"""Logs of a proxy or a program: a line for each call of chat completions, `{request, response, time,
headers?}` or `{body, response}`.

The thread is what `X-OM-Thread` says, else `metadata.thread` of the request. Without either, a
request whose messages begin with all messages of an earlier one goes on with it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from om_proxy.proof.conversation import MISSING_TIMES, Call, Conversation, Message
from om_proxy.proof.readers.plain import read_message, read_usage
from om_proxy.proof.readers.records import SPACING_S, Head, Record, read_records, read_time

THREAD_HEADER = "x-om-thread"


def fits(head: Head) -> bool:
    return any(find_request(record) is not None and "response" in record for record in head.records)


def find_request(record: Record) -> Mapping[str, Any] | None:
    """Return the chat request of a line; None if it holds none."""
    request = record.get("request", record.get("body"))
    has_messages = isinstance(request, dict) and isinstance(request.get("messages"), list)
    return request if has_messages else None


def read(path: Path, program: str) -> Iterator[Conversation]:
    notices: Counter[str] = Counter()
    threads: dict[str, Thread] = {}
    thread_ends: dict[bytes, str] = {}  # by the digest of a request's messages
    for record in read_records(path, notices):
        request = find_request(record)
        if request is None:
            notices["skipped: no chat request"] += 1
            continue
        digests = list(digest_prefixes(request["messages"]))
        name = find_thread(record, request)
        if name is None:
            found = (thread_ends[d] for d in reversed(digests) if d in thread_ends)
            name = next(found, f"{path.stem}-{len(threads) + 1}")
        if digests:
            thread_ends[digests[-1]] = name
        threads.setdefault(name, Thread(name)).add(record, request)
    lines = notices.pop("lines", 0)
    for thread in threads.values():
        yield thread.build(program, notices, lines)
        notices = Counter()  # they are the file's, and counted once


def find_thread(record: Record, request: Mapping[str, Any]) -> str | None:
    headers = record.get("headers") or {}
    named = next((v for k, v in headers.items() if str(k).lower() == THREAD_HEADER), None)
    named = named or (request.get("metadata") or {}).get("thread")
    return str(named) if named else None


def digest_prefixes(messages: list[Any]) -> Iterator[bytes]:
    """Yield the digest of the first message, of the first two, and so on."""
    digest = hashlib.sha256()
    for message in messages:
        digest.update(orjson.dumps(message) + b"\n")
        yield digest.digest()


@dataclass(slots=True)
class Thread:
    name: str
    calls: list[Call] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)  # of the newest request, with its reply
    known: dict[bytes, Message] = field(default_factory=dict)  # so that calls share them
    missing_times: int = 0

    def add(self, record: Record, request: Mapping[str, Any]) -> None:
        last = self.calls[-1].replied_at if self.calls else None
        at = read_time(record.get("time"))
        if at is None:
            self.missing_times += 1
            at = 0.0 if last is None else last + SPACING_S
        at = max(at, last or at)
        response = record.get("response")
        answer = response if isinstance(response, dict) else {}
        choices = answer.get("choices") or [{}]
        said = choices[0].get("message") if isinstance(choices[0], dict) else None
        sent = tuple(self._share(m, at) for m in request["messages"] if isinstance(m, dict))
        reply = self._share(said, at) if isinstance(said, dict) else None
        model = str(answer.get("model") or request.get("model") or "")
        usage = answer.get("usage")
        tokens = read_usage(usage) if isinstance(usage, dict) else None
        self.calls.append(Call(sent, reply, at, at, model, tokens))
        self.messages = [*sent, *([reply] if reply else [])]

    def _share(self, message: Record, at: float) -> Message:
        found = read_message(message) | {"created_at": at}
        key = orjson.dumps({name: found[name] for name in found if name != "created_at"})
        return self.known.setdefault(key, found)

    def build(self, program: str, notices: Counter[str], lines: int) -> Conversation:
        if self.missing_times:
            notices[MISSING_TIMES] += self.missing_times
        return Conversation(
            self.name, None, program, tuple(self.messages), tuple(self.calls), notices, lines
        )
