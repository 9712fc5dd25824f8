"""What every client says, what the model server answers it, and what of both must be found again
afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]

ROOMS = [
    "kitchen",
    "hall",
    "study",
    "pantry",
    "bathroom",
    "bedroom",
    "nursery",
    "attic",
    "cellar",
    "workshop",
    "landing",
    "veranda",
    "guest-room",
]
FLOORS = ["oak", "cork", "slate", "linoleum", "terrazzo", "larch"]
PEOPLE = ["Ana", "Bo", "Chidi", "Dagny", "Elif"]
# asked last, when the first turns are covered: the model has no line for them. The date is that of
# the notes, where it finds the facts
QUESTION = "By when must the work be done that may not cost more than {} euros?"
RECALLED = (
    "On Nov 14, 2023 you said: It must be done by March {}, and it may not cost more than {} euros."
)


@dataclass(frozen=True)
class Turn:
    say: str
    answer: str
    floor: str
    tool: Message | None = None  # the call the model makes before it answers
    stream: bool = False

    @property
    def id(self) -> str:
        return str(self.tool["id"]) if self.tool else ""


def conversation(tool: str | None = "price") -> tuple[Turn, ...]:
    """A flat, room by room, about 150 tokens a turn; every other one streamed, every third with a
    call of the tool. The last two ask for facts of the first ones, whole and streamed.

    `tool`: `price`, which the program lends the model, or `bash`, which the client has; None: no
    calls.
    """
    rooms = [
        Turn(
            _say(n, room),
            _answer(n, room),
            FLOORS[n % len(FLOORS)],
            _call(n, tool) if tool and n % 3 == 2 else None,
            stream=n % 2 == 1,
        )
        for n, room in enumerate(ROOMS[:-1])
    ]
    last_room = _say(len(rooms), ROOMS[-1]), _answer(len(rooms), ROOMS[-1]), QUESTION.format(1030)
    whole = Turn("\n\n".join(last_room), RECALLED.format(4, 1030), "")
    return *rooms, whole, Turn(QUESTION.format(900), RECALLED.format(3, 900), "", stream=True)


def _say(n: int, room: str) -> str:
    floor, who = FLOORS[n % len(FLOORS)], PEOPLE[n % len(PEOPLE)]
    return (
        f"Now the {room}. It is {210 + 17 * n} cm wide and {390 - 11 * n} cm long, and its ceiling is {240 + n} cm high. "
        f"{who} wants {floor} on its floor and {n + 2} sockets beside the door. It must be done by March {n + 3}, and it may not cost "
        f"more than {900 + 130 * n} euros. What does {floor} cost for the {room}?"
    )


def _answer(n: int, room: str) -> str:
    floor = FLOORS[n % len(FLOORS)]
    return (
        f"For the {room} — {floor}, “as {PEOPLE[n % len(PEOPLE)]} wants” ✓\n\n"
        f"- area: {(210 + 17 * n) * (390 - 11 * n) / 10_000:.2f} m², so order {n + 9} m² with the waste\n"
        f"- price: {price(floor)}\n"
        f"- the {n + 2} sockets come first, since the walls of the {room} are opened for them; allow {n + 1} days\n\n"
        f"That stays below {900 + 130 * n} euros if nothing is wrong below the old floor of the {room}."
    )


def price(floor: str) -> str:
    """What the tool answers, the same in every client."""
    return f"{floor}: {20 + 3 * len(floor)}.90 euros a square metre, in stock, two days"


def _call(n: int, tool: str) -> Message:
    floor = FLOORS[n % len(FLOORS)]
    arguments = (
        {"item": floor}
        if tool == "price"
        else {"command": f"echo '{price(floor)}'", "description": "Ask for the price"}
    )
    return {
        "id": f"call_{tool}_{n}",
        "type": "function",
        "function": {"name": tool, "arguments": json.dumps(arguments)},
    }


def script(turns: Sequence[Turn]) -> dict[str, Message]:
    """The model server's lines, by what it is asked last."""
    lines: dict[str, Message] = {}
    for turn in turns:
        if not turn.floor:  # a question
            continue
        answer = {"role": "assistant", "content": turn.answer}
        lines[turn.id or turn.say] = answer
        if turn.tool:
            lines[turn.say] = {"role": "assistant", "content": None, "tool_calls": [turn.tool]}
    return lines


def transcript(turns: Sequence[Turn]) -> Iterator[tuple[str, str]]:
    """Role and gist of every message of the conversation: its text, or the id of the call it
    makes."""
    for turn in turns:
        yield "user", turn.say
        if turn.tool:
            yield "assistant", turn.id
            yield "tool", price(turn.floor)
        yield "assistant", turn.answer
