"""Play the demo's five days through several processes, with what people and failures add to them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import httpx

from om_proxy.cli.demo.story import Story
from om_proxy.testing.scripted import OBSERVER, Fault, ScriptedServer
from tests.e2e.sequence.fleet import Fleet, TravellingClient

# at the ends of the days
TITLE, NEW_TITLE, PIN = "Vans", "The van planner", "Vans above 2.85 m never go to Quarry Steps."

# the day on which a memory model refuses at first
REFUSING_DAY, REFUSED_CALLS = 2, 6

# called with the number of a day of the story, after it
Pause = Callable[[int], Awaitable[None]]


async def play_days(story: Story, fleet: Fleet, models: ScriptedServer, pause: Pause) -> None:
    """Play the story. Each turn has the time of the story; `pause` is awaited after each day."""
    days = sorted({turn.day for turn in story.turns})
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        client = TravellingClient(http, story, fleet)
        for number, day in enumerate(days):
            if number == REFUSING_DAY:
                fault = Fault(kind="http", status=400, model=OBSERVER, times=REFUSED_CALLS)
                models.faults.switch(fault)
            for turn in story.turns:
                if turn.day == day:
                    fleet.set_time(turn.at)
                    replies = await client.say(turn)
                    assert {reply.receipt["status"] for reply in replies} <= {"raw", "applied"}
            await end_day(client, number)
            await pause(number)


async def end_day(client: TravellingClient, number: int) -> None:
    """Do what a person does at the end of a day."""
    match number:
        case 0:
            await client.ask("PATCH", "", {"title": TITLE})
        case 1:
            await client.ask("POST", "/pins", {"text": PIN})
        case 4:
            await client.ask("PATCH", "", {"title": NEW_TITLE})


def describe(events: Sequence[Mapping[str, Any]]) -> list[str]:
    """Write an event a line, without what differs from run to run: when in the story, what, why,
    and whose cycle. Cycles are numbered as they come."""
    cycles: dict[str, int] = {}
    lines = []
    for event in events:
        data = event["data"]
        at = datetime.fromtimestamp(event["at"], UTC)
        cycle = cycles.setdefault(data["cycleId"], len(cycles) + 1)
        kind = " ".join(
            data[name] for name in ("operationType", "triggeredBy", "action") if name in data
        )
        generation = data["recordId"].rpartition(".g")[2]
        line = f"{at:%m-%d %H:%M}  {event['type']:<26}  {kind:<21}  cycle {cycle:<3}  g{generation}"
        lines.append(line)
    return lines


def read_events(pieces: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    return [json.loads(piece["data"]) for piece in pieces]
