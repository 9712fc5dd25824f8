"""People ask for memory work over the admin API: the one scheduler does it, whether or not anybody
waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from om_proxy.app.app import App
from om_proxy.memory.model import resource_key
from om_proxy.settings.config import parse
from om_proxy.testing.loopback import serve_on_loopback
from om_proxy.testing.scripted import OBSERVER, REFLECTOR, Fault, ScriptedServer, message_text
from tests.e2e.running import Clock, Running, run_with_scripted_models
from tests.management.steered import ask, play, read_block, read_notes, say, send

LARGE = "observation: {message_tokens: 9000, buffer_tokens: 4000}, reflection: {observation_tokens: 20000}"


class HeldServer(ScriptedServer):
    """A model server whose memory models answer once `released` is set, and are counted."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.released = asyncio.Event()
        self.released.set()
        self.asked = asyncio.Event()
        self.at_once = self.most_at_once = 0

    async def act_out_fault(
        self, receive: Any, send: Any, fault: Fault | None, model: str, *more: Any
    ) -> bool:
        if model in (OBSERVER, REFLECTOR):
            self.at_once += 1
            self.asked.set()
            self.most_at_once = max(self.at_once, self.most_at_once)
            await self.released.wait()
            self.at_once -= 1
        return await super().act_out_fault(receive, send, fault, model, *more)


@pytest.fixture(params=["thread", "resource"])
async def run(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Running]:
    async with run_with_scripted_models(
        tmp_path, f"scope: {request.param}, {LARGE}", models=ScriptedServer()
    ) as running:
        yield running


async def test_what_is_below_every_threshold_is_observed(run: Running) -> None:
    """Waited for, the answer has the chunks; activated, the next prompt has the notes."""
    talk = await play(run, 3)
    made = await ask(run, "POST", "/observe", {"wait": 10})
    assert made["is_done"]
    [chunk] = made["notes"]
    assert (await read_notes(run))["chunks"][0]["text"] == chunk["text"]
    again = await ask(run, "POST", "/observe", {"wait": 10}, status=400)
    assert again["error"]["code"] == "om_nothing_to_observe"
    active = await ask(run, "POST", "/activate", {})
    assert active["activated"] == [chunk["id"]]
    assert active["log_tokens"] == chunk["tokens"]
    await say(run, talk)
    assert "Crate 1 weighs" in read_block(run)
    assert (await ask(run, "POST", "/activate", {}))["activated"] == []


async def test_nobody_needs_to_wait(run: Running) -> None:
    """202 names the work; the events of its end say the same name."""
    await play(run, 3)
    begun = await send(run, "POST", "/observe", {})
    assert begun.status_code == 202
    assert begun.json()["notes"] == []
    await run.app.background.wait_idle()
    assert (await read_notes(run))["chunks"]
    events = await ask(run, "GET", "/events")
    assert begun.json()["cycleId"] in str(events)


async def test_the_whole_backlog(tmp_path: Path) -> None:
    """One batch of at most T after the other, in one request."""
    memory = "observation: {message_tokens: 700, buffer_tokens: false}"
    async with run_with_scripted_models(tmp_path, memory) as run:
        talk = run.chat("t", **{"x-om-resource": "ada"})
        for number in range(10):
            talk.history += [
                {"role": "user", "content": f"Crate {number} weighs {number} kilos. " * 20},
                {"role": "assistant", "content": "Noted."},
            ]
        await say(run, talk)
        made = await ask(run, "POST", "/observe", {"all": True, "wait": 20})
        assert made["is_done"]
        assert len(made["notes"]) > 1
        left = await ask(run, "POST", "/observe", {"all": True}, status=400)
        assert left["error"]["code"] == "om_nothing_to_observe"


