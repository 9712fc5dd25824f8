"""A conversation that was led elsewhere and comes whole in its first request: nobody knows when its
messages were said."""

from __future__ import annotations

import re
from pathlib import Path

from om_proxy.testing.scripted import OBSERVER, Fault, message_text
from tests.e2e.running import Running, run_with_scripted_models

LONG = (
    "Crate {n} weighs {n} kilos, was painted last Friday and goes to dock {n} at Quarry Steps. " * 8
)
BOUND = "Date: on or before Tuesday, Nov 14, 2023, times not known"


def led_elsewhere(turns: int) -> list[dict[str, str]]:
    said = [
        ("user", LONG.format(n=n)) if n % 2 else ("assistant", f"Crate {n - 1} it is.")
        for n in range(1, turns + 1)
    ]
    return [{"role": role, "content": content} for role, content in said]


def told(run: Running) -> dict[str, str]:
    """Of each crate the user spoke of, the heading it stood under and how its line began."""
    found: dict[str, str] = {}
    for seen in run.models.requests_to(OBSERVER):
        heading = ""
        for line in message_text(seen.messages[-1]).partition("<transcript>")[2].splitlines():
            if line.startswith("Date: "):
                heading = line.partition(" (last week")[0]
            elif said := re.match(r"(User(?: \(\d\d:\d\d\))?): Crate (\d+) weighs", line):
                found[said[2]] = f"{heading} | {said[1]}"
    return found


async def test_a_conversation_that_comes_whole(tmp_path: Path) -> None:
    """Its messages are told as said on that day or before, without times, in every batch and after
    a restart; the turn that brought them, and all that follow, are told with theirs."""
    async with run_with_scripted_models(tmp_path) as run:
        run.models.faults.switch(Fault(kind="http", model=OBSERVER))
        chat = run.chat()
        chat.history += led_elsewhere(30)
        await chat.say(LONG.format(n=31))
        await run.app.background.wait_idle()
        assert run.models.requests_to(OBSERVER) == [] or not (await run.memory()).chunks
    async with run_with_scripted_models(tmp_path) as run:
        run.clock.now += 86_400
        chat.running = run
        for n in (33, 35, 37, 39):
            await chat.say(LONG.format(n=n))
            await run.app.background.wait_idle()
        found = told(run)
        assert len(run.models.requests_to(OBSERVER)) > 2
        led = {found[str(n)] for n in range(1, 30, 2)}
        assert led == {f"{BOUND} | User"}
        assert found["31"] == "Date: Tuesday, Nov 14, 2023 | User (22:13)"
        assert found["33"] == "Date: Wednesday, Nov 15, 2023 | User (22:13)"


async def test_a_conversation_from_its_beginning(tmp_path: Path) -> None:
    """A thread that is led through the proxy from its first message on is dated throughout."""
    async with run_with_scripted_models(tmp_path) as run:
        chat = run.chat()
        for n in range(1, 24, 2):
            await chat.say(LONG.format(n=n))
            await run.app.background.wait_idle()
        assert told(run)
        assert set(told(run).values()) == {"Date: Tuesday, Nov 14, 2023 | User (22:13)"}
