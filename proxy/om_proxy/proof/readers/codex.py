"""Sessions of the coding agent `codex`: `sessions/**/rollout-*.jsonl` of its folder.

A line is `{timestamp, type, payload}`. The payloads of `response_item` are the history, which a
`compacted` line replaces. A request is the history before its reply. The reply just before
`compacted` is the call that shortened the history.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from om_proxy.proof.conversation import Call, Conversation, HistoryError, Message, Prefix, Usage
from om_proxy.proof.readers.exports import create_tool_call
from om_proxy.proof.readers.records import Head, Record, raise_times, read_records, read_time

COMPRESSED_SUFFIX = ".zst"
REPLY_KINDS = frozenset(("function_call", "custom_tool_call", "local_shell_call"))
RESULT_KINDS = frozenset(("function_call_output", "custom_tool_call_output"))


def list_places() -> list[Path]:
    home = Path(os.environ.get("CODEX_HOME") or Path.home() / ".codex")
    folders = (home / "sessions", home / "archived_sessions")
    return sorted(path for folder in folders for path in folder.rglob("rollout-*.jsonl*"))


def fits(head: Head) -> bool:
    if head.path.name.startswith("rollout-") and head.path.suffix == COMPRESSED_SUFFIX:
        return True
    return any(isinstance(r.get("payload"), dict) and "timestamp" in r for r in head.records)


def read(path: Path, program: str) -> Iterator[Conversation]:
    if path.suffix == COMPRESSED_SUFFIX:
        raise HistoryError(f"{path} is compressed: run `zstd -d {path.name}`, and name the result")
    session = Session()
    for record in read_records(path, session.notices):
        session.add(record)
    if session.messages:
        yield session.build(path, program)


@dataclass(slots=True)
class Session:
    notices: Counter[str] = field(default_factory=Counter)
    meta: Mapping[str, Any] = field(default_factory=dict)  # of the first session_meta
    model: str = ""
    messages: list[dict[str, Any]] = field(default_factory=list)
    history: list[Message] = field(default_factory=list)  # what the next request sends
    calls: list[Call] = field(default_factory=list)
    reply: dict[str, Any] | None = None  # that may get more parts
    totals: Counter[str] = field(default_factory=Counter)  # of older files' usage

    def add(self, record: Record) -> None:
        kind, payload = str(record.get("type")), record.get("payload")
        at = read_time(record.get("timestamp"))
        if not isinstance(payload, dict):
            self.notices[f"skipped: {kind[:40]}"] += 1
        elif kind == "response_item":
            self._add_item(payload, at)
        elif kind == "session_meta":
            self._add_meta(payload, at)
        elif kind == "turn_context":
            self.model = str(payload.get("model") or self.model)
        elif kind == "token_usage_record":
            self._add_usage(payload.get("usage") or {})
        elif kind == "event_msg" and payload.get("type") == "token_count":
            self._add_totals((payload.get("info") or {}).get("total_token_usage") or {})
        elif kind == "compacted":
            self._compact(payload, at)
        else:
            self.notices[f"skipped: {kind[:40]}"] += 1

    def _add_meta(self, payload: Mapping[str, Any], at: float | None) -> None:
        if self.meta:
            return  # a fork holds its parent's, too
        self.meta = payload
        given = payload.get("base_instructions") or payload.get("instructions")
        text = given.get("text") if isinstance(given, dict) else given
        if text:
            self._append({"role": "system", "content": str(text), "created_at": at})

    def _add_item(self, item: Mapping[str, Any], at: float | None) -> None:
        kind = item.get("type")
        if kind in REPLY_KINDS or (kind == "message" and item.get("role") == "assistant"):
            self._add_reply_part(item, at)
        elif message := convert_item(item, at):
            self.reply = None
            self._append(message)
        else:
            self.notices[f"skipped: {str(kind)[:40]}"] += 1

    def _append(self, message: dict[str, Any]) -> None:
        self.messages.append(message)
        self.history.append(message)

    def _add_reply_part(self, item: Mapping[str, Any], at: float | None) -> None:
        if self.reply is None:
            self.reply = {"role": "assistant", "content": "", "created_at": at}
            sent = Prefix(self.history, len(self.history))
            asked: Any = self.history[-1]["created_at"] if self.history else at
            self.calls.append(Call(sent, self.reply, asked or 0.0, at or 0.0, self.model, None))
            self._append(self.reply)
        self.reply["content"] = "\n".join(filter(None, (self.reply["content"], read_text(item))))
        if item.get("type") in REPLY_KINDS:
            self.reply.setdefault("tool_calls", []).append(convert_call(item))

    def _add_usage(self, usage: Mapping[str, Any]) -> None:
        """Give the newest call its usage; it ends the reply."""
        self.reply = None
        if self.calls and self.calls[-1].usage is None:
            tokens = Usage(
                int(usage.get("input_tokens") or 0),
                int(usage.get("cached_input_tokens") or 0),
                0,
                int(usage.get("output_tokens") or 0),
            )
            self.calls[-1] = replace(self.calls[-1], usage=tokens)

    def _add_totals(self, totals: Mapping[str, Any]) -> None:
        """Take the difference of two totals; a total may be repeated."""
        now = Counter({name: n for name, n in totals.items() if isinstance(n, int)})
        grown = {name: n - self.totals[name] for name, n in now.items()}
        if grown.get("input_tokens", 0) > 0:
            self.totals = now
            self._add_usage(grown)

    def _compact(self, payload: Mapping[str, Any], at: float | None) -> None:
        if self.calls and self.messages and self.messages[-1] is self.calls[-1].reply:
            self.messages.pop()
            self.calls[-1] = replace(self.calls[-1], kind="compaction")
        self.reply = None
        items = payload.get("replacement_history") or ()
        systems = [m for m in self.history[:1] if m["role"] == "system"]
        replaced = (convert_item(item, at) for item in items if isinstance(item, dict))
        self.history = [*systems, *(message for message in replaced if message)]
        if not items and payload.get("message"):
            summary = {"role": "user", "content": str(payload["message"]), "created_at": at}
            self.history.append(summary)

    def build(self, path: Path, program: str) -> Conversation:
        raise_times(self.messages, self.notices)
        calls = (self._time_call(call) for call in self.calls)
        lines = self.notices.pop("lines", 0)
        return Conversation(
            str(self.meta.get("id") or path.stem), None, program, tuple(self.messages),
            tuple(calls), self.notices, lines,
        )  # fmt: skip

    @staticmethod
    def _time_call(call: Call) -> Call:
        """Return the call at the times of its messages, which have been raised."""
        replied: Any = call.reply["created_at"] if call.reply else call.replied_at
        asked: Any = call.sent[-1]["created_at"] if call.sent else replied
        return replace(call, asked_at=min(asked or replied, replied), replied_at=replied)


def convert_item(item: Mapping[str, Any], at: float | None) -> dict[str, Any] | None:
    """Return the chat message of an item that is no reply; None for what no request shows."""
    if item.get("type") in RESULT_KINDS:
        output = item.get("output")
        text = output.get("content") if isinstance(output, dict) else output
        content = text if isinstance(text, str) else read_text({"content": text})
        return {
            "role": "tool",
            "tool_call_id": str(item.get("call_id")),
            "content": content,
            "created_at": at,
        }
    if item.get("type") == "message":
        return {"role": str(item.get("role")), "content": read_text(item), "created_at": at}
    return None


def convert_call(item: Mapping[str, Any]) -> dict[str, Any]:
    arguments = item.get("arguments") or item.get("input") or str(item.get("action") or "")
    call_id = str(item.get("call_id") or item.get("id"))
    return create_tool_call(call_id, item.get("name") or item.get("type"), str(arguments))


def read_text(item: Mapping[str, Any]) -> str:
    """Return the text of a content. An image keeps its size alone."""
    content = item.get("content")
    if isinstance(content, str):
        return content
    parts = [part for part in content or () if isinstance(part, dict)]
    return "\n".join(
        f"[image of {len(str(part['image_url'])) * 3 // 4} bytes]"
        if "image_url" in part
        else str(part.get("text") or "")
        for part in parts
    )
