"""The user's time zone: from the header into observations, prompts and the store."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from tests.e2e.running import SMALL, Running, run_with_scripted_models

EVENING = datetime(2026, 1, 1, 23, 30, tzinfo=UTC).timestamp()  # in Tokyo the second has begun
TOKYO = "Asia/Tokyo"


def hint(run: Running) -> str:
    """What the newest prompt says of the day."""
    messages = run.models.requests_to("scripted-actor")[-1].messages
    return next(m["content"] for m in messages if "Note from the system" in str(m["content"]))


async def test_the_clients_time_zone(tmp_path: Path) -> None:
    """A thread's dates are those of the zone its client names; one that names none later on keeps
    it."""
    async with run_with_scripted_models(tmp_path, memory=SMALL) as run:
        run.clock.now = EVENING
        chat = run.chat(**{"x-om-timezone": TOKYO})
        while (await chat.say("My budget is 40 coins, and so it stays. " * 8))[1][
            "status"
        ] != "applied":
            await run.app.background.wait_idle()
        assert "today is Friday, January 2, 2026" in hint(run)
        assert any(
            f"Times are those of {TOKYO}" in str(m["content"])
            for m in run.models.requests_to("scripted-observer")[0].messages
        )
        assert (await run.memory()).timezone == TOKYO
        del chat.headers["x-om-timezone"]
        await chat.say("And now?")
        assert "January 2" in hint(run)


async def test_without_one_the_configured_zone_holds(tmp_path: Path) -> None:
    """No header: `memory.timezone`."""
    async with run_with_scripted_models(tmp_path, memory=f"{SMALL}, timezone: America/Lima") as run:
        run.clock.now = datetime(2026, 1, 2, 3, 0, tzinfo=UTC).timestamp()
        chat = run.chat()
        while (await chat.say("My budget is 40 coins, and so it stays. " * 8))[1][
            "status"
        ] != "applied":
            await run.app.background.wait_idle()
        assert "today is Thursday, January 1, 2026" in hint(run)
        assert (await run.memory()).timezone is None
