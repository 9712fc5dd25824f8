"""What people change about a thread by hand, over the admin API: thresholds, a reflection taken
back, a pinned title."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from om_proxy.testing.scripted import OBSERVER, REFLECTOR, ScriptedServer, message_text
from tests.e2e.playing import Model
from tests.e2e.running import Chat, Running, run_with_scripted_models

T = "observation: {message_tokens: 1200, buffer_tokens: 300, block_timeout: 2s, thread_title: true}"
LONG = (
    "Crate {n} weighs {n} kilos, is painted red and goes to dock {n} at Quarry Steps. " * 8
)  # about 180 tokens
TOKEN = "server: {admin_token: a-long-admin-token}"


class Minds(ScriptedServer):
    """One name for both minds, as `memory.model` gives it; the observer names the thread
    `title`."""

    title = "Crates"

    def choose_answer(self, model: str, messages: Any, fault: Any) -> Any:
        rewrites = model == OBSERVER and "Rewrite these notes" in message_text(messages[-1])
        answer = super().choose_answer(REFLECTOR if rewrites else model, messages, fault)
        if model != OBSERVER or rewrites:
            return answer
        return {
            **answer,
            "content": f"{answer['content']}\n<thread-title>{self.title}</thread-title>",
        }


async def turns(run: Running, talk: Chat, count: int) -> list[dict[str, str]]:
    receipts = []
    for _ in range(count):
        receipts.append((await talk.say(LONG.format(n=len(talk.history))))[1])
        run.clock.now += 1
        await run.app.background.wait_idle()
    return receipts


async def ask(
    run: Running, method: str, path: str, body: Any = None, **headers: str
) -> httpx.Response:
    """As the client of the threads, unless headers say otherwise."""
    return await run.http.request(
        method,
        f"{run.base}/om/v1/threads{path}",
        json=body,
        headers={"authorization": "Bearer sk-a"} | headers,
    )


@pytest.mark.parametrize("scope", ["thread", "resource"])
async def test_a_reflection_is_taken_back(tmp_path: Path, scope: str) -> None:
    """What it was made from stands again, later entries stay, and it is not made anew before the
    log has grown."""
    memory = f"scope: {scope}, {T}, reflection: {{observation_tokens: 1800}}"
    async with run_with_scripted_models(tmp_path, memory, models=Minds()) as run:
        talk = run.chat(**{"x-om-resource": "ada"})
        while (
            not (await ask(run, "GET", "/t?resource=ada"))
            .json()
            .get("observations", {})
            .get("reflections")
        ):
            await turns(run, talk, 1)
        before = (await ask(run, "GET", "/t?resource=ada")).json()
        asked = len(run.models.requests)
        answer = await ask(run, "POST", "/t/undo?resource=ada", {})
        after = answer.json()
        assert answer.status_code == 200
        assert after["observations"]["reflections"] == 0
        assert after["observations"]["count"] > before["observations"]["count"]
        assert after["generation"] > before["generation"]
        assert after["messages"] == before["messages"]
        await turns(run, talk, 1)
        block = message_text(run.models.requests_to("scripted-actor")[-1].messages[1])
        assert block.count("Crate 1 weighs") >= 1
        rewritten = [
            s
            for s in run.models.requests[asked:]
            if "Rewrite these notes" in message_text(s.messages[-1])
        ]
        assert rewritten == []
        again = await ask(run, "POST", "/t/undo?resource=ada", {})
        assert (again.status_code, again.json()["error"]["code"]) == (400, "om_nothing_to_undo")


async def test_a_thread_has_thresholds_of_its_own(tmp_path: Path) -> None:
    """From the next request on, in place of the configured ones; they are kept with it, and taken
    back by null."""
    async with run_with_scripted_models(tmp_path, T) as run:
        mine, other = run.chat("mine"), run.chat("other")
        await turns(run, mine, 1)
        answer = await ask(
            run,
            "PATCH",
            "/mine/settings",
            {"observation": {"message_tokens": 600, "buffer_tokens": 150}},
        )
        assert answer.status_code == 200
        assert answer.json()["settings"] == {
            "observation": {"buffer_tokens": 150, "message_tokens": 600}
        }
        assert answer.json()["messages"]["threshold"] == 600
        statuses = [r["status"] for r in await turns(run, mine, 3)]
        assert "applied" in statuses
        assert {r["status"] for r in await turns(run, other, 4)} == {"raw"}
        back = await ask(
            run,
            "PATCH",
            "/mine/settings",
            {"observation": {"message_tokens": None, "buffer_tokens": None}},
        )
        assert (back.json()["settings"], back.json()["messages"]["threshold"]) == ({}, 1_200)


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ({"observation": {"message_tokens": 100}}, "buffer_tokens"),
        ({"observation": {"message_tokens": "many"}}, "message_tokens"),
        ({"observation": {"model": "gpt-5"}}, "observation.model is not a threshold"),
        ({"model": "gpt-5"}, "model"),
        ({"observation": 5}, "observation"),
        (
            {"observation": {"block_timeout": "10000s"}},
            "block_timeout of a thread must be at most 2m",
        ),
    ],
)
async def test_what_is_no_threshold_is_refused(tmp_path: Path, wanted: Any, told: str) -> None:
    async with run_with_scripted_models(tmp_path, T) as run:
        await turns(run, run.chat(), 1)
        answer = await ask(run, "PATCH", "/t/settings", wanted)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "om_bad_setting")
        assert told in answer.json()["error"]["message"]
        assert (await ask(run, "GET", "/t")).json()["settings"] == {}


async def test_a_pinned_title_stays(tmp_path: Path) -> None:
    """The observer names a thread until a person does; and again once the title is let go."""
    async with run_with_scripted_models(tmp_path, T, models=Minds()) as run:
        talk = run.chat()
        await turns(run, talk, 3)
        assert (await ask(run, "GET", "/t")).json()["title"] == "Crates"
        pinned = await ask(run, "PATCH", "/t", {"title": "  The move to\nQuarry Steps "})
        assert (pinned.json()["title"], pinned.json()["title_pinned"]) == (
            "The move to Quarry Steps",
            True,
        )
        await turns(run, talk, 3)
        (line,) = (await ask(run, "GET", "")).json()["threads"]
        assert line["title"] == "The move to Quarry Steps"
        await ask(run, "PATCH", "/t", {"title": None})
        await turns(run, talk, 3)
        assert (await ask(run, "GET", "/t")).json()["title"] == "Crates"


async def test_a_title_nobody_asked_for_is_not_kept(tmp_path: Path) -> None:
    async with run_with_scripted_models(
        tmp_path, T.replace("thread_title: true", "thread_title: false"), models=Minds()
    ) as run:
        await turns(run, run.chat(), 3)
        assert (await run.memory()).chunks
        assert (await run.memory()).title is None


async def test_who_may_see_what(tmp_path: Path) -> None:
    """A caller sees its own tenant's threads; what is another's looks like what is nobody's. The
    admin token sees all."""
    async with run_with_scripted_models(tmp_path, T, more=TOKEN) as run:
        await run.chat("a/b.c").say("Hello.")
        foreign = await ask(run, "GET", "/a%2Fb.c", authorization="Bearer sk-b")
        unknown = await ask(run, "GET", "/nothing")
        assert foreign.status_code == unknown.status_code == 404
        assert foreign.content == unknown.content
        assert (await ask(run, "GET", "", authorization="Bearer sk-b")).json()["threads"] == []
        mine = await ask(run, "GET", "/a%2Fb.c")
        assert mine.json()["thread"] == "a/b.c"
        admin = {"x-om-admin": "a-long-admin-token"}
        (line,) = (await ask(run, "GET", "", **admin)).json()["threads"]
        assert line["tenant"] == mine.json()["tenant"]
        assert (
            await ask(run, "GET", f"/a%2Fb.c?tenant={line['tenant']}", **admin)
        ).json() == mine.json()
        assert (await ask(run, "GET", "/a%2Fb.c", **admin)).status_code == 400
        assert (await ask(run, "GET", "", **{"x-om-admin": "wrong"})).status_code == 401
        twice = [("x-om-admin", "a-long-admin-token"), ("x-om-admin", "a-long-admin-token")]
        answer = await run.http.get(f"{run.base}/om/v1/threads", headers=twice)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "om_bad_header")
        # the shared log of a resource is no thread
        assert (await ask(run, "GET", "/")).status_code == 404
        for headers in (
            {"origin": "https://elsewhere.example"},
            {"host": "rebound.example"},
            {"origin": "http://[x"},
            {"host": "127.0.0.1.rebound.example"},
        ):
            assert (await ask(run, "GET", "", **headers)).status_code == 401
        assert (await ask(run, "GET", "?limit=" + "9" * 5_000)).status_code == 400
        plain = await run.http.post(
            f"{run.base}/om/v1/threads/a%2Fb.c/undo", headers={"authorization": "Bearer sk-a"}
        )
        assert plain.status_code == 400
        assert plain.json()["error"]["code"] == "om_nothing_to_undo"  # it was let in


# ── forgetting ──


class Waiting(Model):
    """Tells when it is asked while it holds its answers back."""

    asked: asyncio.Event | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self.asked:
            self.asked.set()
        await super().__call__(scope, receive, send)


def within(folder: Path, word: bytes) -> int:
    """How often it stands in the database's files."""
    return sum(file.read_bytes().count(word) for file in folder.glob("om.db*"))


