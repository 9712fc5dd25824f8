"""An import puts back what an export holds, under any secret."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from om_proxy.common.errors import Conflict, UsageError
from om_proxy.management.memory_export import MemoryExporter
from om_proxy.management.moving.importing import ImportOptions, import_memory
from om_proxy.memory.lifecycle import log_sharing
from om_proxy.memory.model import Key, Memory, ReplyOrigin, resource_key
from om_proxy.settings.config import parse
from om_proxy.settings.identity.keyed_hashes import fingerprint_key, label_thread
from om_proxy.storage.base import Store
from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.storage.values.changes import Change
from om_proxy.storage.whole_threads import list_keys, list_tenants, read_whole_thread
from om_proxy.wire.apis.registry import read_item
from tests.storage.contract import MOVES
from tests.storage.memory_builder import KEY, MemoryBuilder, message
from tests.storage.moving_contract import store_eventful
from tests.storage.shared_machine import share_log

OLD, NEW = bytes(32), bytes(range(32))
HASHED = "0f" * 32


@pytest.fixture
async def stores() -> AsyncIterator[tuple[Store, Store]]:
    """Two empty stores."""
    first = await SqliteStore.open(":memory:")
    second = await SqliteStore.open(":memory:")
    yield first, second
    await first.close()
    await second.close()


async def export(store: Store, secret: bytes | None = None) -> list[bytes]:
    """Return the lines of an export of all tenants, in order."""
    lines = []
    async for tenant in list_tenants(store):
        async for record in MemoryExporter(store).export_all(tenant, None):
            if record["om"] == "export":
                record["secret"] = secret and secret.hex()
            lines.append(msgspec.json.encode(record) + b"\n")
    return lines


async def take(store: Store, lines: Sequence[bytes], **options: Any) -> Any:
    return await import_memory(store, lambda: iter(lines), ImportOptions(**options))


async def test_an_import_of_an_export_is_the_export(stores: tuple[Store, Store]) -> None:
    """Byte for byte, with the secret taken along; and once more changes nothing."""
    first, second = stores
    await store_eventful(first)
    await store_eventful(first, Key("other", "\u00e9", "t"))
    lines = await export(first, await first.secret())
    result = await take(second, lines)
    assert (result.threads, result.present_threads, result.is_rekeyed) == (2, 0, False)
    assert await second.secret() == await first.secret()
    assert await export(second, await second.secret()) == lines
    versions = [await second.version(key) async for key, _ in list_keys(second)]
    again = await take(second, lines)
    assert (again.threads, again.present_threads) == (0, 2)
    assert [await second.version(key) async for key, _ in list_keys(second)] == versions


async def test_messages_of_another_api_come_back(
    stores: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such an export says a format that older releases refuse, before the first of these messages.
    A release without that API refuses it too, and writes nothing."""
    first, second = stores
    chat, other = MemoryBuilder(), MemoryBuilder(KEY._replace(thread="two"))
    await first.commit(Memory(key=KEY), chat.chat(2).memory())
    other.say(*(replace(message(text), api="messages") for text in ("one", "two")))
    await first.commit(Memory(key=other.key), other.memory())
    lines = await export(first)
    records = [json.loads(line) for line in lines]
    assert [record["format"] for record in records if record["om"] == "export"] == [1, 2]
    begin = records.index({"om": "export", "format": 2, "secret": None})
    assert [record.get("api") for record in records[begin:-1]] == [None, "messages", "messages"]
    assert not any("api" in record for record in records[:begin])
    with monkeypatch.context() as older:
        older.setattr("om_proxy.management.moving.verifying.API_NAMES", ("chat",))
        with pytest.raises(UsageError, match="cannot read messages of messages; use a newer"):
            await take(second, lines)
        assert [key async for key, _ in list_keys(second)] == []
    with pytest.raises(UsageError, match=r"message\.api is not one of chat, responses, messages"):
        await take(second, [line.replace(b'"api":"messages"', b'"api":"x"') for line in lines])
    await take(second, lines, into_tenant="new")
    moved = await second.messages(other.key._replace(tenant="new"), 0)
    assert [(m.item.raw, m.item.api) for m in moved] == [
        (m.item.raw, "messages") for m in other.tail
    ]
    assert len(await export(second)) == len(lines)


