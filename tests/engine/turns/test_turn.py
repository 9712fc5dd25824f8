"""Which turns tell all that an earlier one told."""

from __future__ import annotations

import pytest

from om_proxy.engine.turns.turn import MissedTurn
from om_proxy.memory.transcript.reconcile import Hints, History
from om_proxy.settings.identity.callers import Caller
from om_proxy.wire.apis.api import Reply
from tests.engine.turns.test_engine import Message, assistant, make_reply, request, user
from tests.memory.building import KEY
from tests.support.performing import open_parts

OLD = [user("one"), assistant("two")]


async def make_missed(
    sent: list[Message], reply: Reply | None, history: History = "auto"
) -> MissedTurn:
    async with open_parts() as parts:
        context = parts.context()
    caller = Caller(KEY, KEY.tenant)
    return MissedTurn(
        caller,
        lambda _: caller,
        request(sent),
        context,
        Hints(history=history),
        0.0,
        reply,
        0.0,
        was_delivered=lambda: True,
    )


@pytest.mark.parametrize(
    ("earlier", "reply", "later", "shows"),
    [
        (OLD, make_reply("r"), [*OLD, assistant("r"), user("next")], True),
        (OLD, make_reply("r"), [OLD[1], assistant("r"), user("next")], False),
        (OLD, make_reply("r"), [*OLD, assistant("altered"), user("next")], False),
        (OLD, make_reply("r"), OLD, False),
        (OLD, None, OLD, True),
        (OLD, Reply(b'{"role":"assistant","content":"r"}'), [*OLD, user("next")], True),
        ([user("one")], make_reply("r"), [user("two")], False),
    ],
    ids=[
        "whole history",
        "window",
        "altered reply",
        "retry of an answered one",
        "retry of one without a reply",
        "reply that broke off",
        "newest message only",
    ],
)
async def test_what_a_later_turn_shows(
    earlier: list[Message], reply: Reply | None, later: list[Message], shows: bool
) -> None:
    turn = await make_missed(later, make_reply("later"))
    assert turn.shows_all_of(await make_missed(earlier, reply)) is shows


async def test_a_client_whose_messages_are_all_new() -> None:
    """The same words are other messages."""
    turn = await make_missed([*OLD, user("next")], make_reply("later"), "new")
    assert not turn.shows_all_of(await make_missed(OLD[:1], make_reply("two")))
