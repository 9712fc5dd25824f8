"""Five hundred hostile texts as messages, notes, titles, and names of threads and resources: what the
admin API answers, and what the commands print. (What enters a prompt: test_payloads.py.)"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import orjson
import pytest
import pytest_asyncio
from msgspec.structs import replace

from om_proxy.cli import main
from om_proxy.engine.event_feed.envelope import write_headers, write_request
from om_proxy.engine.event_feed.inline import MAX_INLINE_BYTES, write_comments, write_part
from om_proxy.memory.events.parts import Event, ThreadUpdate
from om_proxy.memory.ledger import Account
from om_proxy.memory.model import Item, Key, Memory, Message, Observation, ObservationLog
from om_proxy.settings.identity.naming import is_valid_name
from om_proxy.settings.identity.tenants import LOCAL_TENANT
from om_proxy.storage.shared.event_encoding import encode_event
from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.storage.values.records import LedgerBatch, LedgerLine, StoredEvent
from om_proxy.wire.apis.sse import EventDecoder
from tests.cli.command_line import run_om_proxy
from tests.cli.stored_memory import CONFIG
from tests.cli.test_answers import run_on_terminal
from tests.e2e.running import Running, run_with_scripted_models
from tests.e2e.test_event_streams import list_events, open_stream, take
from tests.storage.event_contract import activation
from tests.support.hostile_texts import (
    encode_json,
    encode_path,
    find_terminal_commands,
    list_hostile_names,
    list_hostile_texts,
    list_megabyte_lines,
    list_utf8_texts,
)

HOSTILE_TEXTS = list_hostile_texts()
HOSTILE_NOTES = list_utf8_texts()  # an observer's answer has lost its halves of characters
NAMES = list_hostile_names()
HOSTILE = "hostile"
TEXTS_PER_NOTE = 20
SAID_AT = 1.7e9
JSON = {"content-type": "application/json"}
# A title that is set makes its thread due. With this, no note is made between two readings.
QUIET = "observation: {message_tokens: 10_000_000}"


def list_keys() -> list[Key]:
    """Return a thread for each title: as many with hostile names as there are."""
    names = [*NAMES, *(f"plain-{number}" for number in range(len(HOSTILE_NOTES) - len(NAMES)))]
    return [
        Key(LOCAL_TENANT, NAMES[7 * number % len(NAMES)], name) for number, name in enumerate(names)
    ]


def build_messages() -> Iterator[Message]:
    for number, text in enumerate([*HOSTILE_TEXTS, *list_megabyte_lines()], 1):
        raw = encode_json({"role": "user", "content": text})
        yield Message(number, Item(raw, "user", number.to_bytes(16)), bytes(16), 9, SAID_AT)


def build_notes() -> Iterator[Observation]:
    for number, start in enumerate(range(0, len(HOSTILE_NOTES), TEXTS_PER_NOTE), 1):
        text = "\n".join(HOSTILE_NOTES[start : start + TEXTS_PER_NOTE])
        yield Observation(
            id=number,
            after=number - 1,
            last=number,
            chain=bytes(16),
            text=text,
            tokens=30,
            source_tokens=40,
            at=SAID_AT,
            task=text,
            suggestion=text,
            model=HOSTILE_NOTES[number],
        )


def write_event(text: str, key: Key) -> Event:
    """Return an event whose names, text and title are hostile."""
    if len(text) % 2:
        return activation(text, text, text)
    update = ThreadUpdate(
        record_id=text, thread_id=key.thread, cycle_id=text, new_title=text, timestamp=text
    )
    return Event(SAID_AT, update)


async def store_hostile_threads(folder: Path) -> None:
    """Store one thread whose messages and notes are the texts, and one thread for each title."""
    (folder / "om.yaml").write_text(CONFIG)
    store = await SqliteStore.open(folder / "om.db")
    key, messages, notes = (
        Key(LOCAL_TENANT, HOSTILE, HOSTILE),
        tuple(build_messages()),
        tuple(build_notes()),
    )
    said = Memory(key=key, tail=messages, next_seq=len(messages) + 1, model="m", turn_at=SAID_AT)
    stored = await store.commit(Memory(key=key), said)
    covered = len(notes) - 1
    observed = replace(
        stored,
        coverage=covered,
        covered_count=covered,
        recent=tuple(message.mark for message in messages[:covered]),
        tail=messages[covered:],
        log=ObservationLog(entries=notes[:-1]),
        chunks=notes[-1:],
        next_id=len(notes) + 1,
    )
    await store.commit(stored, observed)
    await store.add_events(key, [write_event(note.text, key) for note in notes])
    for key, title in zip(list_keys(), HOSTILE_NOTES, strict=True):
        short = Memory(key=key, tail=messages[:1], next_seq=2, title=title, turn_at=SAID_AT)
        await store.commit(Memory(key=key), short)
    spent = Account(*range(1, len(Account.__struct_fields__) + 1))
    lines = {
        LedgerLine(key.tenant, key.resource, 20_000, model[:200], "actor", "full"): spent
        for key, model in zip(list_keys(), HOSTILE_NOTES, strict=True)
    }
    await store.add_to_ledger(LedgerBatch("hostile", 1, lines))
    await store.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    asyncio.run(store_hostile_threads(folder))
    return folder


# ── the admin API ─────────────────────────────────────────────────────────────────────────────────


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def run(folder: Path) -> AsyncIterator[Running]:
    async with run_with_scripted_models(folder, QUIET) as running:
        yield running


def repair(text: str) -> str:
    """Return the text as JSON in UTF-8 can hold it."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


