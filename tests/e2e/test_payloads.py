"""Memory is data: whatever a text holds, no tag of ours is opened or closed by it, nobody else
speaks in it, and no log holds it.

Each sink is given every payload and read by the generous reader of tests/memory/test_escaping.py,
which knows nothing of how we escape: what it finds must be what it finds around harmless text.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import orjson
import pytest

from om_proxy.agents.model_access.llm import Target
from om_proxy.agents.observer import Observer, ObserverTask
from om_proxy.agents.reflector import Reflector
from om_proxy.agents.transcript_text import render_transcript
from om_proxy.common.errors import Unusable
from om_proxy.memory.notes.observations import parse_observation
from om_proxy.memory.prompt.context import ContextOptions, observation_block, render_other_threads
from om_proxy.observability.console import render_event
from om_proxy.observability.logs import BufferedLineWriter, render_json_line
from om_proxy.testing.scripted import OBSERVER, REFLECTOR, message_text
from om_proxy.wire.apis.message_parts import summarize_message
from tests.agents.messages import assistant, messages, result, user
from tests.agents.scripted_llm import ScriptedLLM, Waits, know_nothing, texts, words
from tests.agents.test_observer import Settings
from tests.e2e.running import run_with_scripted_models
from tests.e2e.tenancy.world import Minds
from tests.e2e.written import collect_log_lines
from tests.memory.test_escaping import tags_of
from tests.support.hostile_texts import (
    LABEL,
    find_terminal_commands,
    list_hostile_texts,
    list_utf8_texts,
)

UTC = ZoneInfo("UTC")
PAYLOADS = list_utf8_texts()  # a reader of JSON replaces halves of characters before any sink
COUNT = len(PAYLOADS)
HARMLESS = "a plain word or two"
TAG_OF_OURS = re.compile(
    r"^</?(?:transcript|observations|previous-observations|current-task(?: as-of=.[\w, :]+.)?"
    r"|suggested-response|thread-title|about-assistant)>$",
    re.MULTILINE,
)
Sink = Callable[[str], str]


def transcript(text: str) -> str:
    """The observer's new messages, with the text wherever a client can put one."""
    parts = [
        {"type": "text", "text": text},
        {"type": "file", "file": {"filename": text, "file_data": "data:x/y;base64,AA"}},
    ]
    said = (
        {**user(text), "name": text},
        user([*parts, {"type": "image_url", "image_url": {"url": f"https://host/{text}.png"}}]),
        assistant(text, ("c1", text, text)),
        result("c1", text),
        {"role": text, "content": text},
    )
    return render_transcript(messages(*said), UTC, tokens=words).text


def notes(text: str) -> str:
    """What an actor reads of notes: one thread's, and in sections."""
    blocks = [
        observation_block(
            [text, f"* 🔴 (10:00) {text}", text],
            task=text,
            suggestion=text,
            scope=scope,
            render_date=datetime(2023, 5, 22, tzinfo=UTC),
            options=ContextOptions(relative_time=True),
            labels=labels,
        )
        for scope, labels in (("thread", ()), (f"resource:{LABEL}", (LABEL, None, "f" * 16)))
    ]
    return "\n\n".join(blocks)


def others(text: str) -> str:
    """What an actor reads of its resource's other threads."""
    raw = [
        orjson.dumps(said)
        for said in (
            user(text),
            {"role": text, "content": text},
            assistant(text, ("c", text, text)),
        )
    ]
    return render_other_threads([(LABEL, [summarize_message(one, "chat") for one in raw])])


def parsed(text: str) -> str:
    """What an actor reads of an observer's answer that says it."""
    try:
        made = parse_observation(
            f"<observations>\n* 🔴 (10:00) before\n* 🔴 (10:01) {text}\n</observations>",
            source_tokens=999,
            tokens=words,
        )
    except Unusable:
        return ""
    return notes(made.text)


@pytest.mark.parametrize("sink", [transcript, notes, others])
def test_no_tag_of_ours(sink: Sink) -> None:
    """As many tags as around harmless text, and in the same order."""
    expected = tags_of(sink(HARMLESS))
    assert expected
    assert [text for text in PAYLOADS if tags_of(sink(text)) != expected] == []


def test_nor_through_an_observer_s_answer() -> None:
    """Also not where a payload has changed what is read out of the answer."""
    expected = tags_of(notes(HARMLESS))
    found = [(text, parsed(text)) for text in PAYLOADS]
    assert sum(bool(shown) for _, shown in found) > COUNT // 2
    assert [text for text, shown in found if shown and tags_of(shown) != expected] == []


@pytest.mark.parametrize(("sink", "left"), [(transcript, 9), (others, 5)])
def test_nobody_else_speaks(sink: Sink, left: int) -> None:
    """What is ours begins at the left edge, and nothing else does: no speaker, no date, no
    fence."""
    for text in PAYLOADS:
        lines = [line for line in sink(text).splitlines() if not line.startswith("  ")]
        assert len(lines) <= left, (text, lines)
    assert len([line for line in sink(HARMLESS).splitlines() if not line.startswith("  ")]) == left


