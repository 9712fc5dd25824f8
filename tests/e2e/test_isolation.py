"""Memory never crosses tenants, resources or threads
(docs/contributing/behaviour.md#fail-closed)."""

from __future__ import annotations

from itertools import product
from pathlib import Path

from tests.e2e.running import run_with_scripted_models


async def test_the_same_thread_under_two_credentials(tmp_path: Path) -> None:
    """Two credentials with the same thread and resource never see each other's words, in prompts,
    replies or the store."""
    async with run_with_scripted_models(tmp_path) as run:
        chats = {
            key: run.chat("shared", key=key, **{"x-om-resource": "r"}) for key in ("sk-a", "sk-b")
        }
        for n, (key, chat) in product(range(14), chats.items()):
            await chat.say(
                f"CANARY-{key} number {n}: " + f"my budget is {n} coins for {key}. " * 20
            )
        await run.app.background.wait_idle()
        for key, chat in chats.items():
            _, receipt = await chat.say(f"What do you know? CANARY-{key}")
            assert receipt["status"] == "applied"
        for seen in run.models.requests:
            owners = {k for k in chats if f"CANARY-{k}".encode() in seen.body}
            assert len(owners) == 1, "a prompt holds the words of one credential only"
            if seen.model == "scripted-actor":
                assert dict(seen.headers)[b"authorization"] == f"Bearer {owners.pop()}".encode()
        one, two = await run.memories()
        assert one.key.tenant != two.key.tenant
        texts = [
            b"".join(m.item.raw for m in x.tail)
            + "".join(o.text for o in x.log.entries + x.chunks).encode()
            for x in (one, two)
        ]
        assert {b"CANARY-sk-a" in t for t in texts} == {True, False}
        assert all((b"CANARY-sk-a" in t) != (b"CANARY-sk-b" in t) for t in texts)


async def test_two_resources_and_two_threads(tmp_path: Path) -> None:
    """In thread scope a memory belongs to one thread of one resource."""
    async with run_with_scripted_models(tmp_path) as run:
        for resource, thread in product(("r1", "r2"), ("t1", "t2")):
            await run.chat(thread, **{"x-om-resource": resource}).say(f"I am {resource} {thread}")
        memories = await run.memories()
        assert len(memories) == 4
        for memory in memories:
            assert (
                f"I am {memory.key.resource} {memory.key.thread}".encode()
                in memory.tail[0].item.raw
            )
            assert memory.count == 2
