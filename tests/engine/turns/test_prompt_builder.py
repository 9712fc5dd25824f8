"""The prompt that goes upstream: notes in place of the oldest messages, a stable prefix, and a tail
that fits."""

from __future__ import annotations

import orjson

from om_proxy.common.errors import ModelError
from om_proxy.engine.turns.turn import PreparedTurn
from om_proxy.memory.lifecycle.transitions import activate_chunks, add_chunk
from om_proxy.memory.model import Memory
from om_proxy.memory.rounds import LookedUp, Round
from om_proxy.memory.transcript.reconcile import Hints
from om_proxy.settings.identity.callers import Caller
from om_proxy.wire.apis.api import Reply
from tests.engine.turns.test_engine import (
    LONG,
    SYSTEM,
    Message,
    Turns,
    assistant,
    make_reply,
    open_turns,
    read_forwarded,
    request,
    texts,
    user,
)
from tests.memory.building import KEY, chunk
from tests.support.performing import SMALL, HeldAnswer

LIMITED = SMALL + "context: {tail_limit: 400}\n"


async def test_beyond_the_threshold_notes_stand_for_the_oldest() -> None:
    """Instructions first and unchanged, then what memory holds, then the newest messages byte for
    byte; the rest of the body stays."""
    async with open_turns() as t:
        history = await t.history(4)
        opened = await t.open(history)
        assert (opened.status, opened.reason) == ("applied", None)
        memory = await t.parts.memory()
        assert opened.body is not None
        body = orjson.loads(opened.body)
        assert list(body) == ["model", "messages", "temperature"]
        kept = history[memory.coverage :]
        assert body["messages"][-len(kept) :] == kept
        assert SYSTEM["content"] in body["messages"][0]["content"]
        assert "2.85 m" in orjson.dumps(body["messages"][: -len(kept)]).decode()


async def test_the_prefix_stays_between_activations() -> None:
    """Time alone moves nothing, not even past midnight: the next prompt begins with the bytes of
    the one before."""
    async with open_turns() as t:
        history = await t.history(4)
        before = read_forwarded(await t.turn(history, "now"))
        for number in range(3):  # from 22:13 to 00:43, never an hour without a turn
            t.parts.clock.now += 3_000
            history += [assistant("now"), user(f"next {number}")]
            prompt = read_forwarded(await t.turn(history, "now"))
            assert prompt[: len(before)] == before
            before = prompt


async def test_a_cold_cache_renews_the_date() -> None:
    """The provider's cache is cold after an hour, so dates are rendered anew."""
    async with open_turns() as t:
        history = await t.history(4)
        first = await t.turn(history, "now")
        t.parts.clock.now += 5 * 86_400
        second = await t.open([*history, assistant("now"), user("next")])
        assert read_forwarded(second)[0] != read_forwarded(first)[0]


async def test_tail_limit() -> None:
    """The oldest raw messages are left out of the prompt and nothing else, and the receipt says
    so."""
    async with open_turns(*[HeldAnswer() for _ in range(9)], settings=LIMITED) as t:
        sent: list[Message] = []
        for number in range(3):
            sent += [user(f"question {number}: {LONG}")]
            await t.turn(sent, f"answer {number}: {LONG}")
            sent += [assistant(f"answer {number}: {LONG}")]
        opened = await t.open([*sent[2:], user("window?")])
        assert opened.opened.reconciled.verdict.case == "trimmed"
        assert opened.status == "degraded"
        assert opened.reason == "tail-limit"
        shown = texts(read_forwarded(opened))
        assert shown[-1] == "window?"
        assert sent[0]["content"] not in shown
        assert (await t.live()) == texts(sent)