def read_json(answer: httpx.Response) -> object:
    """Return what the answer says. It is one line of UTF-8."""
    assert answer.headers["content-type"] == "application/json"
    assert not re.search(rb"[\x00-\x1f]", answer.content)
    return orjson.loads(answer.content)


@pytest.mark.asyncio(loop_scope="module")
async def test_names_and_titles_are_data(run: Running) -> None:
    url = f"{run.base}/om/v1/threads"
    lines = read_json(await run.http.get(f"{url}?limit=1000"))
    assert isinstance(lines, dict)
    found = {(line["resource"], line["thread"]): line["title"] for line in lines["items"]}
    expected = {key[1:]: title for key, title in zip(list_keys(), HOSTILE_NOTES, strict=True)}
    assert found == expected | {(HOSTILE, HOSTILE): None}
    for key in list_keys():
        path = f"{url}/{encode_path(key.thread)}?resource={encode_path(key.resource)}"
        status = read_json(await run.http.get(path))
        assert isinstance(status, dict)
        assert (status["resource"], status["thread"]) == key[1:]


@pytest.mark.asyncio(loop_scope="module")
async def test_a_name_that_none_can_have_is_not_found(run: Running) -> None:
    """It is looked up all the same, and nothing breaks."""
    for name in (text for text in HOSTILE_TEXTS if not is_valid_name(text)):
        answer = await run.http.get(f"{run.base}/om/v1/threads/{encode_path(name)}")
        assert answer.status_code == 404, name
        read_json(answer)


@pytest.mark.asyncio(loop_scope="module")
async def test_notes_are_data(run: Running) -> None:
    answer = read_json(await run.http.get(f"{run.base}/om/v1/threads/{HOSTILE}/observations"))
    assert isinstance(answer, dict)
    texts = [note["text"] for note in (*answer["log"], *answer["chunks"])]
    assert texts == [note.text for note in build_notes()]


@pytest.mark.asyncio(loop_scope="module")
async def test_messages_are_data(run: Running) -> None:
    """Below the notes that were made from them, as they were sent."""
    url = f"{run.base}/om/v1/threads/{HOSTILE}/observations"
    for note in list(build_notes())[:-1]:
        entry = read_json(await run.http.get(f"{url}/{note.id}?messages=true"))
        assert isinstance(entry, dict)
        assert entry["messages"][0]["raw"]["content"] == repair(HOSTILE_TEXTS[note.id - 1])