@pytest.mark.parametrize("scope", ["thread", "resource"])
async def test_a_thread_is_forgotten(tmp_path: Path, scope: str) -> None:
    """Its owner is told what went; no byte is left, a shared log tells nothing of it, and its
    client begins anew."""
    async with run_with_scripted_models(tmp_path, f"scope: {scope}, {T}", models=Minds()) as run:
        talk = run.chat(**{"x-om-resource": "ada"})
        other = run.chat("other", **{"x-om-resource": "ada"})
        await turns(run, other, 2)
        await turns(run, talk, 8)
        before = (await ask(run, "GET", "/t?resource=ada")).json()
        assert within(tmp_path, b"Crate 9 weighs") > 0
        answer = await ask(run, "DELETE", "/t?resource=ada")
        assert answer.status_code == 200
        receipt = answer.json()
        went = receipt["forgotten"]
        assert (receipt["scope"], receipt["label"], receipt["at"]) == (
            "thread",
            before["label"],
            run.clock.now,
        )
        assert (went["threads"], went["messages"]) == (1, before["messages"]["count"])
        assert went["observations"] > 1
        assert went["generations"] == 1
        assert receipt["bytes"] == {"database": "gone", "log": "gone", "backups": "not_covered"}
        assert within(tmp_path, b"Crate 9 weighs") == 0
        assert within(tmp_path, b"Crate 3 weighs") > 0  # the other thread's
        assert (await ask(run, "GET", "/t?resource=ada")).status_code == 404
        assert (await ask(run, "DELETE", "/t?resource=ada")).status_code == 404
        for left in await run.memories():
            assert before["label"] not in str([left.log.entries, left.other_threads_text])
        await turns(run, talk, 1)
        assert (await ask(run, "GET", "/t?resource=ada")).json()["messages"]["count"] == len(
            talk.history
        ) - 1


