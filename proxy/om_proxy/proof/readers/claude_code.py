"""Sessions of the coding agent `claude-code`: `projects/*/*.jsonl` of its folder, and a file for each
agent that it starts.

A line is a user's message, a block of a reply (the blocks of one reply share `message.id`, each with
the whole `usage`), a system line, or bookkeeping. Lines are a tree by `parentUuid`. Newer files also
hold each request: `api-request` has the messages of its `base` up to `keep`, then `tail`, each by the
sha256 of its JSON. In older files a request is the path from the root, or from the newest compaction.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from om_proxy.proof.conversation import Call, Conversation, Message, Usage
from om_proxy.proof.readers.exports import create_tool_call
from om_proxy.proof.readers.records import (
    Head,
    Record,
    list_blocks,
    raise_times,
    read_records,
    read_time,
)

CHARS_PER_TOKEN = 4  # of a summary, whose tokens are not recorded
TITLE_FIELDS = ("customTitle", "aiTitle", "title", "summary")

Blocks = Sequence[Mapping[str, Any]]  # of the Messages API


def list_places() -> list[Path]:
    home = os.environ.get("CLAUDE_CONFIG_DIR")
    folders = (
        [Path(home)] if home else [Path.home() / ".claude", Path.home() / ".config" / "claude"]
    )
    return sorted(path for folder in folders for path in (folder / "projects").rglob("*.jsonl"))


def fits(head: Head) -> bool:
    return any(
        record.get("type") == "api-request"
        or (isinstance(record.get("message"), dict) and "uuid" in record and "type" in record)
        for record in head.records
    )


def read(path: Path, program: str) -> Iterator[Conversation]:
    session = Session()
    for record in read_records(path, session.notices):
        session.add(record)
    if session.lines:
        yield session.build(path, program)


@dataclass(slots=True)
class Reply:
    """One reply, which stands in several lines."""

    record: Record  # its first line
    blocks: list[Mapping[str, Any]] = field(default_factory=list)
    usage: Mapping[str, Any] = field(default_factory=dict)
    at: float | None = None
    message: Record = field(default_factory=dict)


@dataclass(slots=True)
class Session:
    """The records of one file. Messages are built once, so that all requests share them."""

    notices: Counter[str] = field(default_factory=Counter)
    lines: dict[str, Record] = field(default_factory=dict)  # by uuid, without blocks of replies
    replies: dict[str, Reply] = field(default_factory=dict)  # by message id
    requests: dict[str, Record] = field(default_factory=dict)
    systems: dict[str, Record] = field(default_factory=dict)  # by shape
    messages: dict[str, list[Record]] = field(default_factory=dict)  # by uuid
    by_hash: dict[str, list[Record]] = field(default_factory=dict)
    title: str | None = None

    def add(self, record: Record) -> None:
        kind = str(record.get("type"))
        title = next((str(record[name]) for name in TITLE_FIELDS if record.get(name)), None)
        self.title = title or self.title
        message = record.get("message")
        if kind == "api-request":
            self.requests.setdefault(str(record.get("id")), record)
        elif kind == "api-request-shape":
            system = join_texts(list_blocks(record.get("system")))
            at = read_time(record.get("timestamp"))
            name = str(record.get("hash") or record.get("shapeHash") or record.get("id"))
            self.systems[name] = {"role": "system", "content": system, "created_at": at}
        elif kind == "api-request-blob":
            self._add_blob(record)
        elif kind == "system" and "uuid" in record:
            self.lines.setdefault(record["uuid"], record)
        elif kind in ("user", "assistant") and isinstance(message, dict) and "uuid" in record:
            if record["uuid"] in self.lines:
                self.notices["repeated lines"] += 1
            elif kind == "user":
                self._add_user(record, message)
            else:
                self._add_block(record, message)
        elif title is None:
            self.notices[f"skipped: {kind[:40]}"] += 1
            if "uuid" in record:  # an attachment, which the next line may name as its parent
                self.lines.setdefault(
                    record["uuid"], {"type": kind, "parentUuid": record.get("parentUuid")}
                )

    def _add_user(self, record: Record, message: Mapping[str, Any]) -> None:
        blocks = list_blocks(message.get("content"))
        found = convert_user_message(blocks, read_time(record.get("timestamp")))
        self.messages[record["uuid"]] = found
        self.by_hash.setdefault(hash_message("user", blocks), found)
        kept = ("uuid", "parentUuid", "logicalParentUuid", "isCompactSummary", "timestamp")
        self.lines[record["uuid"]] = {"type": "user"} | {k: record.get(k) for k in kept}

    def _add_block(self, record: Record, message: Mapping[str, Any]) -> None:
        reply = self.replies.setdefault(str(message.get("id") or record["uuid"]), Reply(record))
        reply.blocks += list_blocks(message.get("content"))
        usage = message.get("usage") or {}
        if usage.get("output_tokens", 0) >= reply.usage.get("output_tokens", 0):
            reply.usage = usage
        reply.at = read_time(record.get("timestamp"))
        self.lines[record["uuid"]] = record

    def _add_blob(self, record: Record) -> None:
        """Take the message of a blob, in whichever member it stands."""
        for value in record.values():
            message = value
            if isinstance(value, str) and value.startswith("{"):
                try:
                    message = orjson.loads(value)
                except ValueError:
                    continue
            if isinstance(message, dict) and message.get("role") in ("user", "assistant"):
                blocks, role = list_blocks(message.get("content")), message["role"]
                at = read_time(record.get("timestamp"))
                found = (
                    convert_user_message(blocks, at)
                    if role == "user"
                    else [convert_reply(blocks, at)]
                )
                self.by_hash.setdefault(hash_message(role, blocks), found)

    # ── the conversation ──────────────────────────────────────────────────────────────────────────

    def build(self, path: Path, program: str) -> Conversation:
        for reply in self.replies.values():
            reply.message = convert_reply(reply.blocks, reply.at)
            self.by_hash.setdefault(hash_message("assistant", reply.blocks), [reply.message])
        leaf = next(reversed(self.lines))
        whole = [
            line
            for line in self._walk(leaf, over_boundaries=True)
            if not line.get("isCompactSummary")
        ]
        history = list(self._list_messages(whole))
        systems = list(self.systems.values())[-1:]
        messages = raise_times([*systems, *history], self.notices)
        lines = self.notices.pop("lines", 0)
        return Conversation(
            path.stem, self.title, program, tuple(messages), tuple(self._list_calls()),
            self.notices, lines,
        )  # fmt: skip

    def _walk(self, uuid: str | None, *, over_boundaries: bool = False) -> list[Record]:
        """Return the lines from the root, or from the newest compaction, to this one."""
        path: list[Record] = []
        seen: set[str] = set()
        while uuid and uuid in self.lines and uuid not in seen:
            seen.add(uuid)
            line = self.lines[uuid]
            path.append(line)
            is_boundary = line.get("subtype") == "compact_boundary"
            if is_boundary and not over_boundaries:
                break
            uuid = line.get("logicalParentUuid") if is_boundary else line.get("parentUuid")
        return path[::-1]

    def _list_messages(self, path: list[Record]) -> Iterator[Record]:
        """Yield the messages of lines; a reply stands where its first line does."""
        seen: set[str] = set()
        for line in path:
            if line["type"] == "user":
                yield from self.messages[line["uuid"]]
            elif line["type"] == "assistant":
                name = str(line["message"].get("id") or line["uuid"])
                if name not in seen:
                    seen.add(name)
                    yield self.replies[name].message

    def _list_calls(self) -> Iterator[Call]:
        for reply in self.replies.values():
            sent, asked_at = self._find_request(reply)
            usage = read_usage(reply.usage) if reply.usage else None
            replied_at = float(reply.message["created_at"] or asked_at)
            model = str(reply.record["message"].get("model") or "")
            if sent and model != "<synthetic>":
                yield Call(sent, reply.message, min(asked_at, replied_at), replied_at, model, usage)
        for line in self.lines.values():
            if line.get("subtype") == "compact_boundary":
                yield self._build_compaction(line)

    def _find_request(self, reply: Reply) -> tuple[list[Message], float]:
        """Return what was sent, and when."""
        record = self.requests.get(str(reply.record.get("requestRef")))
        hashes = self._resolve(record) if record else None
        if record and hashes is not None:
            system = self.systems.get(str(record.get("shapeHash")))
            sent: list[Message] = [system] if system else []
            sent += [message for name in hashes for message in self.by_hash[name]]
            return sent, read_time(record.get("timestamp")) or reply.at or 0.0
        sent = list(self._list_messages(self._walk(reply.record.get("parentUuid"))))
        last: Any = sent[-1]["created_at"] if sent else None
        return sent, float(last or reply.at or 0.0)

    def _resolve(self, record: Record) -> list[str] | None:
        """Return the hashes of a request's messages; None if the file does not hold them all."""
        chain = [record]
        while (base := chain[-1].get("base")) and len(chain) <= len(self.requests):
            if base not in self.requests:
                self.notices["incomplete requests"] += 1
                return None
            chain.append(self.requests[base])
        hashes: list[str] = []
        for request in reversed(chain):
            hashes = [*hashes[: int(request.get("keep") or 0)], *(request.get("tail") or ())]
        if all(name in self.by_hash for name in hashes):
            return hashes
        self.notices["incomplete requests"] += 1
        return None

    def _build_compaction(self, line: Record) -> Call:
        """Build the call that wrote a summary, which has no line of its own."""
        at = read_time(line.get("timestamp")) or 0.0
        tokens = int((line.get("compactMetadata") or {}).get("preTokens") or 0)
        summaries = (
            u
            for u, other in self.lines.items()
            if other.get("isCompactSummary") and other.get("parentUuid") == line["uuid"]
        )
        summary = next((m for uuid in summaries for m in self.messages[uuid]), None)
        output = len(str(summary["content"])) // CHARS_PER_TOKEN if summary else 0
        return Call((), None, at, at, "", Usage(tokens, 0, 0, output), "compaction")