async def test_the_ids_of_replies_stay_in_their_store(stores: tuple[Store, Store]) -> None:
    """They are keyed by its secret. An import into the store that has them changes nothing."""
    first, second = stores
    origin = ReplyOrigin(b"response id 0123", "openai", is_stored=True, has_instructions=False)
    thread = MemoryBuilder().say(
        message("Hi."), replace(message("Yes.", "assistant"), origin=origin)
    )
    await first.commit(Memory(key=KEY), thread.memory())
    lines = await export(first)
    assert not any(b"origin" in line for line in lines)
    assert (await take(first, lines)).present_threads == 1
    await take(second, lines)
    assert [m.item.origin for m in await first.messages(KEY, 0)] == [None, origin]
    assert [m.item.origin for m in await second.messages(KEY, 0)] == [None, None]


def test_any_thread_comes_back(tmp_path: Path) -> None:
    """Whatever became of it, with any text."""

    @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        st.lists(st.sampled_from(sorted(MOVES)), min_size=1, max_size=3),
        st.text(st.characters(), max_size=8),
    )
    def come_back(names: list[str], text: str) -> None:
        asyncio.run(_come_back(names, text))

    come_back()


async def _come_back(names: list[str], text: str) -> None:
    first, second = await SqliteStore.open(":memory:"), await SqliteStore.open(":memory:")
    try:
        for number, name in enumerate(names):
            thread = MemoryBuilder(KEY._replace(thread=f"t{number}"))
            memory = Memory(key=thread.key)
            for step in MOVES[name]:
                step(thread)
                thread.more["title"] = text
                memory = await first.commit(memory, thread.memory())
        lines = await export(first, await first.secret())
        await take(second, lines)
        assert await export(second, await second.secret()) == lines
    finally:
        await first.close()
        await second.close()


@pytest.mark.parametrize(
    "overrides",
    ["x", '{"api_base":"http://127.0.0.1:9"}', '{"observation":{"block_timeout":"10000s"}}'],
)
async def test_settings_that_the_admin_api_refuses_are_not_imported(
    stores: tuple[Store, Store], overrides: str
) -> None:
    """Nor is any other thread of the file."""
    first, second = stores
    for name in ("a", "b"):
        key = KEY._replace(thread=name)
        await first.commit(Memory(key=key), MemoryBuilder(key).chat(3).memory())
    lines = await export(first)
    head = max(n for n, line in enumerate(lines) if b'"om":"thread"' in line)
    lines[head] = json.dumps(json.loads(lines[head]) | {"overrides": overrides}).encode() + b"\n"
    with pytest.raises(UsageError, match=rf"line {head + 1}: thread\.overrides: .*to null"):
        await take(second, lines, find_settings=lambda _: parse("").effective(None))
    assert not [key async for key in list_keys(second)]


def say(key: Key, secret: bytes, texts: Sequence[str]) -> MemoryBuilder:
    """Build a thread of messages with the fingerprints that the proxy gives them."""
    thread = MemoryBuilder(key)
    for number, text in enumerate(texts):
        raw = json.dumps({"role": "assistant" if number % 2 else "user", "content": text})
        thread.say(read_item(raw.encode(), fingerprint_key(secret, key.tenant), "chat"))
    return thread


async def test_another_secret_recognises_the_same_messages(stores: tuple[Store, Store]) -> None:
    """Fingerprints and chains are those that the messages would have had here from the start, and
    an observation names the chain of what it covers."""
    first, second = stores
    await first.adopt_secret(OLD)
    await second.adopt_secret(NEW)
    key, moved_key = Key(HASHED, "r", "t"), Key("team", "r", "t")
    thread = say(key, OLD, "abcdefgh")
    memory = await first.commit(Memory(key=key), thread.memory())
    memory = await first.commit(memory, thread.cover(3).cover(2).chunk(1).memory())
    lines = await export(first)
    with pytest.raises(UsageError, match="--tenant-map"):
        await take(second, lines)
    result = await take(second, lines, tenants={HASHED: "team"})
    assert result.is_rekeyed
    found = await second.load(moved_key)
    expected = say(moved_key, NEW, "abcdefgh")
    assert [m.item.fp for m in await second.messages(moved_key, 0)] == [
        expected.every[seq].item.fp for seq in expected.live
    ]
    assert found.chain == expected.memory().chain != memory.chain
    assert found.log.entries[-1].chain == found.recent[-1].chain
    assert found.chunks[0].chain == found.tail[0].chain
    assert [entry.text for entry in found.log.entries] == [e.text for e in memory.log.entries]
    again = await take(second, lines, tenants={HASHED: "team"})
    assert (again.threads, again.present_threads) == (0, 1)