async def test_the_log_is_condensed_at_once(run: Running) -> None:
    """With the person's instruction, far below R; undo brings the notes back."""
    talk = await play(run, 4)
    await ask(run, "POST", "/observe", {"wait": 10})
    await ask(run, "POST", "/activate", {})
    before = (await read_notes(run))["log"]
    made = await ask(run, "POST", "/reflect", {"wait": 10, "instruction": "Keep the docks."})
    asked = run.models.requests[-1]
    assert "Keep the docks." in str(asked.messages)
    [entry] = (await read_notes(run))["log"]
    assert (entry["kind"], made["notes"]) == ("reflection", [entry])
    assert (await read_notes(run))["reflection"] is None
    await say(run, talk)
    assert entry["text"].splitlines()[-1].removeprefix("* 🟢 ") in read_block(run)
    await ask(run, "POST", "/undo", {})
    assert (await read_notes(run))["log"] == before


async def test_a_reflection_that_is_no_shorter_is_refused(tmp_path: Path) -> None:
    """The notes stay, and the failure starts no back-off."""

    class Wordy(ScriptedServer):
        def choose_answer(self, model: str, messages: Any, fault: Any) -> Any:
            if "Rewrite these notes" in message_text(messages[-1]):
                text = "* 🔴 (10:00) word\n" * 900
                return {"content": f"<observations>\n{text}</observations>"}
            return super().choose_answer(model, messages, fault)

    async with run_with_scripted_models(tmp_path, LARGE, models=Wordy()) as run:
        await play(run, 3)
        none = await ask(run, "POST", "/reflect", {"wait": 10}, status=422)
        assert none["error"]["code"] == "om_unproductive"
        await ask(run, "POST", "/observe", {"wait": 10})
        await ask(run, "POST", "/activate", {})
        before = (await read_notes(run))["log"]
        refused = await ask(run, "POST", "/reflect", {"wait": 10}, status=422)
        assert refused["error"]["code"] == "om_unproductive"
        assert (await read_notes(run))["log"] == before
        assert (await ask(run, "GET", ""))["failures"] == 0


ADMIN_TOKEN = "a-long-admin-token"


@asynccontextmanager
async def run_with_inherited_model(
    tmp_path: Path, models: ScriptedServer
) -> AsyncIterator[Running]:
    """Run the proxy with the actor's own model as memory model."""
    async with serve_on_loopback(models, lifespan="off") as upstream:
        settings = parse(
            f"""
            upstream: [{{name: scripted, base_url: "{upstream}/v1", layout: blocks}}]
            storage: {{url: "sqlite:///{tmp_path}/om.db"}}
            memory: {{{LARGE}}}
            server: {{admin_token: {ADMIN_TOKEN}}}
            """
        )
        clock = Clock()
        app = App(settings, clock=clock, model_timeout_s=5.0)
        async with (
            serve_on_loopback(app) as base,
            httpx.AsyncClient(trust_env=False, timeout=30) as http,
        ):
            yield Running(app, base, models, clock, http)


async def test_without_a_credential_there_is_no_model(tmp_path: Path) -> None:
    """After a restart the admin token alone opens no model, and is shown to none. With the client's
    key beside it, the model is asked with that key."""
    async with run_with_inherited_model(tmp_path, ScriptedServer()) as run:
        await play(run, 3)
        tenant = (await run.memories())[0].key.tenant
    models = ScriptedServer()
    async with run_with_inherited_model(tmp_path, models) as run:
        for headers in ({"x-om-admin": ADMIN_TOKEN}, {"authorization": f"Bearer {ADMIN_TOKEN}"}):
            bare = await _observe_as_admin(run, tenant, headers)
            assert (bare.status_code, bare.json()["error"]["code"]) == (400, "om_no_model")
        assert models.requests == []
        both = {"x-om-admin": ADMIN_TOKEN, "authorization": "Bearer sk-a"}
        begun = await _observe_as_admin(run, tenant, both)
        assert begun.status_code in (200, 502)  # the scripted actor writes no notes
        assert models.requests
        for asked in models.requests:
            assert dict(asked.headers)[b"authorization"] == b"Bearer sk-a"