async def asked_observer(text: str) -> str:
    llm = ScriptedLLM.of(f"<observations>\n* 🔴 (10:00) {HARMLESS}\n</observations>")
    observer = Observer(llm, tokens=words, abilities=know_nothing, sleep=Waits(), rng=Random(1))
    known = {"previous": text, "task": text, "title": text, "want_title": True}
    task = ObserverTask(messages=messages(user(text), user(HARMLESS * 9)), **known)  # type: ignore[arg-type] # by name
    await observer.observe(task, [Target("a")], Settings())
    return texts(llm.asked[0][1])


async def asked_reflector(text: str) -> str:
    llm = ScriptedLLM.of("<observations>\n* 🔴 (10:00) x\n</observations>")
    reflector = Reflector(llm, tokens=words, abilities=know_nothing, sleep=Waits(), rng=Random(1))
    await reflector.reflect(
        f"{text}\n{HARMLESS * 9}",
        target_tokens=40,
        instruction=None,
        targets=[Target("a")],
        settings=Settings(),
    )
    return texts(llm.asked[0][1])


@pytest.mark.parametrize("asked", [asked_observer, asked_reflector])
async def test_what_memory_models_are_asked(asked: Any) -> None:
    """Notes, hints and titles that are known already stand in their tags, whatever they are."""
    expected = tags_of(await asked(HARMLESS))
    assert expected
    assert [
        text for text in PAYLOADS if text.strip() and tags_of(await asked(text)) != expected
    ] == []


def test_what_is_logged() -> None:
    """A line is one line, whatever a field would hold; nothing in it reaches a terminal as a
    command."""
    out = io.BytesIO()
    lines = BufferedLineWriter(out)
    for text in PAYLOADS:
        lines.warning(render_json_line(None, "warning", {"event": "e", "thread": text}))
    written = out.getvalue().decode()
    assert len(written.split("\n")) == COUNT + 1
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", written)


@pytest.mark.parametrize("is_colored", [False, True])
def test_what_a_terminal_shows_of_it(is_colored: bool) -> None:
    """In the lines for people, too, of a turn and of any other event."""
    colors = re.compile(r"\x1b\[\d*m")
    for text in list_hostile_texts():
        for fields in ({"event": "turn", "name": text, "model": text}, {"event": text, "at": text}):
            event = {"level": "warning", **fields}
            shown = render_event(event, "10:13:40", is_colored=is_colored)
            plain = colors.sub("", shown) if is_colored else shown
            assert plain.isprintable(), text
            assert find_terminal_commands(plain) == []
            shown.encode()


def pieces(count: int) -> Iterable[str]:
    """All payloads, some to a message, each with a word that nothing but they hold."""
    for start in range(0, COUNT, count):
        yield "\n".join(
            f"pay{n}load is kept in drawer {n}. {PAYLOADS[n]}"
            for n in range(start, min(start + count, COUNT))
        )


async def test_through_the_whole_house(tmp_path: Path) -> None:
    """Said to a real server, noted, condensed and shown again: every prompt of ours holds our tags
    in pairs.

    No log holds a word of it, nor of its headers.
    """
    models = Minds()
    told = {"x-om-resource": "told-resource", "x-om-timezone": "Antarctica/Vostok"}
    small = "observation: {message_tokens: 6000, buffer_tokens: 1500, block_timeout: 5s}, reflection: {observation_tokens: 3000}"
    with collect_log_lines() as out:
        async with run_with_scripted_models(tmp_path, small, models=models) as run:
            talk = run.chat("told-thread", key="sk-told", **told)
            for text in pieces(10):
                _, receipt = await talk.say(text.replace("\x00", ""))
                assert receipt["status"] != "degraded", receipt
                await run.app.background.wait_idle()
            talk.headers["x-om-task"] = "told-task"
            await talk.say("pay0load")
        text = out.text
    assert text
    assert not re.search(r"pay\d+load|told-|Vostok", text)
    minds = {mind: models.requests_to(mind) for mind in (OBSERVER, REFLECTOR)}
    assert minds[OBSERVER]
    shown = [message_text(seen.messages[-1]) for found in minds.values() for seen in found]
    blocks = [
        message_text(m)
        for seen in models.requests_to("scripted-actor")
        for m in seen.messages
        if "notes below" in message_text(m)
    ]
    assert blocks
    assert any("pay7load" in text for text in shown)
    assert any("pay7load" in text for text in blocks)
    for text in (*shown, *blocks):
        ours = [re.sub(r' as-of="[^"]*"', "", found[0]) for found in TAG_OF_OURS.finditer(text)]
        assert ours[::2] == [tag.replace("/", "") for tag in ours[1::2]]
        assert len(set(ours)) == len(ours)
        assert len(tags_of(text)) == len(ours)