async def test_tail_limit_while_there_are_no_notes() -> None:
    """Inspection M2: an observer that fails from the first call on must not leave a small window
    with a prompt too long for it."""
    failing = [ModelError("refused") for _ in range(9)]
    async with open_turns(*failing, settings=LIMITED) as t:
        sent: list[Message] = []
        for number in range(3):
            sent += [user(f"question {number}: {LONG}")]
            await t.turn(sent, f"answer {number}: {LONG}")
            await t.parts.background.wait_idle()
            sent += [assistant(f"answer {number}: {LONG}")]
        assert (await t.parts.memory()).log.entries == ()
        opened = await t.open([*sent, user("and now?")])
        assert (opened.status, opened.reason) == ("degraded", "tail-limit")
        instructions, *shown = texts(read_forwarded(opened))
        assert instructions.startswith("Be brief.")
        assert "does not fit and is not shown" in instructions
        assert (shown[-1], sent[0]["content"] in shown) == ("and now?", False)
        assert opened.receipt["tokens-sent"] < opened.receipt["tokens-received"]
        await t.engine.close_turn(opened, make_reply("done"))
        assert await t.live() == [*texts(sent), "and now?", "done"]


async def test_a_tail_within_its_limit_goes_as_it_came() -> None:
    """The client's bytes are left alone until notes exist, and while all of it fits."""
    async with open_turns(settings=LIMITED) as t:
        opened = await t.open([user("hello"), assistant("hi"), user("and now?")])
        assert (opened.status, opened.body) == ("raw", None)


# ── what the model has looked up ──────────────────────────────────────────────────────────────────

LOOK_UP_CANARY = "canary of a look-up"
LOOK_UP: Message = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "ours", "type": "function", "function": {"name": "recall", "arguments": "{}"}}
    ],
}
LOOK_UP_RESULT: Message = {"role": "tool", "tool_call_id": "ours", "content": LOOK_UP_CANARY}
LOOKED_UP = LookedUp((Round(orjson.dumps(LOOK_UP), (orjson.dumps(LOOK_UP_RESULT),)),))