@pytest.mark.asyncio(loop_scope="module")
async def test_titles_can_be_set(run: Running) -> None:
    """Or are refused, and nothing breaks; a megabyte is too large."""
    url = f"{run.base}/om/v1/threads/{HOSTILE}"
    kept = 0
    for text in HOSTILE_TEXTS:
        answer = await run.http.patch(url, content=encode_json({"title": text}), headers=JSON)
        found = read_json(answer)
        assert isinstance(found, dict)
        if answer.status_code == 200:
            assert found["title"].split() == repair(text).split()
            kept += 1
        else:
            assert found["error"]["code"] in ("om_bad_title", "om_bad_request")
    assert kept > len(HOSTILE_TEXTS) / 2
    for line in list_megabyte_lines():
        answer = await run.http.patch(url, content=encode_json({"title": line}), headers=JSON)
        assert answer.status_code == 413


@pytest.mark.asyncio(loop_scope="module")
async def test_a_preview_shows_what_was_sent(run: Running) -> None:
    url = f"{run.base}/om/v1/threads/new/context"
    for text in (*HOSTILE_TEXTS, *list_megabyte_lines()):
        message = {"role": "user", "content": text}
        body = encode_json({"model": "scripted-actor", "messages": [message]})
        found = read_json(await run.http.post(url, content=body, headers=JSON))
        assert isinstance(found, dict)
        assert found["messages"] == [{"role": "user", "content": repair(text)}]


@pytest.mark.asyncio(loop_scope="module")
async def test_events_are_data(run: Running) -> None:
    """In a stream each event is a few lines of its own, whatever titles and names hold."""
    for key in list_keys()[: len(NAMES)]:
        url = f"{run.base}/om/v1/threads/{encode_path(key.thread)}?resource={encode_path(key.resource)}"
        title = f"About {key.thread[:40]}"
        await run.http.patch(url, content=encode_json({"title": title}), headers=JSON)
    nobody = {"authorization": ""}
    listed = await list_events(run, **nobody)
    assert {event["thread"] for event in listed} >= set(NAMES)
    async with open_stream(run, "/events?cursor=0", **nobody) as pieces:
        found = await take(pieces, len(listed))
    assert [json.loads(piece["data"]) for piece in found] == listed
    for piece in found:
        assert set(piece) == {"id", "event", "data"}
        assert piece["data"].isascii()


# ── commands ──────────────────────────────────────────────────────────────────────────────────────

COMMANDS = {
    "threads": ["threads"],
    "show": ["threads", HOSTILE],
    "notes": ["notes", "show", HOSTILE],
    "context": ["context", HOSTILE, "--text", HOSTILE_TEXTS[0]],
    "messages": ["messages", HOSTILE, "--all", "--limit", "1000"],
    "excerpts": ["messages", HOSTILE, "--all", "--excerpt", "--limit", "1000"],
    "events": ["events"],
    "events of a thread": ["events", HOSTILE],
    "stats": ["stats", "--by", "thread", "--limit", "1000"],
    "stats of resources": ["stats", "--by", "resource", "--limit", "1000"],
    "stats of models": ["stats", "--by", "model", "--limit", "1000"],
    "export": ["export", HOSTILE],
}
WITHOUT_JSON = ("export",)  # it prints nothing else
# what the commands themselves tell a terminal: headings in bold
STYLES = re.compile(r"\x1b\[[01]m")


def complete(command: list[str]) -> list[str]:
    """Return the arguments of a command, with the thread's names."""
    named = ["--tenant", LOCAL_TENANT, "--config", "om.yaml"]
    if HOSTILE in command:
        named += ["--resource", HOSTILE]
    return [*command, *named]


