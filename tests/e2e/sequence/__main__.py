"""Print the events of the five days as one process alone tells them: `expected.txt`.

python -m tests.e2e.sequence > tests/e2e/sequence/expected.txt
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import httpx

from om_proxy.cli.demo.story import load_story
from om_proxy.testing.loopback import serve_on_loopback
from om_proxy.testing.scripted import ScriptedServer
from tests.e2e.sequence.fleet import run_fleet
from tests.e2e.sequence.playing import describe, play_days
from tests.e2e.sequence.stores import open_sqlite


async def print_events(folder: Path) -> None:
    story = load_story()
    models = ScriptedServer(story.script)
    events = []
    async with (
        serve_on_loopback(models, lifespan="off") as address,
        open_sqlite(folder) as store,
        run_fleet(folder, store, address, story.turns[0].at, 1) as fleet,
        httpx.AsyncClient(trust_env=False) as http,
    ):
        cursor = "0"

        async def read_day(_: int) -> None:
            """What is older than 7 days is gone at the end."""
            nonlocal cursor
            query = f"limit=1000&cursor={cursor}"
            page = (await http.get(f"{fleet.processes[0].base}/om/v1/events?{query}")).json()
            assert not page["has_gap"]
            assert not page["has_more"]
            cursor = page["cursor"]
            events.extend(page["items"])

        await play_days(story, fleet, models, read_day)
    print("\n".join(describe(events)))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(print_events(Path(folder)))