def call_tool(number: int) -> Message:
    call = {"id": f"c{number}", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def tool_result(number: int) -> Message:
    return {"role": "tool", "tool_call_id": f"c{number}", "content": f"file {number}"}


async def take_turn(
    t: Turns, sent: list[Message], reply: Message, look_ups: LookedUp | None = None
) -> PreparedTurn:
    """Take a turn that offers the tool."""
    opened = await t.engine.open_turn(
        Caller(KEY, KEY.tenant, "on"),
        request(sent),
        t.parts.context(),
        Hints(),
        recall_tool="recall",
    )
    answer = Reply(orjson.dumps(reply), True, "stop", look_ups=look_ups)
    await t.engine.close_turn(opened, answer)
    return opened


async def test_a_look_up_is_shown_in_its_place_until_the_notes_change() -> None:
    """The model looks something up, then calls a tool of the client, and three more: each prompt
    has the look-up once, before its reply, and is the beginning of the next one. With other notes it
    is gone. No memory model ever reads it, and it is not stored as a message."""
    async with open_turns() as t:
        sent = [*(await t.history(4))[:-1], user("which file was it?")]
        before = read_forwarded(await take_turn(t, sent, call_tool(0), LOOKED_UP))
        assert LOOK_UP not in before
        for number in range(4):
            sent += [call_tool(number), tool_result(number)]
            last = number == 3
            reply = assistant("that one") if last else call_tool(number + 1)
            turn = await take_turn(t, sent, reply)
            prompt = read_forwarded(turn)
            assert prompt[: len(before)] == before
            place = prompt.index(call_tool(0))
            assert prompt[place - 2 : place] == [LOOK_UP, LOOK_UP_RESULT]
            assert prompt.count(LOOK_UP_RESULT) == 1
            before = prompt
        assert await t.live() == [str(m["content"]) if m["content"] else None for m in sent] + [
            "that one"
        ]
        generation = (await t.parts.memory()).log.state
        sent.append(assistant("that one"))
        while (await t.parts.memory()).log.state == generation:
            sent.append(user(f"next: {LONG}"))
            prompt = read_forwarded(await take_turn(t, sent, assistant(f"well: {LONG}")))
            sent.append(assistant(f"well: {LONG}"))
            await t.parts.background.wait_idle()
        after = read_forwarded(await take_turn(t, [*sent, user("and?")], assistant("so")))
        assert LOOK_UP_RESULT in before
        assert LOOK_UP_RESULT not in after
        assert LOOK_UP_CANARY not in repr(t.parts.models.asked)


async def test_with_look_ups_in_every_third_turn_prompts_begin_alike() -> None:
    """As long as the notes stay, each prompt begins with the whole prompt before it, with the
    rounds of its reply: a provider's cache holds all of it."""
    async with open_turns() as t:
        sent: list[Message] = []
        before, state, kept = [], None, 0
        for number in range(24):
            sent.append(user(f"question {number}: {LONG if number % 2 else 'short'}"))
            looked_up = LOOKED_UP if number % 3 == 0 else None
            turn = await take_turn(t, sent, assistant(f"answer {number}"), looked_up)
            prompt = read_forwarded(turn) if turn.body else [SYSTEM, *sent]
            shown = turn.opened.reconciled.projected.log.state
            if shown == state:
                assert prompt[: len(before)] == before
                kept += LOOK_UP_RESULT in prompt
            before = [*prompt, *((LOOK_UP, LOOK_UP_RESULT) if looked_up else ())]
            state = shown
            sent.append(assistant(f"answer {number}"))
            await t.parts.background.wait_idle()
        assert kept >= 8
        assert state != (0, 0)


async def test_a_reply_that_the_client_altered_shows_no_look_up() -> None:
    """Nor does a request that does not offer the tool."""
    async with open_turns() as t:
        await take_turn(t, [user("which?")], assistant("that one"), LOOKED_UP)
        same = [user("which?"), assistant("that one"), user("sure?")]
        assert (await t.open(same)).body is None
        shown = read_forwarded(await take_turn(t, same, assistant("yes")))
        assert shown == [SYSTEM, same[0], LOOK_UP, LOOK_UP_RESULT, *same[1:]]
        altered = [same[0], assistant("that one, or another"), same[2], assistant("yes")]
        for question in ("really?", "truly?"):
            altered.append(user(question))
            turn = await take_turn(t, altered, assistant("yes"))
            assert turn.body is None or LOOK_UP_RESULT not in read_forwarded(turn)
            altered.append(assistant("yes"))


async def test_tokens_of_look_ups_are_counted_in_the_prompt_alone() -> None:
    """They are sent, and so in the receipt; no threshold counts them."""
    async with open_turns() as t:
        await take_turn(t, [user("which?")], assistant("that one"), LOOKED_UP)
        memory = await t.parts.memory()
        [look_ups] = [m.look_ups for m in memory.tail if m.look_ups]
        assert look_ups.tokens > 8
        same = [user("which?"), assistant("that one"), user("sure?")]
        turn = await take_turn(t, same, assistant("yes"))
        difference = turn.receipt["tokens-sent"] - turn.receipt["tokens-received"]
        assert difference == look_ups.tokens
        assert turn.receipt["pending-tokens"] == (await t.open(same)).receipt["pending-tokens"]


PARTED: list[Message] = [user("question"), call_tool(0), tool_result(0), assistant("done")]


async def part_step(t: Turns) -> None:
    """Store notes whose end parts a call from its result, as a store that others wrote may have."""
    await t.engine.close_turn(await t.open(PARTED[:3]), make_reply("done"))

    def cover_call(memory: Memory) -> Memory:
        noted = add_chunk(memory, chunk(memory, 2))
        return activate_chunks(noted, [noted.chunks[0].id], t.parts.clock.now)

    await t.parts.memories.update_log(KEY, cover_call)


async def test_a_prompt_that_parts_a_call_from_its_result_does_not_go_out() -> None:
    """The client's own request goes, if it holds the conversation. Else the prompt goes without the
    result that would be refused."""
    async with open_turns(settings=SMALL) as t:
        await part_step(t)
        whole = await t.open([*PARTED, user("next")])
        assert (whole.status, whole.reason, whole.body) == ("degraded", "tool-pairs", None)
        alone = await t.open([user("next")])
        assert (alone.status, alone.reason) == ("applied", None)
        assert [m["role"] for m in read_forwarded(alone)] == ["system", "user", "assistant", "user"]
