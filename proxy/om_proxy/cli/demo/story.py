"""Read the demo's conversation: five days of work on a food bank's van planner, with tools that
really answer.

The people's words are in `days/*.yaml`, written by hand; cli/demo/world.py computes the tools'
answers in the order of the calls. The script has no answer to the last question: the model has to
know it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from importlib.resources import files
from itertools import pairwise
from typing import Any

import yaml

from om_proxy.cli.demo.world import World
from om_proxy.testing.scripted import cue

Message = Mapping[str, Any]

INSTRUCTIONS = (
    "You are the engineering assistant at a regional food bank. You help its data desk with vanplan, a planner that runs at night. "
    "Use the tools to look before you answer, quote numbers and names exactly, and keep answers to a few sentences."
)

_STRING_SCHEMA = {"type": "string"}
_TOOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "list_files": ("Files below a folder, with their size in bytes.", {"folder": _STRING_SCHEMA}),
    "read_file": ("The lines of a file, numbered.", {"path": _STRING_SCHEMA}),
    "write_file": (
        "Write or replace a part of a file.",
        {"path": _STRING_SCHEMA, "text": _STRING_SCHEMA},
    ),
    "run_tests": ("Run the tests whose name starts with the target.", {"target": _STRING_SCHEMA}),
    "query": ("Ask the planner's database in SQL; answers CSV.", {"sql": _STRING_SCHEMA}),
    "tail_log": (
        "The last lines of the planner's log of a night.",
        {"night": _STRING_SCHEMA, "lines": {"type": "integer"}},
    ),
    "calendar": (
        "Entries of the shared calendar between two dates.",
        {"first": _STRING_SCHEMA, "last": _STRING_SCHEMA},
    ),
    "shell": ("Run a command on the planner's machine.", {"command": _STRING_SCHEMA}),
}


@dataclass(frozen=True, slots=True)
class Turn:
    """A user's message, and the messages until the user's next one. None follow the last
    question."""

    day: date
    at: float  # unix seconds; the story's clocks show UTC
    said: str
    follows: tuple[Message, ...]  # assistant and tool messages, in order


@dataclass(frozen=True, slots=True)
class Story:
    turns: tuple[Turn, ...]

    @property
    def tools(self) -> list[dict[str, Any]]:
        return [
            _build_tool_schema(name, about, arguments)
            for name, (about, arguments) in _TOOLS.items()
        ]

    @property
    def script(self) -> dict[str, Message]:
        """The assistant's next message by its cue, for a scripted model."""
        return {
            cue(message): next_message
            for turn in self.turns
            for message, next_message in pairwise(
                [{"role": "user", "content": turn.said}, *turn.follows]
            )
            if next_message["role"] == "assistant"
        }


def load_story() -> Story:
    """Read the days' files, and let the tools answer."""
    folder = files("om_proxy.cli.demo") / "days"
    days = sorted(
        (entry for entry in folder.iterdir() if entry.name[0].isdigit()),
        key=lambda entry: entry.name,
    )
    world = World()
    try:
        return Story(
            tuple(
                turn
                for day in days
                for turn in _read_turns(yaml.safe_load(day.read_text("utf-8")), world)
            )
        )
    finally:
        world.close()


def _read_turns(sheet: Mapping[str, Any], world: World) -> Iterator[Turn]:
    day: date = sheet["date"]
    world.advance_to(day)
    for number, turn in enumerate(sheet["turns"], start=1):
        at = datetime.combine(day, time.fromisoformat(turn["at"]), UTC).timestamp()
        follows = [
            m
            for step, calls in enumerate(turn.get("do", ()), start=1)
            for m in _play_step(calls, f"{day:%m%d}{number:02}{step}", world)
        ]
        if "assistant" in turn:
            follows.append({"role": "assistant", "content": turn["assistant"]})
        yield Turn(day, at, turn["user"], tuple(follows))


def _play_step(calls: Any, label: str, world: World) -> Iterator[Message]:
    """Yield an assistant message with its tool calls (the file lists one or several), then their
    results."""
    named_calls = [
        (f"call_{label}{letter}", *next(iter(call.items())))
        for letter, call in zip("abc", calls if isinstance(calls, list) else [calls], strict=False)
    ]
    yield {
        "role": "assistant",
        "content": None,
        "tool_calls": [_build_tool_call(*call) for call in named_calls],
    }
    for call_id, name, arguments in named_calls:
        yield {"role": "tool", "tool_call_id": call_id, "content": world.call(name, arguments)}


def _build_tool_call(call_id: str, name: str, arguments: Any) -> Message:
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
    }


def _build_tool_schema(name: str, about: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": arguments,
        "required": list(arguments),
        "additionalProperties": False,
    }
    return {
        "type": "function",
        "function": {"name": name, "description": about, "parameters": schema},
    }
