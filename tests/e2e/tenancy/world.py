"""Sixteen tenants with the same threads and resources behind one proxy, and everything that any of
them could see of another."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import aiohttp
from yarl import URL

from om_proxy.app.app import App
from om_proxy.settings.config import parse
from om_proxy.settings.identity.callers import identify
from om_proxy.settings.identity.identity_rules import IdentityRules
from om_proxy.testing.loopback import serve_on_loopback
from om_proxy.testing.scripted import OBSERVER, REFLECTOR, ScriptedServer, message_text
from tests.e2e.running import Clock

LETTERS = "abcdefghijklmnop"  # one a tenant
CANARY_PATTERN = re.compile(rb"canary-([a-p])-\d+")
SIGNING = "tenancy-tenancy-tenancy-tenancy!"
SMALL = "observation: {message_tokens: 1000, buffer_tokens: 250, block_timeout: 5s}, reflection: {observation_tokens: 1500}"
WORLDS = {  # each with what differs in its configuration
    "credentials": f"memory: {{model: inherit, {SMALL}}}",
    "keys": f"memory: {{model: inherit, {SMALL}}}\nidentity: {{scope_override: true}}\nauth: {{token_secret: {SIGNING}, keys: ["
    + ", ".join(f"{{tenant: tenant-{x}, key: sk-{x}-{n}}}" for x in LETTERS for n in (1, 2))
    + "]}",
    "shared": f"memory: {{model: inherit, scope: resource, {SMALL}}}",
}


def canary(letter: str, number: int) -> str:
    """A sentence that an observer keeps and an actor can be asked for."""
    return f"My locker at Quarry Steps is canary-{letter}-{number} and its limit is {number} kg, we decided."


def owners(*found: bytes) -> set[str]:
    """Whose canaries stand in these bytes, written out or with JSON's escapes."""
    text = b"\n".join(found)
    if b"\\u" in text:
        text += re.sub(rb"\\u00([2-7][0-9a-fA-F])", lambda m: bytes([int(m[1], 16)]), text)
    return {m[1].decode() for m in CANARY_PATTERN.finditer(text)}


def key_of(letter: str, number: int = 1) -> str:
    """A tenant's credential: the upstream's own, or one of `auth.keys`."""
    return f"sk-{letter}-{number}"


class Minds(ScriptedServer):
    """One model for all: actor, observer and reflector are told apart by what they are asked.
    `seen` is what is not judged yet."""

    def choose_answer(self, model: str, messages: Any, fault: Any) -> Any:
        asked = message_text(messages[-1]) if messages else ""
        mind = (
            REFLECTOR
            if "Rewrite these notes" in asked
            else OBSERVER
            if "Write the observations" in asked
            else model
        )
        return super().choose_answer(mind, messages, fault)


@dataclass
class Findings:
    """What was seen: `wrong` holds every breach, in words."""

    operations: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    sinks: Counter[str] = field(
        default_factory=Counter
    )  # how many canaries-bearing things each sink held

    def judge(self, sink: str, allowed: str | None, *found: bytes) -> None:
        """`allowed`: whose canaries may stand here; None: those of any one tenant."""
        there = owners(*found)
        self.sinks[sink] += bool(there)
        if len(there) > 1 or (allowed is not None and not there <= {allowed}):
            self.wrong.append(f"{sink} of {allowed}: {sorted(there)}")


