"""Clients that close the connection at `data: [DONE]`, as openai-python does, while the model
server has not ended its answer."""

from __future__ import annotations

from pathlib import Path

import orjson

from tests.e2e.raw_upstream import EVENTS, run_with_raw_upstream
from tests.support.raw_client import RawClient
from tests.support.upstream_server import SSE_HEAD, Call, chunk

THREAD = (b"X-OM-Thread: t", b"Authorization: Bearer k")


async def open_at_the_end(call: Call) -> None:
    call.send(SSE_HEAD + b"".join(map(chunk, EVENTS)))
    await call.closed.wait()


def thin_body(text: str) -> bytes:
    return orjson.dumps(
        {"model": "m", "stream": True, "messages": [{"role": "user", "content": text}]}
    )


async def test_the_same_words_again(tmp_path: Path) -> None:
    """They have seen the reply: what they say then is new, and takes nothing back."""
    async with run_with_raw_upstream(tmp_path) as site:
        site.server.script = open_at_the_end
        for text in ("one", "go on", "go on"):
            client = await RawClient.connect(site.port)
            client.send(thin_body(text), headers=THREAD)
            await client.until(b"data: [DONE]\n\n")
            await client.close()
            await site.app.background.wait_idle()
            if text == "one":
                await site.ask(thin_body("two"), *THREAD)
                site.server.script = open_at_the_end
        (info,) = await site.app.store.threads(None)
        said = [
            m.item.raw for m in await site.app.store.messages(info.key, 0) if m.item.role == "user"
        ]
        assert [orjson.loads(raw)["content"] for raw in said] == ["one", "two", "go on", "go on"]
