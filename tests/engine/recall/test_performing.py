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

from om_proxy.engine.recall.performing import FoundByPerson, ReadingRights
from om_proxy.engine.recall.searching import MessageSearch, SearchResult
from om_proxy.memory.model import Key
from om_proxy.memory.recall.arguments import ONLY_THIS_CONVERSATION, LookUp
from om_proxy.memory.recall.found import PassageFilter
from om_proxy.memory.rounds import LookUpCall
from om_proxy.storage.shared import newest_passages
from om_proxy.storage.values.listing import ThreadInfo
from tests.engine.recall.stored_conversations import (
    CURRENT_KEY,
    FOREIGN_KEY,
    OTHER_KEY,
    StoredConversations,
    make_item,
    open_conversations,
)
from tests.memory.recall.quoted import read_quotes

DAY_S = 86_400


@pytest.fixture
async def conversations() -> AsyncIterator[StoredConversations]:
    async with open_conversations() as conversations:
        yield conversations


def read_seqs(text: str) -> list[int]:
    return [int(each.id.rpartition("m")[2]) for each in read_quotes(text)]


@pytest.mark.parametrize(
    ("cursor", "limit", "count"),
    [(None, 5, 41), ("m1", 20, 41), ("m17", 3, 41), ("m41", 7, 41), (None, 1, 62)],
)
async def test_pages_read_each_message_once(
    conversations: StoredConversations, cursor: str | None, limit: int, count: int
) -> None:
    """Forward from the cursor and backward to it, over gaps that were taken back. Behind the 50th
    page the answer gives another cursor."""
    builder = await conversations.add(CURRENT_KEY, [f"word {n}" for n in range(count)])
    builder.supersede([*range(18, 24), 30])
    await conversations.commit(builder)
    at = int(cursor[1:]) if cursor else 1
    for direction, expected in (
        (1, [seq for seq in builder.live if seq >= at]),
        (-1, [seq for seq in builder.live if seq <= at or cursor is None]),
    ):
        read: list[int] = []
        page, fields = direction, {"cursor": cursor} if cursor else {}
        while True:
            answer = await conversations.ask(mode="messages", page=page, limit=limit, **fields)
            seqs = read_seqs(answer.text)
            assert answer.found == len(seqs)
            read = read + seqs if direction > 0 else seqs + read
            way_on = re.search(r"; more: (?:cursor (m\d+), )?page (-?\d+)\n", answer.text)
            if way_on is None:
                break
            page, fields = int(way_on[2]), {"cursor": way_on[1]} if way_on[1] else fields
        assert read == expected


async def test_a_message_that_was_taken_back(conversations: StoredConversations) -> None:
    """It is shown where it is asked for, and passed over elsewhere. A broken-off reply is, too."""
    builder = await conversations.add(CURRENT_KEY, ["one", "two", "three", "four"])
    broken = builder.interrupt_reply(make_item({"role": "assistant", "content": "fi"}))
    builder.supersede([2, 3])
    await conversations.commit(builder, broken)
    shown = await conversations.ask(cursor="m2")
    assert shown.text.startswith(
        "m2 to m4 of m1 to m4\n[m2] assistant, Nov 14, 2023 22:13 (taken back)\n  two\n[m4]"
    )
    assert read_seqs((await conversations.ask(cursor="m3", page=-1)).text) == [1, 3]
    assert read_seqs((await conversations.ask(cursor="m3", limit=1, page=2)).text) == [4]
    assert " (broken off)\n  fi" in (await conversations.ask(cursor="m5")).text
    assert read_seqs((await conversations.ask()).text) == [1, 4]
    everything = await conversations.ask(rights={"with_superseded": True})
    assert read_seqs(everything.text) == [1, 2, 3, 4, 5]


