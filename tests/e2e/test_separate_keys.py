"""A conversation whose keys are in a key store, which goes away while the proxy serves."""

from __future__ import annotations

from pathlib import Path

from om_proxy.memory.model import Key
from tests.e2e.running import Running, run_with_scripted_models
from tests.support.waiting import until


async def is_status(run: Running, status: str) -> bool:
    return bool((await run.http.get(f"{run.base}/readyz")).json()["status"] == status)


def move(file: Path, target: Path) -> None:
    file.rename(target)


async def test_a_key_store_goes_away_and_comes_back(tmp_path: Path) -> None:
    """Every request is answered. A thread whose key is held keeps its memory; the first turn of
    another one waits for its key, and is stored once that can be written."""
    keys, away = tmp_path / "keys.db", tmp_path / "away.db"
    storage = (
        f'url: "sqlite:///{tmp_path}/om.db", keys_url: "sqlite:///{keys}", '
        f"encryption_key: {'A' * 43}"
    )
    async with run_with_scripted_models(tmp_path, storage=storage) as run:
        held, new = run.chat("held"), run.chat("new")
        await held.say("The dock is 2.85 m high.")
        move(keys, away)
        await until(lambda: is_status(run, "degraded"))
        for number in range(6):
            reply, receipt = await held.say(f"Is it? {number}")
            assert (bool(reply), receipt["status"]) == (True, "raw"), (number, receipt)
            reply, receipt = await new.say(f"Crate {number} is red.")
            assert reply
            assert not keys.exists()
        move(away, keys)
        await until(lambda: is_status(run, "ok"))

        async def is_stored() -> bool:
            memories = await run.app.store.threads(None)
            return {info.key.thread for info in memories} == {"held", "new"}

        await until(is_stored)
        for chat in (held, new):
            _, receipt = await chat.say("And now?")
            assert receipt["status"] == "raw"
        [tenant] = {info.key.tenant for info in await run.app.store.threads(None)}
    async with run_with_scripted_models(tmp_path, storage=storage) as run:
        counts = []
        for info in await run.app.store.threads(tenant):
            key = Key(*info.key)
            counts.append((key.thread, len(await run.app.store.messages(key, 0))))
        assert counts == [("held", 16), ("new", 14)]