async def test_a_reply_that_comes_after_its_thread_was_forgotten(tmp_path: Path) -> None:
    """The client has its reply and its receipt; the thread stays forgotten (6 of 6 messages came
    back once)."""
    model = Waiting()
    async with run_with_scripted_models(tmp_path, T, models=model) as run:
        talk = run.chat()
        await turns(run, talk, 3)
        asked, model.together = asyncio.Event(), asyncio.Barrier(2)
        model.asked = asked
        reply = asyncio.create_task(talk.say("And now?", stream=True))
        await asked.wait()
        assert (await ask(run, "DELETE", "/t")).json()["forgotten"]["messages"] == 6
        await model.together.wait()
        text, receipt = await reply
        assert text
        assert receipt["status"] == "raw"
        await run.app.background.wait_idle()
        assert await run.memories() == []
        assert within(tmp_path, b"weighs") == 0


async def test_who_may_forget(tmp_path: Path) -> None:
    """What is another's is 404, as what is nobody's; a shared log is no thread; a page of another
    site is refused."""
    async with run_with_scripted_models(tmp_path, T, more=TOKEN) as run:
        await run.chat("a/b").say("Hello.")
        (line,) = (await ask(run, "GET", "")).json()["threads"]
        refused: dict[int, list[tuple[str, dict[str, str]]]] = {
            404: [
                ("/a%2Fb", {"authorization": "Bearer sk-b"}),
                ("/nothing", {}),
                ("/?resource=a%2Fb", {}),
            ],
            401: [
                ("/a%2Fb", {"origin": "https://elsewhere.example"}),
                ("/a%2Fb", {"x-om-admin": "wrong"}),
            ],
            405: [("", {}), ("/a%2Fb/undo", {})],
            400: [("/a%2Fb", {"x-om-admin": "a-long-admin-token"})],
        }
        for status, asked in refused.items():
            for path, headers in asked:
                assert (await ask(run, "DELETE", path, **headers)).status_code == status
        assert len(await run.memories()) == 1
        admin = {"x-om-admin": "a-long-admin-token", "authorization": "Bearer sk-b"}
        assert (
            await ask(run, "DELETE", f"/a%2Fb?tenant={line['tenant']}", **admin)
        ).status_code == 200
        assert await run.memories() == []
