"""Check one forwarded prompt against what its client has said. It is pure.

Each message names an id, `M17`, that stands nowhere else. Notes name the ids of the messages that
they cover (tests/simulation/words.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from tests.simulation.words import id_of, ids_in

Message = Mapping[str, Any]


@dataclass(frozen=True)
class Faults:
    """What is wrong with a prompt: ids of messages, and of calls where they are orphans."""

    missing: tuple[str, ...] = ()  # said, and told neither word for word nor in a note
    doubled: tuple[str, ...] = ()  # told twice, or word for word beside a note
    orphans: tuple[str, ...] = ()  # results without their call, or calls without a result
    abandoned: tuple[str, ...] = ()  # told, and not of this conversation any more
    disordered: tuple[str, ...] = ()  # not in the order in which its client shows them
    refused: tuple[str, ...] = ()  # what its API refuses

    def __bool__(self) -> bool:
        return any(vars(self).values())

    def __str__(self) -> str:
        return ", ".join(
            f"{name}: {' '.join(ids[:6])}{' …' if len(ids) > 6 else ''}"
            for name, ids in vars(self).items()
            if ids
        )


def check_prompt(
    messages: Sequence[Message],
    shown: Sequence[Message],
    *,
    promised: Collection[str] = (),
    allowed: Collection[str] = (),
    excused: Collection[str] = (),
) -> Faults:
    """Return what is wrong with a prompt. `shown`: what its client sent. `promised`: what it also
    must tell. `allowed`: what it may tell beyond that. `excused`: what may stand twice, since its
    client shows it in other words than were noted."""
    noted, tail = split_notes(messages)
    raw = [one for message in tail for one in find_ids(message)]
    sent = [one for message in shown for one in find_ids(message)]
    counts, said = Counter(raw), set(sent) | set(promised)
    told = noted | counts.keys()
    return Faults(
        missing=_sort(said - told),
        doubled=_sort({one for one, n in counts.items() if n > 1 or one in noted} - {*excused}),
        orphans=tuple(find_orphans(tail)),
        abandoned=_sort(told - said - {*allowed}),
        disordered=tuple(_find_disordered(raw, sent)),
    )


def split_notes(messages: Sequence[Message]) -> tuple[set[str], list[Message]]:
    """Return the ids that notes tell, and the messages that are none of the proxy's."""
    noted: set[str] = set()
    tail = []
    for message in messages:
        text = str(message.get("content") or "")
        if "<observations>" in text:
            noted |= ids_in(text)
        else:
            tail.append(message)
    return noted, tail


def describe_places(
    one: str, prompt: Sequence[Message], shown: Sequence[Message], history: Sequence[Message]
) -> str:
    """Return where an id was said, shown and told: `M3: said 7 of 9; shown 1 of 3; told 2, 4 of 5;
    noted`. What is nowhere is left out."""
    noted, tail = split_notes(prompt)
    lists = (("said", history), ("shown", shown), ("told", tail))
    places = [
        f"{name} {', '.join(map(str, found))} of {len(messages)}"
        for name, messages in lists
        if (found := [n for n, m in enumerate(messages, 1) if one in find_ids(m)])
    ]
    return f"{one}: " + "; ".join([*places, *(["noted"] if one in noted else [])])


def find_late_results(
    missing: Collection[str], history: Sequence[Message], prompt: Sequence[Message]
) -> set[str]:
    """Return those of the missing ids that are results whose call is told in a note. `history`: all
    that was said."""
    noted, _ = split_notes(prompt)
    callers: dict[str, Message] = {}
    late: set[str] = set()
    for message in history:
        # a later step may have the same ids
        callers |= {call["id"]: message for call in message.get("tool_calls") or ()}
        if message["role"] == "tool":
            caller = callers[message["tool_call_id"]]
            if noted.issuperset(find_ids(caller)):
                late |= {one for one in find_ids(message) if one in missing}
    return late


def find_ids(message: Message) -> list[str]:
    """Return the id of a message, and the id of its correction if it has one."""
    text = orjson.dumps([message.get("content"), message.get("tool_calls")])
    first = id_of(text)
    return [first, *_sort(ids_in(text.decode()) - {first})] if first else []


def find_orphans(messages: Sequence[Message]) -> Iterator[str]:
    """Yield what a strict server refuses: each result must follow the message with its call, and
    each call of a message needs its result right behind it."""
    open_calls: dict[str, bool] = {}  # by id: whether its result has come
    for message in messages:
        if message["role"] == "tool":
            call = str(message["tool_call_id"])
            if open_calls.get(call, True):
                yield call
            open_calls[call] = True
            continue
        yield from (call for call, is_answered in open_calls.items() if not is_answered)
        open_calls = {call["id"]: False for call in message.get("tool_calls") or ()}
    yield from (call for call, is_answered in open_calls.items() if not is_answered)


def _find_disordered(raw: Sequence[str], sent: Sequence[str]) -> Iterator[str]:
    places = {one: place for place, one in enumerate(sent)}
    newest = -1
    for one in raw:
        if places.get(one, newest) < newest:
            yield one
        newest = max(newest, places.get(one, newest))


def _sort(ids: Collection[str]) -> tuple[str, ...]:
    return tuple(sorted(ids, key=lambda one: int(one[1:])))
