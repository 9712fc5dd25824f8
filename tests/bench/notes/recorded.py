"""Recorded conversations as calls with their times, with the facts that LoCoMo asks of them.

Three shapes are read, told by their content: LoCoMo's JSON (a list of conversations of two people,
in dated sessions), a session of one client (JSON lines, a message each, with `created_at`), and
service chats (JSON lines, a conversation each, in `messages`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count, takewhile
from pathlib import Path
from typing import Any

from tests.bench.notes.facts import Fact, read_questions
from tests.bench.recordings import service_chats
from tests.bench.replaying import Timed
from tests.e2e.replay import SYSTEM, Message

BETWEEN_TURNS_S = 30.0
# stands for the reply to a message that ends a session: so the proxy sees the message on its day
UNANSWERED = "…"
THREAD = "session"  # the thread of a recording that is one conversation


@dataclass(frozen=True, slots=True)
class Recording:
    """`people`: who the user and the assistant are, for the judge."""

    name: str
    calls: list[Timed]
    facts: list[Fact]
    people: str = ""

    @property
    def conversations(self) -> dict[str, list[Message]]:
        """Thread → its messages, without the instructions."""
        return {
            call.thread: [
                m for m in (*call.sent, call.reply) if m["role"] not in ("system", "developer")
            ]
            for call in self.calls
        }


def read_recording(
    path: Path, number: int = 0, *, sessions: int | None = None, names: bool = False
) -> Recording:
    """Raises ValueError for a file of no known shape. `number`: of the conversation in a LoCoMo
    file; `sessions`: its first ones;
    `names`: put the speaker's name before each text."""
    first = path.read_text(encoding="utf-8").lstrip()
    if first.startswith("["):
        conversations = json.loads(first)
        if not 0 <= number < len(conversations):
            raise ValueError(
                f"{path.name} has conversations 0 to {len(conversations) - 1}, not {number}"
            )
        return read_locomo(
            f"{path.stem}:{number}", conversations[number], sessions=sessions, names=names
        )
    line = json.loads(first.splitlines()[0]) if first.startswith("{") else {}
    if "messages" in line:
        return Recording(path.stem, service_chats(path), [])
    if "role" in line:
        return Recording(path.stem, read_session(first.splitlines()), [])
    raise ValueError(
        f"{path} is no recording: neither LoCoMo's JSON, nor lines with `role`, nor lines with `messages`"
    )


def read_session(lines: Sequence[str]) -> list[Timed]:
    """A call for each assistant message, which was asked for when the message before it came.
    Raises ValueError for one without a time."""
    messages: list[Message] = [json.loads(line) for line in lines if line.strip()]
    for number, message in enumerate(messages, 1):
        if "created_at" not in message:
            raise ValueError(f'message {number} of the session has no "created_at"')
    said = [
        {
            key: m[key]
            for key in ("role", "content", "name", "tool_calls", "tool_call_id")
            if key in m
        }
        for m in messages
    ]
    times = [datetime.fromisoformat(m["created_at"]).timestamp() for m in messages]
    begins = [] if said[0]["role"] in ("system", "developer") else [SYSTEM]
    return [
        Timed(THREAD, [*begins, *said[:n]], message, times[n - 1], times[n])
        for n, message in enumerate(said)
        if n and message["role"] == "assistant"
    ]


def read_locomo(
    name: str, one: Mapping[str, Any], *, sessions: int | None = None, names: bool = False
) -> Recording:
    """The first speaker is the user, the other one the assistant; all sessions are one thread."""
    talk = one["conversation"]
    user, assistant = talk["speaker_a"], talk["speaker_b"]
    system = {
        "role": "system",
        "content": f"You are {assistant}. You talk with {user}, whom you know well.",
    }
    said: list[Message] = []
    calls: list[Timed] = []
    turns: dict[str, int] = {}
    for number in takewhile(
        lambda n: talk.get(f"session_{n}") and (sessions is None or n <= sessions), count(1)
    ):
        at = read_time(talk[f"session_{number}_date_time"])
        for turn in talk[f"session_{number}"]:
            turns[turn["dia_id"]] = len(said)
            message = {
                "role": "user" if turn["speaker"] == user else "assistant",
                "content": _text(turn, names),
            }
            if message["role"] == "assistant" and said:  # nobody asked for the first message of all
                calls.append(_call([system, *said], message, at))
            said.append(message)
            at += BETWEEN_TURNS_S
        if said[-1]["role"] == "user":
            reply = {"role": "assistant", "content": UNANSWERED}
            calls.append(_call([system, *said], reply, at))
            said.append(reply)
    facts = list(read_questions(one.get("qa", ()), turns))
    return Recording(name, calls, facts, f"User is {user}. Assistant is {assistant}.")


def _call(sent: Sequence[Message], reply: Message, at: float) -> Timed:
    """The user's message came one turn before the reply."""
    return Timed(THREAD, sent, reply, at - BETWEEN_TURNS_S, at)


def _text(turn: Mapping[str, Any], names: bool) -> str:
    text = str(turn["text"])
    if caption := turn.get("blip_caption"):
        text += f"\n[shows {caption}]"
    return f"{turn['speaker']}: {text}" if names else text


def read_time(text: str) -> float:
    """Unix seconds of `7:31 pm on 21 January, 2022`, taken as UTC."""
    return datetime.strptime(text, "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC).timestamp()
