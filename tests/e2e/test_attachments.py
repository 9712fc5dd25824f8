"""Images and files of a conversation (docs/contributing/behaviour.md#observer-input): shown to the
observer, and in the actor's prompt until they are observed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from om_proxy.testing import loopback
from om_proxy.testing.loopback import Receive, Scope, Send
from om_proxy.testing.scripted import ACTOR, OBSERVER, Message, ScriptedServer
from tests.e2e.running import Running, run_with_scripted_models

PICTURE = "data:image/png;base64,iVBORw0KGgo" + "A" * 400
SCAN = "data:image/jpeg;base64,/9j/" + "B" * 400
PDF_DATA_URL = "data:application/pdf;base64,JVBERi0xLjQK" + "C" * 400
SMALL = "observation: {message_tokens: 3000, buffer_tokens: 900, block_timeout: 5s}"
LONG = (
    "Crate {n} weighs {n} kilos, is painted red and goes to dock {n} at Quarry Steps. " * 8
)  # about 180 tokens

SAID: list[dict[str, Any]] = [
    {"type": "text", "text": "See these, and what the report says of crate 7:"},
    {"type": "image_url", "image_url": {"url": PICTURE, "detail": "low"}},
    {"type": "file", "file": {"filename": "report.pdf", "file_data": PDF_DATA_URL}},
    {"type": "file", "file": {"filename": "scan.jpg", "file_data": SCAN}},
]


class Blind(ScriptedServer):
    """An observer that takes no images, and says so as servers do."""

    def __init__(self) -> None:
        super().__init__()
        self.refused = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await loopback.read_body(receive)
        if b'"image_url"' in body and orjson.loads(body)["model"] == OBSERVER:
            self.refused += 1
            error = {
                "message": "Invalid content type. image_url is only supported by certain models.",
                "code": None,
            }
            await loopback.send_json(send, 400, {"error": error})
            return

        async def again() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        await super().__call__(scope, again, send)


async def talk(run: Running, first: object = SAID, turns: int = 4, *, thin: bool = False) -> None:
    """A question with attachments, and turns enough to have it observed. `thin`: what was sent is
    not sent again."""
    chat = run.chat()
    chat.history.append({"role": "user", "content": first})
    reply, _ = await chat.send(chat.history)
    chat.history.append({"role": "assistant", "content": reply})
    for n in range(turns):
        await run.app.background.wait_idle()
        del chat.history[1 : len(chat.history) if thin else 1]
        await chat.say(LONG.format(n=n) * 3)
    await run.app.background.wait_idle()


def parts_of(messages: Sequence[Message], role: str = "user") -> list[dict[str, Any]]:
    return [
        part
        for m in messages
        if m["role"] == role and isinstance(m["content"], list)
        for part in m["content"]
    ]


async def test_the_observer_sees_images(tmp_path: Path) -> None:
    """Each as itself behind its number, which stands in the transcript too; an image sent as a file
    is one; files are named alone."""
    async with run_with_scripted_models(tmp_path, SMALL) as run:
        await talk(run)
        asked = run.models.requests_to(OBSERVER)[0]
        parts = parts_of(asked.messages)
        shown = [
            (parts[n - 1]["text"], p["image_url"]["url"])
            for n, p in enumerate(parts)
            if p["type"] == "image_url"
        ]
        assert [(text.split("\n")[-1], url) for text, url in shown] == [
            ("Image #1:", PICTURE),
            ("Image #2:", SCAN),
        ]
        text = "\n".join(part["text"] for part in parts if part["type"] == "text")
        assert "  [Image #1: image/png]\n  [File #1: report.pdf]\n  [Image #2: scan.jpg]\n" in text
        assert b"JVBERi0xLjQK" not in asked.body


@pytest.mark.parametrize("thin", [False, True], ids=["whole history", "newest message only"])
async def test_an_attachment_leaves_the_prompt_once_observed(tmp_path: Path, thin: bool) -> None:
    """Until its message is covered the actor gets every part of it as the client sent it, and none
    of it afterwards."""
    async with run_with_scripted_models(tmp_path, SMALL) as run:
        await talk(run, turns=9, thin=thin)
        memory = await run.memory()
        assert memory.coverage >= 2
        assert memory.log.entries[0].after == 0
        prompts = [parts_of(seen.messages) for seen in run.models.requests_to(ACTOR)]
        shown = [part[: len(SAID)] == SAID for part in prompts]
        assert shown == sorted(shown, reverse=True)
        assert 3 <= sum(shown) < len(shown)
        gone = run.models.requests_to(ACTOR)[shown.index(False)]
        assert b"base64" not in gone.body


async def test_an_observer_that_takes_no_images(tmp_path: Path) -> None:
    """It is asked once more with the placeholders alone: no failure, and nothing is skipped."""
    models = Blind()
    async with run_with_scripted_models(tmp_path, SMALL, models=models) as run:
        await talk(run)
        memory = await run.memory()
        assert (memory.failures.count, memory.chunked_to >= 2) == (0, True)
        assert models.refused == 1
        asked = run.models.requests_to(OBSERVER)[0]
        assert "[Image #1: image/png]" in str(asked.messages[-1]["content"])
        assert b"base64" not in asked.body


@pytest.mark.parametrize(
    ("part", "placeholder"),
    [
        (
            {"type": "input_audio", "input_audio": {"data": "AAAA" * 100, "format": "wav"}},
            "[File #1: wav]",
        ),
        ({"type": "file", "file": {"file_id": "file-abc"}}, "[File #1: file-abc]"),
        (
            {"type": "image_url", "image_url": {"url": "https://host.example/plan%20b.png?x=1"}},
            "[Image #1: plan b.png]",
        ),
        (
            {"type": "video_url", "video_url": {"url": "https://host.example/a.mp4"}},
            "[File #1: a.mp4]",
        ),
        (
            {"type": "something_new", "something_new": {"name": "unheard of"}},
            "[File #1: unheard of]",
        ),
    ],
)
async def test_whatever_is_attached_is_named(
    tmp_path: Path, part: dict[str, Any], placeholder: str
) -> None:
    """No kind of part stops a turn or an observation, and none goes without a trace."""
    async with run_with_scripted_models(tmp_path, SMALL) as run:
        await talk(run, first=[{"type": "text", "text": "This one:"}, part])
        memory = await run.memory()
        assert (memory.failures.count, memory.chunked_to >= 2) == (0, True)
        assert placeholder in str(run.models.requests_to(OBSERVER)[0].messages[-1]["content"])
        assert parts_of(run.models.requests_to(ACTOR)[0].messages)[-1] == part