def hash_message(role: str, blocks: list[Mapping[str, Any]]) -> str:
    written = orjson.dumps({"role": role, "content": blocks}, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(written).hexdigest()


def read_usage(usage: Mapping[str, Any]) -> Usage:
    written = int(usage.get("cache_creation_input_tokens") or 0)
    cached = int(usage.get("cache_read_input_tokens") or 0)
    hourly = int((usage.get("cache_creation") or {}).get("ephemeral_1h_input_tokens") or 0)
    return Usage(
        int(usage.get("input_tokens") or 0) + written + cached,
        cached,
        written,
        int(usage.get("output_tokens") or 0),
        hourly,
    )


def convert_user_message(blocks: Blocks, at: float | None) -> list[Record]:
    """Return the results of tools, then what the user said."""
    messages: list[Record] = [
        {
            "role": "tool",
            "tool_call_id": str(block.get("tool_use_id")),
            "content": join_texts(list_blocks(block.get("content"))),
            "created_at": at,
        }
        for block in blocks
        if block.get("type") == "tool_result"
    ]
    if text := join_texts([block for block in blocks if block.get("type") != "tool_result"]):
        messages.append({"role": "user", "content": text, "created_at": at})
    return messages


def convert_reply(blocks: Blocks, at: float | None) -> Record:
    calls = [
        create_tool_call(
            str(block.get("id")),
            block.get("name"),
            orjson.dumps(block.get("input") or {}).decode(),
        )
        for block in blocks
        if block.get("type") == "tool_use"
    ]
    message: Record = {"role": "assistant", "content": join_texts(blocks), "created_at": at}
    return message | {"tool_calls": calls} if calls else message


def join_texts(blocks: Blocks) -> str:
    """Return the text. Thinking is left out, and an image keeps its size alone."""
    return "\n".join(filter(None, map(_read_text, blocks)))


def _read_text(block: Mapping[str, Any]) -> str:
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text") or "")
    if kind in ("image", "document"):
        data = (block.get("source") or {}).get("data") or ""
        return f"[{kind} of {len(data) * 3 // 4} bytes]"
    return ""