async def test_another_secret_gives_a_shared_log_its_labels(stores: tuple[Store, Store]) -> None:
    """Also in the words of its notes."""
    first, second = stores
    await first.adopt_secret(OLD)
    await second.adopt_secret(NEW)
    shared = await share_log(first, reflected=True)
    keys = [KEY._replace(thread=name) for name in "AB"]
    old = await first.load(resource_key(KEY))
    await take(second, await export(first))
    new = await second.load(resource_key(KEY))
    assert len(new.log.entries) == len(old.log.entries)
    for key in keys:
        thread = await second.load(key)
        before, label = label_thread(OLD, key), label_thread(NEW, key)
        assert before not in str(new.log)
        assert log_sharing.is_consistent(log_sharing.attach_log(thread, new, label))
        parts = [part for entry in new.log.entries for part in entry.parts if part.label == label]
        assert max(part.last for part in parts) == thread.coverage
        assert {part.chain for part in parts if part.last == thread.coverage} == {
            thread.recent[-1].chain
        }
        assert thread.recent[-1].chain != shared.stored[key.thread].recent[-1].chain


async def test_a_broken_line_names_its_number(stores: tuple[Store, Store]) -> None:
    """And nothing of the file is imported."""
    first, second = stores
    await store_eventful(first)
    lines = await export(first)
    broken = [
        (2, b"{not json}\n", "no JSON"),
        (2, b"\n", "no JSON"),
        (2, b"[]\n", "no JSON object"),
        (3, b'{"om":"dream"}\n', "'dream'"),
        (3, lines[2].replace(b'"seq":1', b'"seq":"1"'), "message.seq is not a int"),
        (3, lines[2].replace(b'"state":"', b'"state":"un'), "message.state is not one of"),
        (2, lines[1].replace(b'"resource":"', b'"resource":"\\u0000'), "thread.resource"),
        (2, lines[1].replace(b'"label"', b'"lable"'), "thread.label"),
        (1, lines[0].replace(b'"format":1', b'"format":3'), "format 3"),
        (1, lines[0].replace(b'"format":1', b'"format":2'), "header"),
        (1, lines[1], "header"),
    ]
    for number, line, said in broken:
        assert lines[number - 1] != line
        with pytest.raises(UsageError, match=f"line {number}: .*{said}"):
            await take(second, [*lines[: number - 1], line, *lines[number:]])
    for cut in (lines[:-1], lines[:3]):
        with pytest.raises(UsageError, match=f"line {len(cut)}: .*breaks off.*export it again"):
            await take(second, cut)
    entry_free = [line for line in lines if b'"om":"observation"' not in line]
    with pytest.raises(UsageError, match="the notes hold no entry"):
        await take(second, entry_free)
    assert not [key async for key in list_keys(second)]


async def test_unknown_fields_are_left_out_and_told(stores: tuple[Store, Store]) -> None:
    """Of a release that says more about a thread. Fields that this one misses have defaults."""
    first, second = stores
    await store_eventful(first)
    lines = await export(first)
    newer = list(lines)
    newer[1] = newer[1].replace(b'{"om":"thread"', b'{"om":"thread","mood":"calm"')
    newer[2] = newer[2].replace(b'{"om":"message"', b'{"om":"message","weight":3')
    assert (await take(second, newer)).unknown_fields == ("message.weight", "thread.mood")


async def test_a_stored_thread_is_not_overwritten(stores: tuple[Store, Store]) -> None:
    """The import says so before it writes another one, or leaves it as it is."""
    first, second = stores
    for name in ("a", "b"):
        await first.commit(
            Memory(key=KEY._replace(thread=name)),
            MemoryBuilder(KEY._replace(thread=name)).chat(2).memory(),
        )
    lines = await export(first, await first.secret())
    await second.adopt_secret(await first.secret())
    key = KEY._replace(thread="b")
    mine = await second.commit(Memory(key=key), MemoryBuilder(key).chat(4).memory())
    with pytest.raises(Conflict, match="another state of 1 threads: b"):
        await take(second, lines)
    assert [listed async for listed, _ in list_keys(second)] == [key]
    dry = await take(second, lines, keeps_stored=True, is_dry_run=True)
    assert (dry.threads, dry.kept_threads) == (1, 1)
    assert [listed async for listed, _ in list_keys(second)] == [key]
    result = await take(second, lines, keeps_stored=True)
    assert (result.threads, result.kept_threads) == (1, 1)
    assert await second.load(key) == mine


