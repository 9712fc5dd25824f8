"""The client leaves in the middle of a reply with look-ups: its request is cancelled, what is under
way ends within a second, and no round begins."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from om_proxy.wire.apis.chat.look_ups.splice import StreamSplice
from om_proxy.wire.apis.chat.look_ups.whole_splice import WholeSplice
from om_proxy.wire.upstream import UpstreamResponse
from tests.edge.rounds.test_recalling import HANG, JSON, OURS, Play, Server
from tests.wire.apis.chat.look_ups import test_whole_splice as whole
from tests.wire.apis.chat.streamed_rounds import calls_round, delta

REPLY_STEPS = ["first round", "long end", "look-up", "head of a round", "later round"]
MAX_HELD_S = 60  # beyond it, whoever waited for a held thread


def answer_first(server: Server, *, stream: bool, hangs: bool) -> UpstreamResponse:
    if stream:
        first = calls_round(1, *OURS, text="Wait.")
        return server.respond(*([first[:400], HANG] if hangs else [first]))
    body = whole.reply(1, None, whole.call("own"))
    return server.respond(*([body[:40], HANG] if hangs else [body]), kind=JSON)


def answer_later(server: Server, *, stream: bool) -> UpstreamResponse:
    if stream:
        return server.respond(delta(2, content="x"), HANG)
    return server.respond(whole.reply(2, "x")[:40], HANG, kind=JSON)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("at", REPLY_STEPS)
async def test_the_client_leaves(at: str, stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    server.answers = [
        answer_first(server, stream=stream, hangs=at == "first round"),
        answer_later(server, stream=stream),
    ]
    play = Play(server, stream=stream)
    waiting, released = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    async def hang(*_: Any) -> Any:
        waiting.set()
        await asyncio.Event().wait()

    def hold_thread(self: Any) -> Any:
        loop.call_soon_threadsafe(waiting.set)
        assert released.wait(MAX_HELD_S)
        return b"", None  # nobody reads it

    if at == "look-up":
        monkeypatch.setattr(play.notebook, "answer", hang)
    if at == "head of a round":
        monkeypatch.setattr(play.recalling, "send", hang)
    if at == "long end":
        for splice in (StreamSplice, WholeSplice):
            monkeypatch.setattr(splice, "is_end_long", True)
            monkeypatch.setattr(splice, "end_round", hold_thread)
    task = asyncio.create_task(play.read())
    async with asyncio.timeout(30):
        await (server.is_hanging if at in ("first round", "later round") else waiting).wait()
    task.cancel()
    try:
        async with asyncio.timeout(MAX_HELD_S / 2):
            with pytest.raises(asyncio.CancelledError):
                await task
    finally:
        released.set()
    rounds = 1 if at == "later round" else 0
    assert len(server.bodies) == rounds
    assert server.closed == 1 + rounds
    assert play.record.rounds == [] or at in ("head of a round", "later round")