async def _observe_as_admin(run: Running, tenant: str, headers: dict[str, str]) -> httpx.Response:
    url = f"{run.base}/om/v1/threads/t/observe?tenant={tenant}&resource=ada"
    return await run.http.post(url, json={"wait": 10}, headers=headers)


async def test_a_client_that_hangs_up_cancels_nothing(tmp_path: Path) -> None:
    """The work goes on, once, and two that ask for the same get one call."""
    models = HeldServer()
    async with run_with_scripted_models(tmp_path, LARGE, models=models) as run:
        await play(run, 3)
        models.released.clear()
        asking = [
            asyncio.create_task(send(run, "POST", "/observe", {"wait": 30})) for _ in range(2)
        ]
        await models.asked.wait()
        asking[0].cancel()
        waited = await send(run, "POST", "/observe", {"wait": 0.05})
        assert waited.status_code == 202
        models.released.set()
        await asyncio.gather(*asking, return_exceptions=True)
        await run.app.background.wait_idle()
        assert len((await read_notes(run))["chunks"]) == 1
        assert models.most_at_once == 1
        assert len(models.requests_to(OBSERVER)) == 1


async def test_asked_for_work_and_due_work_take_turns(tmp_path: Path) -> None:
    """Never two calls at once for a thread."""
    models = HeldServer()
    memory = "observation: {message_tokens: 1200, buffer_tokens: 300}"
    async with run_with_scripted_models(tmp_path, memory, models=models) as run:
        talk = run.chat("t", **{"x-om-resource": "ada"})
        for number in range(12):
            models.released.clear()
            await talk.say(f"Crate {number} weighs {number} kilos and goes to dock {number}. " * 8)
            asking = asyncio.create_task(send(run, "POST", "/observe", {"wait": 20}))
            await asyncio.sleep(0.02)
            models.released.set()
            assert (await asking).status_code in (200, 400)
            run.clock.now += 1
        await run.app.background.wait_idle()
        assert models.most_at_once == 1


async def test_the_model_fails(tmp_path: Path) -> None:
    """The person is told the cause, and the thread backs off; asking again tries at once, and a
    success clears it."""
    models = ScriptedServer(faults=[Fault(kind="http", model=OBSERVER, status=401)])
    async with run_with_scripted_models(tmp_path, LARGE, models=models) as run:
        await play(run, 3)
        failed = await ask(run, "POST", "/observe", {"wait": 10}, status=502)
        assert failed["error"]["code"] == "om_model_failed"
        assert "401" in failed["error"]["message"]
        assert (await ask(run, "GET", ""))["failures"] == 1
        models.faults.switch()
        assert (await ask(run, "POST", "/observe", {"wait": 10}))["is_done"]
        assert (await ask(run, "GET", ""))["failures"] == 0


async def test_a_thread_is_given_up_and_taken_up_again(run: Running) -> None:
    """Given up, nothing is observed by itself."""
    await play(run, 1)
    assert (await ask(run, "POST", "/park", {}))["parked"]
    assert (await ask(run, "GET", ""))["parked"]
    assert not (await ask(run, "POST", "/revive", {}))["parked"]
    stranger = {"authorization": "Bearer sk-b"}
    for path in ("/park", "/revive", "/observe", "/reflect", "/activate"):
        assert (await send(run, "POST", path, {}, **stranger)).status_code == 404


@pytest.mark.parametrize("body", [{"wait": 61}, {"wait": -1}, {"all": 1}, {"some": True}])
async def test_a_bad_body_is_refused(run: Running, body: Any) -> None:
    await play(run, 1)
    await ask(run, "POST", "/observe", body, status=400)


async def test_a_wait_takes_no_place_of_another_tenant(run: Running) -> None:
    """The work takes a slot as all work in the background does, and is not left under way."""
    await play(run, 3)
    await ask(run, "POST", "/observe", {"wait": 10})
    await run.app.background.wait_idle()
    assert run.app.background.running_count == 0
    [memory] = await run.memories()
    for key in (memory.key, resource_key(memory.key)):
        assert await run.app.store.lease(key, "another process", 1)
