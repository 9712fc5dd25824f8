"""A look-up reads what the caller may read: every message once, and nothing of others."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any
from zoneinfo import ZoneInfo

import orjson
import pytest

from om_proxy.look_ups import conversations
from om_proxy.look_ups.performing import FoundByPerson, ReadingRights
from om_proxy.look_ups.searching import MessageSearch, SearchResult
from om_proxy.memory.model import Key
from om_proxy.memory.recall import faults
from om_proxy.memory.recall.arguments import LookUp
from om_proxy.memory.recall.found import PassageFilter
from om_proxy.memory.recall.look_ups import LookUpCall
from om_proxy.storage import newest_passages
from om_proxy.storage.listing import ThreadInfo
from tests.look_ups.stored_conversations import (
    CURRENT,
    FOREIGN,
    OTHER,
    StoredConversations,
    make_item,
    open_conversations,
)
from tests.memory.recall.quoted import read_quotes

DAY_S = 86_400


@pytest.fixture
async def stored() -> AsyncIterator[StoredConversations]:
    async with open_conversations() as stored:
        yield stored


def read_seqs(text: str) -> list[int]:
    return [int(each.id.rpartition("m")[2]) for each in read_quotes(text)]


@pytest.mark.parametrize(
    ("cursor", "limit", "count"),
    [(None, 5, 41), ("m1", 20, 41), ("m17", 3, 41), ("m41", 7, 41), (None, 1, 62)],
)
async def test_pages_read_each_message_once(
    stored: StoredConversations, cursor: str | None, limit: int, count: int
) -> None:
    """Forward from the cursor and backward to it, over gaps that were taken back. Behind the 50th
    page the answer gives another cursor."""
    builder = await stored.add(CURRENT, [f"word {n}" for n in range(count)])
    builder.supersede([*range(18, 24), 30])
    await stored.commit(builder)
    at = int(cursor[1:]) if cursor else 1
    for direction, expected in (
        (1, [seq for seq in builder.live if seq >= at]),
        (-1, [seq for seq in builder.live if seq <= at or cursor is None]),
    ):
        read: list[int] = []
        page, fields = direction, {"cursor": cursor} if cursor else {}
        while True:
            answer = await stored.ask(mode="messages", page=page, limit=limit, **fields)
            seqs = read_seqs(answer.text)
            assert answer.found == len(seqs)
            read = read + seqs if direction > 0 else seqs + read
            way_on = re.search(r"; more: (?:cursor (m\d+), )?page (-?\d+)\n", answer.text)
            if way_on is None:
                break
            page, fields = int(way_on[2]), {"cursor": way_on[1]} if way_on[1] else fields
        assert read == expected


async def test_a_message_that_was_taken_back(stored: StoredConversations) -> None:
    """It is shown where it is asked for, and passed over elsewhere. A broken-off reply is, too."""
    builder = await stored.add(CURRENT, ["one", "two", "three", "four"])
    broken = builder.interrupt_reply(make_item({"role": "assistant", "content": "fi"}))
    builder.supersede([2, 3])
    await stored.commit(builder, broken)
    shown = await stored.ask(cursor="m2")
    assert shown.text.startswith(
        "m2 to m4 of m1 to m4\n[m2] assistant, Nov 14, 2023 22:13 (taken back)\n  two\n[m4]"
    )
    assert read_seqs((await stored.ask(cursor="m3", page=-1)).text) == [1, 3]
    assert read_seqs((await stored.ask(cursor="m3", limit=1, page=2)).text) == [4]
    assert " (broken off)\n  fi" in (await stored.ask(cursor="m5")).text
    assert read_seqs((await stored.ask()).text) == [1, 4]
    everything = await stored.ask(rights={"with_superseded": True})
    assert read_seqs(everything.text) == [1, 2, 3, 4, 5]


async def test_a_part_in_full(stored: StoredConversations) -> None:
    long = "".join(f"{n} " for n in range(4_000))
    await stored.add(
        CURRENT,
        [
            {
                "role": "user",
                "content": [{"type": "text", "text": "see"}, {"type": "text", "text": long}],
            }
        ],
    )
    joined, offset = "", 0
    while True:
        answer = await stored.ask(cursor="m1", partIndex=1, charOffset=offset)
        joined += read_quotes(answer.text)[0].parts[1][1]
        way_on = re.search(r"charOffset=(\d+)", answer.text.split("\n")[0])
        if way_on is None:
            break
        offset = int(way_on[1])
    assert joined == long
    assert (await stored.ask(cursor="m1", detail="high")).text.endswith("\n[p0]\n  see")
    assert (await stored.ask(cursor="m1", partIndex=2)).text == "recall: m1 has p0 to p1"
    assert "there is no message m2;" in (await stored.ask(cursor="m2", partIndex=0)).text


async def test_parts_of_a_tool(stored: StoredConversations) -> None:
    """A result has the name of its tool, though its message holds the id of the call alone."""
    calls = [
        {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": "{}"}}
        for n, name in enumerate(("ls", "cat"))
    ]
    await stored.add(
        CURRENT,
        [
            {"role": "user", "content": "look"},
            {"role": "assistant", "content": "I look.", "tool_calls": calls},
            {"role": "tool", "tool_call_id": "c0", "content": "a.txt"},
            {"role": "tool", "tool_call_id": "c1", "content": "bees"},
        ],
    )
    answer = await stored.ask(toolName="cat")
    assert [(each.id, each.parts) for each in read_quotes(answer.text)] == [
        ("m2", {2: (" tool-call cat", "{}")}),
        ("m4", {0: (" tool-result cat", "bees")}),
    ]
    # the call stands before the page
    assert "[p0] tool-result cat\n  bees" in (await stored.ask(cursor="m4")).text
    assert "[p0] tool-result ls\n" in (await stored.ask(cursor="m3", detail="high")).text
    assert read_seqs((await stored.ask(partType="tool-result")).text) == [3, 4]


async def test_other_conversations(stored: StoredConversations) -> None:
    """They are named by labels. Their real names are in no answer."""
    await stored.add(CURRENT, ["one", "two"])
    await stored.add(OTHER, ["ciao", "ciao"])
    await stored.add(FOREIGN, ["secret"])
    builder_label, foreign_label = stored.label(OTHER), stored.label(FOREIGN)
    shown = builder_label[:8]
    for fields in (
        {"threadId": shown},
        {"threadId": f"[{builder_label}]", "cursor": "m1"},
        {"cursor": f"{builder_label[:6]}.m1"},
        {"cursor": f"{shown}.m1", "threadId": "current"},
        {"threadId": f"{shown}.m2"},
    ):
        answer = await stored.ask(**fields)
        assert answer.text.startswith(
            f"{shown}.m1 to {shown}.m2 of {shown}.m1 to {shown}.m2\n[{shown}.m1]"
        ), fields
    assert (await stored.ask(threadId="current")).text.startswith("m1 to m2")
    assert (await stored.ask(threadId=stored.label(CURRENT))).text.startswith("m1 to m2")
    unknown = foreign_label[:-1] + ("0" if foreign_label[-1] != "0" else "1")
    for label in (foreign_label, unknown):
        answer = await stored.ask(cursor=f"{label}.m1")
        assert answer.text == f'recall: no conversation {label}; mode "threads" lists them'
    assert "no conversation foreign;" in (await stored.ask(threadId="foreign")).text
    assert (await stored.ask(cursor=f"{shown}.m9")).text == (
        f"recall: there is no message {shown}.m9; that conversation has m1 to m2"
    )


async def test_an_id_that_begins_several_is_told(stored: StoredConversations) -> None:
    """With the whole ids to choose from."""
    by_beginning: dict[str, Key] = {}
    for number in range(100_000):
        key = CURRENT._replace(thread=f"thread {number}")
        beginning = stored.label(key)[:6]
        if beginning in by_beginning:
            break
        by_beginning[beginning] = key
    alike = [by_beginning[beginning], key]
    for each in alike:
        await stored.add(each, ["bees"])
    labels = sorted(map(stored.label, alike))
    answer = await stored.ask(threadId=beginning)
    assert answer.text == (
        f"recall: {beginning} begins several conversations' ids; give one of {', '.join(labels)}"
    )
    for label in labels:
        assert (await stored.ask(threadId=label)).outcome == "found"


async def test_conversations_are_listed(stored: StoredConversations) -> None:
    for number, key in enumerate((OTHER, CURRENT, FOREIGN)):
        builder = await stored.add(key, ["one", "two"])
        await stored.commit(builder, turn_at=1_700_000_000.0 + number * DAY_S, title=f"No {number}")
    answer = await stored.ask(mode="threads")
    lines = answer.text.split("\n")
    assert lines[0] == "conversations 1 to 2, newest first"
    assert lines[1].startswith(
        f'- "No 1" [{stored.label(CURRENT)[:8]}], 2 messages, Nov 15, 2023 – '
    )
    assert lines[1].endswith(", ← current")
    assert lines[2].startswith(f'- "No 0" [{stored.label(OTHER)[:8]}], 2 messages, ')
    assert OTHER.thread not in answer.text
    assert answer.found == 2
    first = await stored.ask(mode="threads", limit=1)
    assert first.text.startswith("conversations 1 to 1, newest first; more: page 2\n")
    assert "No 0" in (await stored.ask(mode="threads", limit=1, page=2)).text
    assert "No 1" not in (await stored.ask(mode="threads", before="2023-11-15")).text
    assert "No 0" not in (await stored.ask(mode="threads", after="2023-11-15")).text
    assert (await stored.ask(mode="threads", page=9)).outcome == "nothing"


@pytest.mark.parametrize("step_s", [0.001, 1e-6, 0.0])
async def test_every_conversation_is_listed_once(
    stored: StoredConversations, step_s: float
) -> None:
    """Page by page, and behind the last page as the answer says; also where they ended in one
    moment."""
    keys = [CURRENT._replace(thread=f"thread {number}") for number in range(53)]
    for number, key in enumerate(keys):
        builder = await stored.add(key, ["one"])
        await stored.commit(builder, turn_at=1_700_000_000.0 + number * step_s)
    shown = await stored.list_pages(limit=1)
    assert shown == [stored.label(key)[:8] for key in reversed(keys)]


async def test_a_list_goes_on_behind_a_conversation_that_is_gone(
    stored: StoredConversations,
) -> None:
    """What was not shown is: behind the one that was named, or by the time alone."""
    keys = [CURRENT._replace(thread=f"thread {number}") for number in range(4)]
    for key in keys:
        await stored.commit(await stored.add(key, ["one"]), turn_at=1_700_000_000.0)
    labels = [stored.label(key)[:8] for key in reversed(keys)]
    before = "2023-11-14T22:13:20.000002+00:00"
    for written, expected in (
        (f"{before} {labels[1]}", labels[2:]),
        (f" {before}  [{labels[1]}] ", labels[2:]),
        (f"{before} 00112233aabbccdd", labels),
        (before, labels),
    ):
        answer = await stored.ask(mode="threads", before=written)
        assert re.findall(r"\[([0-9a-f]{8})\]", answer.text) == expected
    answer = await stored.ask(mode="search", query="one", before=f"{before} {labels[1]}")
    assert answer.text == "recall: before must be an ISO date, such as 2023-05-08"


async def test_one_conversation_alone(stored: StoredConversations) -> None:
    """Where the scope is the thread, no other one is read, listed or searched."""
    await stored.add(CURRENT, ["bees"])
    await stored.add(OTHER, ["bees"])
    for fields in (
        {"mode": "threads"},
        {"threadId": stored.label(OTHER)},
        {"cursor": f"{stored.label(OTHER)[:8]}.m1"},
        {"mode": "search", "query": "bees", "threadId": stored.label(OTHER)},
        {"threadId": "00aa11bb"},
    ):
        answer = await stored.ask(rights={"scope": "thread"}, **fields)
        assert answer.text == faults.ONLY_THIS_CONVERSATION, fields
    found = await stored.ask(rights={"scope": "thread"}, mode="search", query="bees")
    assert [each.id for each in read_quotes(found.text)] == ["m1"]
    nothing = await stored.ask(rights={"scope": "thread"}, mode="search", query="Quorum zeta")
    assert nothing.text == "recall: nothing found. Try other words"
    own = await stored.ask(rights={"scope": "thread"}, threadId=stored.label(CURRENT))
    assert own.text.startswith("m1 to m1")


async def test_search(stored: StoredConversations) -> None:
    await stored.add(CURRENT, ["bees in May", "I see", "the bees sleep", "bees bees", "raw bees"])
    await stored.add(OTHER, ["bees, too"])
    await stored.add(FOREIGN, ["bees"])
    answer = await stored.ask(rights={"raw_from": 5}, mode="search", query="Bees May")
    ids = [each.id for each in read_quotes(answer.text)]
    other = f"{stored.label(OTHER)[:8]}.m1"
    assert answer.text.startswith('5 of 5 messages for "Bees May", best first.')
    # results that touch are one; what the prompt shows is left out
    assert ids == ["m1", "m2", "m3", "m4", other]
    assert answer.found == 5
    only = await stored.ask(mode="search", query="bees", threadId=stored.label(OTHER))
    assert [each.id for each in read_quotes(only.text)] == [other]
    nothing = await stored.ask(mode="search", query="Quorum of bees!", threadId=stored.label(OTHER))
    assert nothing.outcome == "found"
    nothing = await stored.ask(mode="search", query="Quorum zeta")
    assert nothing.text == ("recall: nothing found; no message has: Quorum, zeta. Try other words")
    assert (nothing.outcome, nothing.found) == ("nothing", 0)


async def test_days(stored: StoredConversations) -> None:
    """Messages before and after a time are found by halving."""
    await stored.add(CURRENT, [f"word {n}" for n in range(40)])
    # message n came n seconds after 22:13:20
    time = "2023-11-14T22:13:40Z"
    assert read_seqs((await stored.ask(after=time, limit=2)).text) == [20, 21]
    assert read_seqs((await stored.ask(before=time, page=-1, limit=2)).text) == [18, 19]
    assert (await stored.ask(after="2024-01-01")).text == (
        "no messages here; this conversation has m1 to m40"
    )


async def test_a_new_conversation(stored: StoredConversations) -> None:
    assert (await stored.ask()).text == "no messages here; this conversation has none yet"
    assert (await stored.ask(cursor="m1")).text == (
        "recall: there is no message m1; this conversation has no messages yet"
    )


async def test_every_id_that_is_shown_is_accepted(stored: StoredConversations) -> None:
    for key in (CURRENT, OTHER):
        await stored.add(key, ["bees", "wax"])
    answers: list[Any] = [
        await stored.ask(mode="threads"),
        await stored.ask(mode="search", query="bees"),
        await stored.ask(threadId=stored.label(OTHER)),
    ]
    shown = {
        one for answer in answers for one in re.findall(r"(?<=\[)[0-9a-fm.]+(?=\])", answer.text)
    }
    assert len(shown) == 6  # two labels, and two ids of each
    for one in shown:
        fields = {"cursor": one} if "m" in one else {"threadId": one}
        assert (await stored.ask(**fields)).outcome == "found", one
        # to the caller of another resource they are unknown
        foreign = await stored.ask(FOREIGN, **fields)
        assert foreign.text.startswith(
            "recall: there is no " if one[0] == "m" else "recall: no conv"
        )


async def test_a_search_over_resources_ends_in_time(stored: StoredConversations) -> None:
    """What was found by then is told, and how many resources were searched; of none, nothing is."""
    await stored.add(CURRENT, ["bees"])

    @dataclass
    class StuckSearch:
        inner: MessageSearch

        async def search(self, key: Key, query: str, passage_filter: PassageFilter) -> SearchResult:
            if key.resource != CURRENT.resource:
                await asyncio.Event().wait()
            return await self.inner.search(key, query, passage_filter)

    search: Any = StuckSearch(stored.performer.message_search)
    performer = replace(stored.performer, message_search=search)
    look_up = LookUp(mode="search", query="bees")
    everything = PassageFilter(None, None, None)

    async def find(*keys: Key) -> FoundByPerson:
        ends_at = asyncio.get_running_loop().time() + 0.2
        return await performer.find(
            keys, look_up, limit=9, passage_filter=everything, ends_at=ends_at
        )

    found = await find(CURRENT, FOREIGN, CURRENT)
    assert (found.searched, [key for key, *_ in found.messages]) == (1, [CURRENT])
    with pytest.raises(TimeoutError):
        await find(FOREIGN, CURRENT)


async def test_shown_ids_are_accepted_among_very_many(
    stored: StoredConversations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the latest conversations always, and in a reply those that it has shown."""
    monkeypatch.setattr(conversations, "MAX_LISTED_THREADS", 1)
    monkeypatch.setattr(conversations, "THREADS_A_READ", 1)
    monkeypatch.setattr(newest_passages, "MAX_SEARCHED_THREADS", 1)
    first, found, latest = (CURRENT._replace(thread=name) for name in "abc")
    for turn_at, key in enumerate((first, found, latest, FOREIGN)):
        await stored.commit(await stored.add(key, [f"bees {key.thread}"]), turn_at=float(turn_at))
    for key, is_known in ((first, True), (found, False), (latest, True), (FOREIGN, False)):
        answer = await stored.ask(threadId=stored.label(key))
        assert answer.text.startswith("recall: no conversation") is not is_known
    look_ups = stored.create_look_ups()
    asked = ({"query": "bees"}, {"threadId": stored.label(found)}, {"cursor": "m1"})
    calls = [LookUpCall(str(n), orjson.dumps(fields).decode()) for n, fields in enumerate(asked)]
    assert "bees b" in (await look_ups.answer(calls))[1].text


async def test_labels_are_listed_once_in_a_reply(
    stored: StoredConversations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many a reply names, and however many threads the resource has."""
    await stored.add(CURRENT, ["bees"])
    await stored.add(OTHER, ["more bees"])
    opened = stored.performer.open_conversations(
        ReadingRights(CURRENT, "resource", ZoneInfo("UTC"), 2_000)
    )
    pages: list[Key | None] = []
    list_threads = stored.store.threads

    async def list_counted(*arguments: Any) -> tuple[ThreadInfo, ...]:
        pages.append(arguments[2])
        return await list_threads(*arguments)

    monkeypatch.setattr(stored.memories.store, "threads", list_counted)
    for key in (OTHER, CURRENT, OTHER):
        look_up = LookUp(mode="messages", thread=stored.label(key)[:6])
        assert (await opened.find(look_up)).key == key
    assert len(pages) == 1