@pytest.mark.sample(16)  # each command at least once
@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_terminal_obeys_nothing(
    folder: Path,
    name: str,
    options: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nor does one behind a pipe."""
    if options and name in WITHOUT_JSON:
        pytest.skip("an export is JSON anyway")
    monkeypatch.chdir(folder)
    assert main([*complete(COMMANDS[name]), *options]) == 0
    out = capsys.readouterr().out
    assert len(out) > 100
    assert find_terminal_commands(out) == []
    if options:
        assert orjson.loads(out)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", ["threads", "show", "notes", "messages", "events", "export"])
def test_a_terminal_is_told_headings_only(folder: Path, name: str) -> None:
    """On a real one, where the commands write columns and headings."""
    shown = run_on_terminal(*complete(COMMANDS[name]), cwd=folder)
    assert len(shown) > 100
    assert find_terminal_commands(STYLES.sub("", shown)) == []
    assert "Traceback" not in shown


def test_an_export_in_a_file_is_what_the_api_answers(folder: Path) -> None:
    """To the byte; on stdout it is the same JSON in other characters."""
    arguments = complete(COMMANDS["export"])
    written = run_om_proxy(*arguments, "--output", "hostile.jsonl", cwd=folder)
    assert written.returncode == 0, written.stderr
    kept = (folder / "hostile.jsonl").read_bytes()
    answered = asyncio.run(ask_export(folder))
    assert kept == answered
    assert find_terminal_commands(kept.decode())
    printed = run_om_proxy(*arguments, cwd=folder).stdout
    assert printed.encode() != kept
    assert list(map(orjson.loads, printed.splitlines())) == list(
        map(orjson.loads, kept.splitlines())
    )


async def ask_export(folder: Path) -> bytes:
    async with run_with_scripted_models(folder, QUIET) as run:
        url = f"{run.base}/om/v1/export?thread={HOSTILE}&resource={HOSTILE}"
        return (await run.http.get(url)).content


# ── frames: what is sent line by line ─────────────────────────────────────────────────────────────

HOSTILE_EVENTS = [
    StoredEvent(number, Key(name, name, name), *encode_event(activation(text, text, text)))
    for number, (name, text) in enumerate(
        zip(itertools.cycle(NAMES), [*HOSTILE_TEXTS, *list_megabyte_lines()], strict=False), 1
    )
]


@pytest.mark.parametrize("with_text", [True, False], ids=["texts", "no texts"])
def test_comments_break_no_stream(with_text: bool) -> None:
    """A reader of the stream finds the reply's own events and no other, and a reader of comments
    finds one of each."""
    reply = b'data: {"choices": []}\n\ndata: [DONE]\n\n'
    for event in HOSTILE_EVENTS:
        status = write_part("data-om-status", json.dumps({"threadId": event.key.thread}))
        comments = write_comments(status, [event], with_text=with_text)
        assert len(comments) <= MAX_INLINE_BYTES
        found = [frame.data for frame in EventDecoder().feed(comments + reply)]
        assert found == [b'{"choices": []}', b"[DONE]"]
        lines = comments.decode().splitlines()  # at every end of a line that Unicode knows
        assert [line for line in lines if line] == lines[::2]
        told, *happened = [json.loads(line.removeprefix(": om ")) for line in lines[::2]]
        assert told["data"]["threadId"] == event.key.thread
        texts = {part["data"]["observations"] for part in happened}
        assert texts <= {None, json.loads(event.data)["observations"]}
        assert with_text or texts <= {None}


@pytest.mark.parametrize("with_text", [True, False], ids=["texts", "no texts"])
def test_a_webhook_gets_data(with_text: bool) -> None:
    """The body is one line of JSON in ASCII, and no text is a header."""
    for event in HOSTILE_EVENTS:
        request = write_request(event, with_text=with_text)
        assert re.fullmatch(rb"[ -~]+", request.body)
        found = json.loads(request.body)
        assert (found["tenant"], found["resource"], found["thread"]) == event.key
        said = json.loads(event.data)["observations"]
        assert found["data"]["observations"] == (said if with_text else None)
        headers = write_headers(request, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", SAID_AT)
        assert all(re.fullmatch("[ -~]+", value) for value in headers.values())
