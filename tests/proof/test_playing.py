"""A recorded conversation is played through the real proxy at its own times, and billed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from om_proxy.proof.billing import OPENAI
from om_proxy.proof.conversation import Call, Conversation, Message, Prefix, Usage
from om_proxy.proof.playing import (
    Meter,
    Play,
    Rates,
    Subject,
    count_tokens,
    list_full_prompts,
    list_main_calls,
    play,
    write_message,
)

START = 1_767_348_000.0
SETTINGS = {"memory": {"observation": {"message_tokens": 2000}, "economy": "off"}}
LINE = "Dock {n} takes no van above {n} metres, and closes at {n} past nine. "


def converse(turn_count: int, gap_s: float = 30.0) -> Conversation:
    """Make a conversation whose turns have about 200 tokens."""
    messages: list[Message] = [{"role": "system", "content": "Be brief.", "created_at": START}]
    calls = []
    for n in range(turn_count):
        at = START + n * gap_s
        text = "".join(LINE.format(n=n * 100 + k) for k in range(10))
        messages.append({"role": "user", "content": text, "created_at": at})
        reply: Message = {"role": "assistant", "content": f"Noted {n}.", "created_at": at + 5}
        calls.append(Call(Prefix(messages, len(messages)), reply, at, at + 5, "gpt-4o", None))
        messages.append(reply)
    return Conversation("c", None, "messages", tuple(messages), tuple(calls))


def make_play(conversation: Conversation, **changes: Any) -> Play:
    calls = list_main_calls(conversation)
    subject = Subject(
        conversation, calls, "gpt-4o", None, Meter(), OPENAI, frozenset(), False, SETTINGS
    )
    return Play(replace(subject, **changes), "gpt-5-mini", Rates("measured", 3, 18))


async def test_memory_shortens_what_goes_upstream() -> None:
    """Below the threshold the prompts are the recorded ones; above it they are shorter."""
    conversation = converse(30)
    sizes = [count_tokens_of(call.sent) for call in conversation.calls]
    outcome = await play(make_play(conversation))
    assert outcome.degraded_calls == 0
    assert outcome.notes_calls > 2
    assert outcome.actor.prompt < 0.8 * sum(sizes)
    short = await play(make_play(converse(3)))
    assert short.actor.prompt == sum(sizes[:3])


def count_tokens_of(messages: Any) -> int:
    return Meter().measure(0, list(map(write_message, messages))).tokens


async def test_a_lost_cache_is_lost_with_memory_too() -> None:
    conversation = converse(12)
    kept = await play(make_play(conversation))
    lost = await play(make_play(conversation, lost=frozenset(range(12))))
    assert kept.actor.read > 0
    assert lost.actor.read == 0
    assert lost.actor.prompt == kept.actor.prompt


def test_without_the_client_s_compaction_all_messages_are_sent() -> None:
    """The summary is none of them; without compaction the recorded request counts."""
    conversation = converse(3)
    summary: Message = {"role": "user", "content": "Summary.", "created_at": START}
    last = replace(conversation.calls[2], sent=(summary,))
    compaction = Call((), None, START, START, "", Usage(500, 0, 0, 20), "compaction")
    calls = (*conversation.calls[:2], last)
    assert [len(p) for p in list_full_prompts(replace(conversation, calls=calls))] == [2, 4, 1]
    compacted = replace(conversation, calls=(*calls, compaction))
    assert [len(p) for p in list_full_prompts(compacted)] == [2, 4, 6]


def test_a_meter_scales_messages_and_adds_what_no_message_holds() -> None:
    raw = b'{"role":"user","content":"one two three"}'
    size = count_tokens(raw)
    assert Meter(2.0, 100).measure(0, [raw, raw]).tokens == 100 + 4 * size
    assert Meter(1.0, 100).measure(0, [raw], tools=b"{}").tokens > 100 + size


def test_prompts_share_equal_messages() -> None:
    """So a session takes memory for its messages once, not for each of its prompts."""
    raws = [b"".join((b'{"role":"user","content":"', b"x", b'"}')) for _ in range(2)]
    assert raws[0] is not raws[1]
    first, second = (Meter().measure(0, [raw]).prompt[-1][0] for raw in raws)
    assert first is second