@dataclass
class World:
    name: str
    app: App
    base: str
    models: Minds
    http: aiohttp.ClientSession
    path: Path
    rules: IdentityRules
    secret: bytes
    findings: Findings = field(default_factory=Findings)

    def tenant(self, letter: str) -> str:
        sent = [(b"authorization", f"Bearer {key_of(letter)}".encode())]
        return str(identify(sent, self.rules, self.secret).tenant)

    async def ask(
        self, headers: Sequence[tuple[str, str]], body: bytes, *, leave: bool = False
    ) -> tuple[int, Mapping[str, str], bytes]:
        """One request; with `leave` the client goes after the first piece of the answer."""
        async with self.http.post(
            f"{self.base}/v1/chat/completions", data=body, headers=headers
        ) as answer:
            if leave:
                return answer.status, answer.headers, await answer.content.readany()
            return answer.status, answer.headers, await answer.read()

    async def look(
        self, headers: Sequence[tuple[str, str]], path: str
    ) -> tuple[int, Mapping[str, str], bytes]:
        """One GET of ours."""
        async with self.http.get(
            URL(f"{self.base}{path}", encoded=True), headers=headers
        ) as answer:
            return answer.status, answer.headers, await answer.read()

    def judge_upstream(self) -> None:
        """Every prompt that went out holds the words of one tenant, and goes out with that tenant's
        credential."""
        seen, self.models.requests[:] = list(self.models.requests), []
        for request in seen:
            credential = b" ".join(
                v for n, v in request.headers if n in (b"authorization", b"x-api-key", b"api-key")
            )
            spelt = re.search(rb"sk-(?:own-)?([a-p])\b", credential)
            self.findings.judge("prompt", spelt[1].decode() if spelt else None, request.body)
            if b"tenancy" in b" ".join(v for _, v in request.headers) or (
                self.name == "keys" and b"-1" in credential
            ):
                self.findings.wrong.append("a key or token of ours went upstream")

    async def judge_store(self) -> None:
        """All that a tenant can be given of the store, and every row of every table."""
        whose = {self.tenant(letter): letter for letter in LETTERS}
        for info in await self.app.store.threads(None, limit=100_000):
            memory = await self.app.store.load(info.key)
            texts = [m.item.raw for m in memory.tail] + [
                repr(o.text).encode() for o in memory.log.entries + memory.chunks
            ]
            self.findings.judge("memory", whose.get(info.key.tenant, "nobody"), *texts)
        for tenant, letter in whose.items():
            if {i.key.tenant for i in await self.app.store.threads(tenant, limit=100_000)} - {
                tenant
            }:
                self.findings.wrong.append(f"the list of {letter} names another's thread")
        with closing(sqlite3.connect(self.path)) as db:
            same = "SELECT count(DISTINCT tenant) FROM message JOIN thread ON id = thread_id GROUP BY fp ORDER BY 1 DESC LIMIT 1"
            if db.execute(same).fetchone()[0] != 1:
                self.findings.wrong.append("messages of two tenants have one fingerprint")
            threads = {
                id_: whose.get(tenant, "nobody")
                for id_, tenant in db.execute("SELECT id, tenant FROM thread")
            }
            for (table,) in db.execute(
                "SELECT name FROM sqlite_schema WHERE type = 'table'"
            ).fetchall():
                columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
                if "thread_id" not in columns:
                    continue
                for row in db.execute(f"SELECT thread_id, * FROM {table}"):  # noqa: S608 - a name from the schema
                    values = [v if isinstance(v, bytes) else str(v).encode() for v in row[1:]]
                    self.findings.judge(f"row of {table}", threads.get(row[0], "nobody"), *values)


@asynccontextmanager
async def world(name: str, folder: Path) -> AsyncIterator[World]:
    """A proxy in this configuration with its model server, on loopback ports. As in tests/conftest.py,
    a request waits a minute for its memory: a busy machine degrades none."""
    models, path = Minds(), folder / f"{name}.db"
    with mock.patch("om_proxy.edge.chat.MAX_OPEN_S", 60.0):
        async with _served(name, models, path) as made:
            yield made


@asynccontextmanager
async def _served(name: str, models: Minds, path: Path) -> AsyncIterator[World]:
    async with serve_on_loopback(models, lifespan="off") as upstream:
        text = f'upstream: [{{base_url: "{upstream}/v1", layout: blocks}}]\nstorage: {{url: "sqlite:///{path}"}}\n'
        settings = parse(f'{text}telemetry: {{log: "off"}}\n{WORLDS[name]}')
        app = App(settings, clock=Clock(), model_timeout_s=20.0)
        connector = aiohttp.TCPConnector(
            limit=0, keepalive_timeout=1.0
        )  # the server waits longer: no race for an idle one
        async with (
            serve_on_loopback(app) as base,
            aiohttp.ClientSession(connector=connector) as http,
        ):
            secret = await app.store.secret()
            yield World(name, app, base, models, http, path, app._config.identity, secret)
