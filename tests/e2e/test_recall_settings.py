"""Settings of look-ups that are changed while the program serves: the next request goes by them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio

from om_proxy.engine.recall.performing import LookUpPerformer
from om_proxy.memory.recall.arguments import CANNOT_READ_NOW, NO_LOOK_UPS_LEFT
from om_proxy.memory.tokens import estimate_tokens
from om_proxy.settings.config import WatchedSettings, load
from tests.e2e.planned_rounds import RETRIEVAL, Talk, run_with_planned_rounds, say
from tests.e2e.raw_upstream import ProxyUnderTest

pytestmark = pytest.mark.asyncio(loop_scope="module")  # one proxy, each test with its own thread

SEARCH_S = 0.2
LONG_CRATES = "The crates are red and go to the dock. " * 30


@dataclass
class ChangedSite:
    """The program, and its configuration file."""

    program: ProxyUnderTest
    file: Path
    changes: asyncio.Queue[bool]

    async def change_retrieval(self, keys: str) -> None:
        """Have these further keys in force."""
        text = self.file.read_text()
        begins = text.index(RETRIEVAL[:-1]) + len(RETRIEVAL) - 1
        changed = self.file.with_suffix(".new")
        changed.write_text(text[:begins] + keys + text[text.index("}", begins) :])
        changed.rename(self.file)
        assert await asyncio.wait_for(self.changes.get(), 30)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ChangedSite]:
    folder = tmp_path_factory.mktemp("settings")
    file, changes = folder / "om-proxy.yaml", asyncio.Queue[bool]()

    def watch(text: str) -> WatchedSettings:
        file.write_text(text)
        return WatchedSettings(
            load(file, {}), env={}, on_change=changes.put_nowait, check_interval_s=0.2
        )

    async with run_with_planned_rounds(folder, read_settings=watch) as program:
        for number in range(6):
            talk = Talk(program, stream=False, thread=f"long-{number}")
            talk.history = [{"role": "user", "content": LONG_CRATES}]
            assert talk.read(await talk.ask(say(talk.text(9, "Hi.")))) == "Hi."
        yield ChangedSite(program, file, changes)


class Seen:
    """What a reply with one look-up shows."""

    def __init__(self, talk: Talk, usage: dict[str, Any]) -> None:
        self.answer = str(talk.bodies[1]["messages"][-1]["content"])
        self.prompt_tokens = usage["prompt_tokens"]


# a setting, a value before and one after, and what tells the second in a reply
CASES: dict[str, tuple[str, str, Callable[[Seen], bool]]] = {
    "max_steps": ("2", "1", lambda seen: seen.answer.endswith(NO_LOOK_UPS_LEFT)),
    "tokens": ("4000", "500", lambda seen: estimate_tokens(seen.answer) <= 500),
    "timeout": ("1m", "50ms", lambda seen: seen.answer == CANNOT_READ_NOW),
    "usage": ("sum", "first", lambda seen: seen.prompt_tokens == 100),
}


@pytest.mark.parametrize("setting", CASES)
async def test_the_next_request_goes_by_a_changed_setting(
    site: ChangedSite, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There and back again: nothing of the setting outlives its request."""
    perform = LookUpPerformer.perform

    async def search_slowly(*arguments: Any) -> Any:
        await asyncio.sleep(SEARCH_S)
        return await perform(*arguments)

    monkeypatch.setattr(LookUpPerformer, "perform", search_slowly)
    before, after, is_after = CASES[setting]
    for number, value in enumerate((before, after, before)):
        await site.change_retrieval(f", {setting}: {value}")
        talk = Talk(site.program, stream=False, thread=f"{setting}-{number}")
        await talk.begin_with_a_turn()
        got = await talk.ask(say(talk.ours()), say(talk.text(2, "Blue.")))
        assert talk.read(got) == "Blue."
        assert is_after(Seen(talk, orjson.loads(got.body)["usage"])) == (value == after)
