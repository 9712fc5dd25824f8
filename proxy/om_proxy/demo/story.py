"""The conversation that is played: five days of work on a food bank's van planner, its tools really
answering.

What people say stands in `days/*.yaml`, written by hand; what the tools answer is computed by
demo/world.py in the order of the calls. The last question has no answer in the script: whoever
answers it has to know.
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

from om_proxy.demo.world import World
from om_proxy.testing.scripted import cue

Message = Mapping[str, Any]

INSTRUCTIONS = (
    "You are the engineering assistant at a regional food bank. You help its data desk with vanplan, a planner that runs at night. "
    "Use the tools to look before you answer, quote numbers and names exactly, and keep answers to a few sentences."
)

_TEXT = {"type": "string"}
_TOOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "list_files": ("Files below a folder, with their size in bytes.", {"folder": _TEXT}),
    "read_file": ("The lines of a file, numbered.", {"path": _TEXT}),
    "write_file": ("Write or replace a part of a file.", {"path": _TEXT, "text": _TEXT}),
    "run_tests": ("Run the tests whose name starts with the target.", {"target": _TEXT}),
    "query": ("Ask the planner's database in SQL; answers CSV.", {"sql": _TEXT}),
    "tail_log": (
        "The last lines of the planner's log of a night.",
        {"night": _TEXT, "lines": {"type": "integer"}},
    ),
    "calendar": (
        "Entries of the shared calendar between two dates.",
        {"first": _TEXT, "last": _TEXT},
    ),
    "shell": ("Run a command on the planner's machine.", {"command": _TEXT}),
}


@dataclass(frozen=True, slots=True)
class Turn:
    """What the user says, and what follows until the user's next turn; the question at the end is
    followed by nothing."""

    day: date
    at: float  # unix seconds; the story's clocks show UTC
    said: str
    follows: tuple[Message, ...]  # assistant and tool messages, in order


@dataclass(frozen=True, slots=True)
class Story:
    turns: tuple[Turn, ...]

    @property
    def tools(self) -> list[dict[str, Any]]:
        return [_tool(name, about, arguments) for name, (about, arguments) in _TOOLS.items()]

    @property
    def script(self) -> dict[str, Message]:
        """Cue → the assistant's next message, for a scripted model."""
        return {
            cue(heard): said
            for turn in self.turns
            for heard, said in pairwise([{"role": "user", "content": turn.said}, *turn.follows])
            if said["role"] == "assistant"
        }


def load() -> Story:
    """Read the days and let the tools answer."""
    folder = files("om_proxy.demo") / "days"
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
                for turn in _turns(yaml.safe_load(day.read_text("utf-8")), world)
            )
        )
    finally:
        world.close()


def _turns(sheet: Mapping[str, Any], world: World) -> Iterator[Turn]:
    day: date = sheet["date"]
    world.wake(day)
    for number, turn in enumerate(sheet["turns"], start=1):
        at = datetime.combine(day, time.fromisoformat(turn["at"]), UTC).timestamp()
        follows = [
            m
            for step, calls in enumerate(turn.get("do", ()), start=1)
            for m in _step(calls, f"{day:%m%d}{number:02}{step}", world)
        ]
        if "assistant" in turn:
            follows.append({"role": "assistant", "content": turn["assistant"]})
        yield Turn(day, at, turn["user"], tuple(follows))


def _step(calls: Any, label: str, world: World) -> Iterator[Message]:
    """One assistant message that calls tools, several at once where the sheet lists several, and
    their results."""
    wanted = [
        (f"call_{label}{letter}", *next(iter(call.items())))
        for letter, call in zip("abc", _listed(calls), strict=False)
    ]
    yield {"role": "assistant", "content": None, "tool_calls": [_call(*one) for one in wanted]}
    for call_id, name, arguments in wanted:
        yield {"role": "tool", "tool_call_id": call_id, "content": world.call(name, arguments)}


def _listed(calls: Any) -> list[Mapping[str, Any]]:
    return calls if isinstance(calls, list) else [calls]


def _call(call_id: str, name: str, arguments: Any) -> Message:
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
    }


def _tool(name: str, about: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
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
