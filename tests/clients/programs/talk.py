"""What the Python programs share: whom they hear, whom they tell, and the tool they lend the
model."""

import json
from collections.abc import Iterator
from pathlib import Path

_said = json.loads(Path("turns.json").read_text(encoding="utf-8"))


def turns() -> Iterator[tuple[str, bool]]:
    """What the user says, and whether the answer is to be streamed."""
    for turn in _said["turns"]:
        yield turn["say"], turn["stream"]


def told(answer: str | None) -> None:
    print(json.dumps({"answer": answer}), flush=True)


def named(thread: str, resource: str | None = None) -> None:
    """What the client itself calls its conversation and user, where it chooses."""
    print(json.dumps({"thread": thread, "resource": resource or thread}), flush=True)


def price(item: str) -> str:
    """The price of a floor covering."""
    return f"{item}: {20 + 3 * len(item)}.90 euros a square metre, in stock, two days"


PRICE = {
    "type": "function",
    "function": {
        "name": "price",
        "description": "The price of a floor covering.",
        "parameters": {
            "type": "object",
            "properties": {"item": {"type": "string"}},
            "required": ["item"],
        },
    },
}
TOOLS = [PRICE] if _said["tool"] else None
OPTIONS = _said["options"]  # members that each request has beside
