"""Ask for previews of requests, and compare what the store holds before and after."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import orjson

from om_proxy.memory.model import Key
from tests.e2e.running import Running
from tests.support.hostile_texts import encode_path

NOBODY = Key("nobody", "nobody", "nobody")
AUTH = {"authorization": "Bearer sk-a"}

# for `settle`: between two looks at due work nothing is written but what a request causes
SELDOM_LOOKING = "background: {observer_interval: 1h}"


async def settle(run: Running, tmp_path: Path) -> list[str]:
    """Wait until nothing of earlier turns is written any more; return all rows of the store. The
    proxy must run with SELDOM_LOOKING."""
    rows: list[str] = []
    while rows != (rows := dump(tmp_path)) or not rows:
        await asyncio.sleep(0.02)
        await run.app.background.wait_idle()
        await run.app._deliveries.write()
        await run.app.store.mark_delivered({NOBODY: 1})  # waits for marks that are being written
    return rows


def dump(tmp_path: Path) -> list[str]:
    """Return all rows of the store, without leases, the audit (to read text is recorded) and the sums
    of the ledger, which are written every 10 seconds."""
    with closing(sqlite3.connect(tmp_path / "om.db")) as db:
        # a virtual table stands in the tables that it is made of
        tables = db.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'"
        ).fetchall()
        return [
            line
            for (table,) in tables
            if table not in {"audit", "lease"} and not table.startswith("ledger")
            for row in db.execute(f'SELECT * FROM "{table}"')  # noqa: S608 - the file's own name
            if not (line := f"{table} {row!r}").startswith("sqlite_sequence ('audit'")
        ]


async def preview(
    run: Running, thread: str, body: dict[str, Any] | bytes, query: str = "", **headers: str
) -> dict[str, Any]:
    """Return the answer, with its own `bytes`."""
    url = f"{run.base}/om/v1/threads/{encode_path(thread)}/context{query}"
    content = body if isinstance(body, bytes) else orjson.dumps(body)
    sent = {**AUTH, "content-type": "application/json", **headers}
    answer = await run.http.post(url, content=content, headers=sent)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = orjson.loads(answer.content)
    return found | {"bytes": answer.content}


def list_message_bytes(body: bytes) -> list[bytes]:
    """Return the JSON of each of a body's messages, as it is written there."""
    messages = msgspec.json.decode(body, type=_WithMessages).messages
    return [bytes(message) for message in messages]


def list_tool_bytes(body: bytes) -> list[bytes]:
    """Return the JSON of each of a body's tools, as it is written there."""
    return [bytes(tool) for tool in msgspec.json.decode(body, type=_WithTools).tools]


def list_announced_tool(answer: bytes) -> list[bytes]:
    """Return the JSON of the tool that a preview says is added; empty: none is."""
    tool = bytes(msgspec.json.decode(answer, type=_WithTool).tool)
    return [] if tool == b"null" else [tool]


class _WithTools(msgspec.Struct):
    tools: list[msgspec.Raw] = []


class _WithTool(msgspec.Struct):
    tool: msgspec.Raw = msgspec.Raw(b"null")


class _WithMessages(msgspec.Struct):
    messages: list[msgspec.Raw]