async def test_a_part_in_full(conversations: StoredConversations) -> None:
    long = "".join(f"{n} " for n in range(4_000))
    await conversations.add(
        CURRENT_KEY,
        [
            {
                "role": "user",
                "content": [{"type": "text", "text": "see"}, {"type": "text", "text": long}],
            }
        ],
    )
    joined, offset = "", 0
    while True:
        answer = await conversations.ask(cursor="m1", partIndex=1, charOffset=offset)
        joined += read_quotes(answer.text)[0].parts[1][1]
        way_on = re.search(r"charOffset=(\d+)", answer.text.split("\n")[0])
        if way_on is None:
            break
        offset = int(way_on[1])
    assert joined == long
    assert (await conversations.ask(cursor="m1", detail="high")).text.endswith("\n[p0]\n  see")
    assert (await conversations.ask(cursor="m1", partIndex=2)).text == "recall: m1 has p0 to p1"
    assert "there is no message m2;" in (await conversations.ask(cursor="m2", partIndex=0)).text


async def test_parts_of_a_tool(conversations: StoredConversations) -> None:
    """A result has the name of its tool, though its message holds the id of the call alone."""
    calls = [
        {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": "{}"}}
        for n, name in enumerate(("ls", "cat"))
    ]
    await conversations.add(
        CURRENT_KEY,
        [
            {"role": "user", "content": "look"},
            {"role": "assistant", "content": "I look.", "tool_calls": calls},
            {"role": "tool", "tool_call_id": "c0", "content": "a.txt"},
            {"role": "tool", "tool_call_id": "c1", "content": "bees"},
        ],
    )
    answer = await conversations.ask(toolName="cat")
    assert [(each.id, each.parts) for each in read_quotes(answer.text)] == [
        ("m2", {2: (" tool-call cat", "{}")}),
        ("m4", {0: (" tool-result cat", "bees")}),
    ]
    # the call stands before the page
    assert "[p0] tool-result cat\n  bees" in (await conversations.ask(cursor="m4")).text
    assert "[p0] tool-result ls\n" in (await conversations.ask(cursor="m3", detail="high")).text
    assert read_seqs((await conversations.ask(partType="tool-result")).text) == [3, 4]


async def test_other_conversations(conversations: StoredConversations) -> None:
    """They are named by labels. Their real names are in no answer."""
    await conversations.add(CURRENT_KEY, ["one", "two"])
    await conversations.add(OTHER_KEY, ["ciao", "ciao"])
    await conversations.add(FOREIGN_KEY, ["secret"])
    builder_label, foreign_label = conversations.label(OTHER_KEY), conversations.label(FOREIGN_KEY)
    shown = builder_label[:8]
    for fields in (
        {"threadId": shown},
        {"threadId": f"[{builder_label}]", "cursor": "m1"},
        {"cursor": f"{builder_label[:6]}.m1"},
        {"cursor": f"{shown}.m1", "threadId": "current"},
        {"threadId": f"{shown}.m2"},
    ):
        answer = await conversations.ask(**fields)
        assert answer.text.startswith(
            f"{shown}.m1 to {shown}.m2 of {shown}.m1 to {shown}.m2\n[{shown}.m1]"
        ), fields
    assert (await conversations.ask(threadId="current")).text.startswith("m1 to m2")
    assert (await conversations.ask(threadId=conversations.label(CURRENT_KEY))).text.startswith(
        "m1 to m2"
    )
    unknown = foreign_label[:-1] + ("0" if foreign_label[-1] != "0" else "1")
    for label in (foreign_label, unknown):
        answer = await conversations.ask(cursor=f"{label}.m1")
        assert answer.text == f'recall: no conversation {label}; mode "threads" lists them'
    assert "no conversation foreign;" in (await conversations.ask(threadId="foreign")).text
    assert (await conversations.ask(cursor=f"{shown}.m9")).text == (
        f"recall: there is no message {shown}.m9; that conversation has m1 to m2"
    )


async def test_an_id_that_begins_several_is_told(conversations: StoredConversations) -> None:
    """With the whole ids to choose from."""
    by_beginning: dict[str, Key] = {}
    for number in range(100_000):
        key = CURRENT_KEY._replace(thread=f"thread {number}")
        beginning = conversations.label(key)[:6]
        if beginning in by_beginning:
            break
        by_beginning[beginning] = key
    alike = [by_beginning[beginning], key]
    for each in alike:
        await conversations.add(each, ["bees"])
    labels = sorted(map(conversations.label, alike))
    answer = await conversations.ask(threadId=beginning)
    assert answer.text == (
        f"recall: {beginning} begins several conversations' ids; give one of {', '.join(labels)}"
    )
    for label in labels:
        assert (await conversations.ask(threadId=label)).outcome == "found"


async def test_conversations_are_listed(conversations: StoredConversations) -> None:
    for number, key in enumerate((OTHER_KEY, CURRENT_KEY, FOREIGN_KEY)):
        builder = await conversations.add(key, ["one", "two"])
        await conversations.commit(
            builder, turn_at=1_700_000_000.0 + number * DAY_S, title=f"No {number}"
        )
    answer = await conversations.ask(mode="threads")
    lines = answer.text.split("\n")
    assert lines[0] == "conversations 1 to 2, newest first"
    assert lines[1].startswith(
        f'- "No 1" [{conversations.label(CURRENT_KEY)[:8]}], 2 messages, Nov 15, 2023 – '
    )
    assert lines[1].endswith(", ← current")
    assert lines[2].startswith(f'- "No 0" [{conversations.label(OTHER_KEY)[:8]}], 2 messages, ')
    assert OTHER_KEY.thread not in answer.text
    assert answer.found == 2
    first = await conversations.ask(mode="threads", limit=1)
    assert first.text.startswith("conversations 1 to 1, newest first; more: page 2\n")
    assert "No 0" in (await conversations.ask(mode="threads", limit=1, page=2)).text
    assert "No 1" not in (await conversations.ask(mode="threads", before="2023-11-15")).text
    assert "No 0" not in (await conversations.ask(mode="threads", after="2023-11-15")).text
    assert (await conversations.ask(mode="threads", page=9)).outcome == "nothing"


@pytest.mark.parametrize("step_s", [0.001, 1e-6, 0.0])
async def test_every_conversation_is_listed_once(
    conversations: StoredConversations, step_s: float
) -> None:
    """Page by page, and behind the last page as the answer says; also where they ended in one
    moment."""
    keys = [CURRENT_KEY._replace(thread=f"thread {number}") for number in range(53)]
    for number, key in enumerate(keys):
        builder = await conversations.add(key, ["one"])
        await conversations.commit(builder, turn_at=1_700_000_000.0 + number * step_s)
    shown = await conversations.list_pages(limit=1)
    assert shown == [conversations.label(key)[:8] for key in reversed(keys)]


async def test_a_list_goes_on_behind_a_conversation_that_is_gone(
    conversations: StoredConversations,
) -> None:
    """What was not shown is: behind the one that was named, or by the time alone."""
    keys = [CURRENT_KEY._replace(thread=f"thread {number}") for number in range(4)]
    for key in keys:
        await conversations.commit(await conversations.add(key, ["one"]), turn_at=1_700_000_000.0)
    labels = [conversations.label(key)[:8] for key in reversed(keys)]
    before = "2023-11-14T22:13:20.000002+00:00"
    for written, expected in (
        (f"{before} {labels[1]}", labels[2:]),
        (f" {before}  [{labels[1]}] ", labels[2:]),
        (f"{before} 00112233aabbccdd", labels),
        (before, labels),
    ):
        answer = await conversations.ask(mode="threads", before=written)
        assert re.findall(r"\[([0-9a-f]{8})\]", answer.text) == expected
    answer = await conversations.ask(mode="search", query="one", before=f"{before} {labels[1]}")
    assert answer.text == "recall: before must be an ISO date, such as 2023-05-08"


async def test_one_conversation_alone(conversations: StoredConversations) -> None:
    """Where the scope is the thread, no other one is read, listed or searched."""
    await conversations.add(CURRENT_KEY, ["bees"])
    await conversations.add(OTHER_KEY, ["bees"])
    for fields in (
        {"mode": "threads"},
        {"threadId": conversations.label(OTHER_KEY)},
        {"cursor": f"{conversations.label(OTHER_KEY)[:8]}.m1"},
        {"mode": "search", "query": "bees", "threadId": conversations.label(OTHER_KEY)},
        {"threadId": "00aa11bb"},
    ):
        answer = await conversations.ask(rights={"scope": "thread"}, **fields)
        assert answer.text == ONLY_THIS_CONVERSATION, fields
    found = await conversations.ask(rights={"scope": "thread"}, mode="search", query="bees")
    assert [each.id for each in read_quotes(found.text)] == ["m1"]
    nothing = await conversations.ask(
        rights={"scope": "thread"}, mode="search", query="Quorum zeta"
    )
    assert nothing.text == "recall: nothing found. Try other words"
    own = await conversations.ask(
        rights={"scope": "thread"}, threadId=conversations.label(CURRENT_KEY)
    )
    assert own.text.startswith("m1 to m1")


async def test_search(conversations: StoredConversations) -> None:
    await conversations.add(
        CURRENT_KEY, ["bees in May", "I see", "the bees sleep", "bees bees", "raw bees"]
    )
    await conversations.add(OTHER_KEY, ["bees, too"])
    await conversations.add(FOREIGN_KEY, ["bees"])
    answer = await conversations.ask(rights={"raw_from": 5}, mode="search", query="Bees May")
    ids = [each.id for each in read_quotes(answer.text)]
    other = f"{conversations.label(OTHER_KEY)[:8]}.m1"
    assert answer.text.startswith('5 of 5 messages for "Bees May", best first.')
    # results that touch are one; what the prompt shows is left out
    assert ids == ["m1", "m2", "m3", "m4", other]
    assert answer.found == 5
    only = await conversations.ask(
        mode="search", query="bees", threadId=conversations.label(OTHER_KEY)
    )
    assert [each.id for each in read_quotes(only.text)] == [other]
    nothing = await conversations.ask(
        mode="search", query="Quorum of bees!", threadId=conversations.label(OTHER_KEY)
    )
    assert nothing.outcome == "found"
    nothing = await conversations.ask(mode="search", query="Quorum zeta")
    assert nothing.text == ("recall: nothing found; no message has: Quorum, zeta. Try other words")
    assert (nothing.outcome, nothing.found) == ("nothing", 0)


async def test_days(conversations: StoredConversations) -> None:
    """Messages before and after a time are found by halving."""
    await conversations.add(CURRENT_KEY, [f"word {n}" for n in range(40)])
    # message n came n seconds after 22:13:20
    time = "2023-11-14T22:13:40Z"
    assert read_seqs((await conversations.ask(after=time, limit=2)).text) == [20, 21]
    assert read_seqs((await conversations.ask(before=time, page=-1, limit=2)).text) == [18, 19]
    assert (await conversations.ask(after="2024-01-01")).text == (
        "no messages here; this conversation has m1 to m40"
    )


async def test_a_new_conversation(conversations: StoredConversations) -> None:
    assert (await conversations.ask()).text == "no messages here; this conversation has none yet"
    assert (await conversations.ask(cursor="m1")).text == (
        "recall: there is no message m1; this conversation has no messages yet"
    )


async def test_every_id_that_is_shown_is_accepted(conversations: StoredConversations) -> None:
    for key in (CURRENT_KEY, OTHER_KEY):
        await conversations.add(key, ["bees", "wax"])
    answers: list[Any] = [
        await conversations.ask(mode="threads"),
        await conversations.ask(mode="search", query="bees"),
        await conversations.ask(threadId=conversations.label(OTHER_KEY)),
    ]
    shown = {
        one for answer in answers for one in re.findall(r"(?<=\[)[0-9a-fm.]+(?=\])", answer.text)
    }
    assert len(shown) == 6  # two labels, and two ids of each
    for one in shown:
        fields = {"cursor": one} if "m" in one else {"threadId": one}
        assert (await conversations.ask(**fields)).outcome == "found", one
        # to the caller of another resource they are unknown
        foreign = await conversations.ask(FOREIGN_KEY, **fields)
        assert foreign.text.startswith(
            "recall: there is no " if one[0] == "m" else "recall: no conv"
        )


async def test_a_search_over_resources_ends_in_time(conversations: StoredConversations) -> None:
    """What was found by then is told, and how many resources were searched; of none, nothing is."""
    await conversations.add(CURRENT_KEY, ["bees"])

    @dataclass
    class StuckSearch:
        inner: MessageSearch

        async def search(self, key: Key, query: str, passage_filter: PassageFilter) -> SearchResult:
            if key.resource != CURRENT_KEY.resource:
                await asyncio.Event().wait()
            return await self.inner.search(key, query, passage_filter)

    search: Any = StuckSearch(conversations.performer.message_search)
    performer = replace(conversations.performer, message_search=search)
    look_up = LookUp(mode="search", query="bees")
    everything = PassageFilter(None, None, None)

    async def find(*keys: Key) -> FoundByPerson:
        ends_at = asyncio.get_running_loop().time() + 0.2
        return await performer.find(
            keys, look_up, limit=9, passage_filter=everything, ends_at=ends_at
        )

    found = await find(CURRENT_KEY, FOREIGN_KEY, CURRENT_KEY)
    assert (found.searched, [key for key, *_ in found.messages]) == (1, [CURRENT_KEY])
    with pytest.raises(TimeoutError):
        await find(FOREIGN_KEY, CURRENT_KEY)


async def test_shown_ids_are_accepted_among_very_many(
    conversations: StoredConversations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the latest conversations always, and in a reply those that it has shown."""
    monkeypatch.setattr("om_proxy.engine.recall.conversations.MAX_LISTED_THREADS", 1)
    monkeypatch.setattr("om_proxy.engine.recall.conversations.THREADS_A_READ", 1)
    monkeypatch.setattr(newest_passages, "MAX_SEARCHED_THREADS", 1)
    first, found, latest = (CURRENT_KEY._replace(thread=name) for name in "abc")
    for turn_at, key in enumerate((first, found, latest, FOREIGN_KEY)):
        await conversations.commit(
            await conversations.add(key, [f"bees {key.thread}"]), turn_at=float(turn_at)
        )
    for key, is_known in ((first, True), (found, False), (latest, True), (FOREIGN_KEY, False)):
        answer = await conversations.ask(threadId=conversations.label(key))
        assert answer.text.startswith("recall: no conversation") is not is_known
    look_ups = conversations.create_look_ups()
    asked = ({"query": "bees"}, {"threadId": conversations.label(found)}, {"cursor": "m1"})
    calls = [LookUpCall(str(n), orjson.dumps(fields).decode()) for n, fields in enumerate(asked)]
    assert "bees b" in (await look_ups.answer(calls))[1].text


async def test_labels_are_listed_once_in_a_reply(
    conversations: StoredConversations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many a reply names, and however many threads the resource has."""
    await conversations.add(CURRENT_KEY, ["bees"])
    await conversations.add(OTHER_KEY, ["more bees"])
    opened = conversations.performer.open_conversations(
        ReadingRights(CURRENT_KEY, "resource", ZoneInfo("UTC"), 2_000)
    )
    pages: list[Key | None] = []
    list_threads = conversations.store.threads

    async def list_counted(*arguments: Any) -> tuple[ThreadInfo, ...]:
        pages.append(arguments[2])
        return await list_threads(*arguments)

    monkeypatch.setattr(conversations.memories.store, "threads", list_counted)
    for key in (OTHER_KEY, CURRENT_KEY, OTHER_KEY):
        look_up = LookUp(mode="messages", thread=conversations.label(key)[:6])
        assert (await opened.find(look_up)).key == key
    assert len(pages) == 1