@pytest.mark.parametrize(
    ("record", "value"),
    [
        ("thread", {"coverage": -5}),
        ("thread", {"coverage": 10**9}),
        ("thread", {"next_seq": 0}),
        ("message", {"seq": 0}),
        ("message", {"seq": -1}),
        ("message", {"seq": 3}),
        ("message", {"parent": 999}),
        ("message", {"tokens": -4}),
    ],
    ids=str,
)
async def test_numbers_that_no_store_wrote_are_refused(
    stores: tuple[Store, Store], record: str, value: dict[str, int]
) -> None:
    """Before anything is written."""
    first, second = stores
    await first.commit(Memory(key=KEY), MemoryBuilder().chat(2).memory())
    lines = [json.loads(line) for line in await export(first, await first.secret())]
    place = next(n for n, line in enumerate(lines) if line["om"] == record)
    assert lines[place].keys() >= value.keys()
    lines[place] |= value
    with pytest.raises(UsageError, match="line"):
        await take(second, [msgspec.json.encode(line) for line in lines])
    assert [listed async for listed, _ in list_keys(second)] == []


async def test_a_refused_import_leaves_the_secret(stores: tuple[Store, Store]) -> None:
    """Receipts and names of tenants stand under it: only an import that writes replaces it."""
    first, second = stores
    memory = replace(MemoryBuilder().chat(3).memory(), scope="resource")
    log = Memory(key=resource_key(KEY))
    await first.commit_shared(Change(Memory(key=KEY), memory), Change(log, log))
    secret, own_secret = await first.secret(), await second.secret()
    lines = await export(first, secret)
    refused = [line for line in lines if b'"thread":""' not in line]
    with pytest.raises(UsageError):
        await take(second, refused)
    await take(second, lines, is_dry_run=True)
    assert await second.secret() == own_secret
    await take(second, lines)
    assert await second.secret() == secret


async def test_a_thread_without_its_shared_log_is_refused(stores: tuple[Store, Store]) -> None:
    """Its messages would be in notes that nobody has."""
    first, second = stores
    memory = replace(MemoryBuilder().chat(3).memory(), scope="resource")
    log = Memory(key=resource_key(KEY))
    await first.commit_shared(Change(Memory(key=KEY), memory), Change(log, log))
    records = [record async for record in MemoryExporter(first).export_thread(KEY)]
    with pytest.raises(UsageError, match="export the whole resource"):
        await take(second, [msgspec.json.encode(record) for record in records])


async def test_an_interrupted_import_goes_on(
    stores: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut after any thread: each is there as a whole or not at all, and a second run does the
    rest."""
    first, second = stores
    keys = [KEY._replace(thread=name) for name in "abc"]
    for key in keys:
        await store_eventful(first, key)
    lines = await export(first, await first.secret())
    restore = second.restore
    written = []

    async def break_off(thread: Any, over: int = 0) -> Memory:
        if len(written) == 2:
            raise ConnectionError("killed")
        written.append(thread)
        return await restore(thread, over)

    monkeypatch.setattr(second, "restore", break_off)
    with pytest.raises(ConnectionError):
        await take(second, lines)
    assert [key async for key, _ in list_keys(second)] == keys[:2]
    monkeypatch.undo()
    result = await take(second, lines)
    assert (result.threads, result.present_threads) == (1, 2)
    assert await export(second, await second.secret()) == lines


async def test_only_the_last_record_of_a_thread_counts(stores: tuple[Store, Store]) -> None:
    """A turn came while it was exported; and a thread that was forgotten meanwhile is left out."""
    first, second = stores
    for name in "ab":
        key = KEY._replace(thread=name)
        await first.commit(Memory(key=key), MemoryBuilder(key).chat(3).memory())
    lines = await export(first, await first.secret())
    begins = [number for number, line in enumerate(lines) if b'"om":"thread"' in line]
    once, rest = lines[begins[0] : begins[1]], lines[begins[1] :]
    gone = KEY._replace(thread="b")._asdict()
    forgotten = msgspec.json.encode({"om": "forgotten", **gone}) + b"\n"
    end = rest[-1].replace(b'"threads":2', b'"threads":1')
    twice = [lines[0], *once[:3], *once, *rest[:-1], forgotten, end]
    assert (await take(second, twice)).threads == 1
    assert await read_whole_thread(second, KEY._replace(thread="b")) is None
    assert len((await second.load(KEY._replace(thread="a"))).tail) == 3


async def test_every_export_of_a_file_is_whole(stores: tuple[Store, Store]) -> None:
    """One that breaks off before another one, or lacks a thread, is refused by the line."""
    first, second = stores
    for key in (KEY, KEY._replace(thread="b"), Key("z", "r", "t")):
        await first.commit(Memory(key=key), MemoryBuilder(key).chat(3).memory())
    lines = await export(first)
    start = next(n for n, line in enumerate(lines) if n and b'"om":"export"' in line)
    later = next(n for n, line in enumerate(lines) if b'"thread":"thread"' in line)
    for cut in (1, 3, later, start - 1):
        with pytest.raises(UsageError, match=f"line {cut + 1}: .*breaks off"):
            await take(second, [*lines[:cut], *lines[start:]])
    with pytest.raises(UsageError, match=f"line {start + 1}: .*header"):
        await take(second, [*lines[:start], *lines[1:]])
    lacking = [*lines[:1], *lines[later:]]
    end = start - (later - 1)
    with pytest.raises(UsageError, match=f"line {end}: .* 2 threads, and 1 stand"):
        await take(second, lacking)
    assert not [key async for key in list_keys(second)]


async def test_the_last_thread_is_checked_before_the_first_is_written(
    stores: tuple[Store, Store],
) -> None:
    first, second = stores
    await store_eventful(first, KEY._replace(thread="a"))
    await store_eventful(first, KEY._replace(thread="b"))
    lines = await export(first, await first.secret())
    later = next(n for n, line in enumerate(lines) if b'"thread":"b"' in line)
    rest = [line for line in lines[later:] if b'"om":"observation"' not in line]
    with pytest.raises(UsageError, match="the notes hold no entry"):
        await take(second, [*lines[:later], *rest])
    assert not [key async for key in list_keys(second)]


async def test_a_forgotten_thread_needs_no_shared_log(stores: tuple[Store, Store]) -> None:
    """The export says that what stood before of it does not count."""
    first, second = stores
    await share_log(first, "A")
    lines = await export(first)
    head = next(line for line in lines if b'"thread":"A"' in line)
    gone = {"om": "forgotten", **KEY._replace(thread="A")._asdict()}
    end = lines[-1].replace(b'"threads":1', b'"threads":0')
    result = await take(second, [lines[0], head, msgspec.json.encode(gone), end])
    assert result.threads == 0


async def test_a_thread_beyond_its_shared_log_is_refused(stores: tuple[Store, Store]) -> None:
    """Its prompts would leave messages out that no note is about."""
    first, second = stores
    shared = await share_log(first, "AB")
    before = await export(first)
    shared.led.say("B", 3)
    await shared.commit("B")
    shared.led.observe("B", 2)
    shared.led.activate("B")
    await shared.commit("B")
    after = await export(first)
    old, new = (
        [n for n, line in enumerate(lines) if b'"om":"thread"' in line] for lines in (before, after)
    )
    mixed = [*before[: old[1]], *after[new[1] :]]
    with pytest.raises(UsageError, match=f"line {old[1] + 1 + new[2] - new[1]}: thread B .*reach"):
        await take(second, mixed)
    assert not [key async for key in list_keys(second)]
    assert (await take(second, after)).threads == 2


async def test_a_kept_log_keeps_its_threads_out(stores: tuple[Store, Store]) -> None:
    """With another shared log, the notes that an imported thread counts on would be missing."""
    first, second = stores
    await share_log(first, "AB")
    lines = await export(first, await first.secret())
    await second.adopt_secret(await first.secret())
    await share_log(second, "A")
    result = await take(second, lines, keeps_stored=True)
    assert result.threads == 0
    assert (await second.load(KEY._replace(thread="B"))).version == 0
