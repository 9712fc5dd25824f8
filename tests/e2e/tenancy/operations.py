"""What the tenants do: talk, edit, ask, leave, spell things oddly, and try to be somebody else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any
from urllib.parse import quote

import orjson

from om_proxy.settings.identity.user_token import Claims, sign_claims
from tests.e2e.tenancy.world import LETTERS, SIGNING, World, canary, key_of

THREADS, USERS = ("t", "Chat:2"), ("user", "agent/7")
LONGEST = 24  # turns of a thread; then every tenant goes on in the next one
# threads of a resource; then in the next one, or a shared log would grow with the run: no canary
# can be condensed
LIVES = 8
AT_ONCE = 8

Headers = list[tuple[str, str]]


@dataclass
class Chat:
    """A tenant's client for one thread, which keeps its history."""

    letter: str
    user: str
    name: str
    history: list[dict[str, Any]] = field(default_factory=list)
    number: int = 0  # of the thread: a new one every LONGEST turns
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def thread(self) -> str:
        return f"{self.name}-{self.number}"

    @property
    def resource(self) -> str:
        return f"{self.user}-{self.number // LIVES}"


class Operations:
    """Performs one random operation after another; everything it learns goes into the world's
    findings."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._rng = Random(f"{world.name} {seed}")
        self._count = 0
        self._chats = [Chat(x, r, t) for x in LETTERS for r in USERS for t in THREADS]
        self._often = [
            8 if (c.user, c.name) == (USERS[0], THREADS[0]) else 1 for c in self._chats
        ]  # one is long soon

    async def run(self, count: int) -> None:
        await asyncio.gather(*(self._some(count // AT_ONCE) for _ in range(AT_ONCE)))
        for chat in self._chats:  # in a short run, those that are there are seldom asked for
            await self._steer(chat)
        await self._world.app.background.wait_idle()
        self._world.judge_upstream()
        await self._world.judge_store()

    async def _some(self, count: int) -> None:
        for _ in range(count):
            act: Callable[[Chat], Awaitable[None]] = self._rng.choices(
                list(WEIGHTS), list(WEIGHTS.values())
            )[0].__get__(self)
            chat = self._rng.choices(self._chats, self._often)[0]
            async with chat.busy:
                self._world.findings.operations[act.__name__.strip("_")] += 1
                await act(chat)
                self._grown(chat)
            self._world.judge_upstream()

    def _grown(self, chat: Chat) -> None:
        if len(chat.history) > 2 * LONGEST:
            chat.history, chat.number = [], chat.number + 1

    # ── what clients do ───────────────────────────────────────────────────────────────────────────

    async def _say(
        self, chat: Chat, messages: list[dict[str, Any]] | None = None, more: Headers | None = None
    ) -> None:
        self._count += 1
        chat.history.append(
            {"role": "user", "content": " ".join([canary(chat.letter, self._count)] * 4)}
        )
        reply = await self._sent(chat, messages or chat.history, more or [])
        chat.history.append({"role": "assistant", "content": reply})

    async def _window(self, chat: Chat) -> None:
        """A client that sends its newest message only."""
        self._count += 1
        newest = {"role": "user", "content": canary(chat.letter, self._count)}
        chat.history += [
            newest,
            {"role": "assistant", "content": await self._sent(chat, [newest], [])},
        ]

    async def _edit(self, chat: Chat) -> None:
        del chat.history[-2 * self._rng.randint(1, 3) :]
        await self._say(chat)

    async def _recall(self, chat: Chat) -> None:
        """What is asked for is answered from the prompt: whatever memory put there can come
        back."""
        chat.history.append(
            {
                "role": "user",
                "content": "Which locker at Quarry Steps is mine, and what is its limit?",
            }
        )
        chat.history.append(
            {"role": "assistant", "content": await self._sent(chat, chat.history, [])}
        )

    async def _leave(self, chat: Chat) -> None:
        self._count += 1
        messages = [*chat.history, {"role": "user", "content": canary(chat.letter, self._count)}]
        body = orjson.dumps({"model": "actor", "messages": messages, "stream": True})
        self._judge(chat.letter, await self._world.ask(self._headers(chat), body, leave=True), 200)

    async def _mode(self, chat: Chat) -> None:
        await self._say(chat, more=[("x-om-mode", self._rng.choice(["read", "write", "off"]))])

    async def _task(self, chat: Chat) -> None:
        await self._sent(
            chat,
            [*chat.history, {"role": "user", "content": "A title, please."}],
            [("x-om-task", "title")],
        )

    async def _other_name(self, chat: Chat) -> None:
        """Names of tenants in places where no tenant is named change nothing."""
        other = self._other(chat)
        tenant = self._world.tenant(other)
        await self._say(
            chat,
            more=[
                ("x-om-tenant", tenant),
                ("x-tenant", tenant),
                ("x-om-user", other),
                ("cookie", f"tenant={tenant}"),
            ],
        )

    async def _scope(self, chat: Chat) -> None:
        """Counts in the world of keys only, and there too for the tenant's own resource only."""
        await self._say(chat, more=[("x-om-scope", self._rng.choice(["thread", "resource"]))])

    # ── who would be somebody else ────────────────────────────────────────────────────────────────

    async def _two_credentials(self, chat: Chat) -> None:
        """One's own and another's, in whatever order."""
        own, other = f"Bearer {key_of(chat.letter)}", key_of(self._other(chat))
        pairs = [
            ("authorization", own),
            (self._rng.choice(["x-api-key", "api-key", "authorization"]), other),
        ]
        if self._world.name == "keys" and self._rng.random() < 0.5:
            pairs = [("x-om-authorization", own), ("x-memory-gateway-authorization", other)]
        self._rng.shuffle(pairs)
        await self._refused(chat, [*pairs, *self._named(chat)], 400)

    async def _two_names(self, chat: Chat) -> None:
        named = self._named(chat)
        name, value = self._rng.choice(named)
        await self._refused(
            chat, [*self._credential(chat.letter), *named, (name, f"{value}2")], 400
        )

    async def _odd_name(self, chat: Chat) -> None:
        odd = self._rng.choice(["a%2", "a b", "a\tb", "ü", "a,b", "<t>", "x" * 257, "a\u00a0"])
        await self._refused(chat, [*self._credential(chat.letter), ("x-om-thread", odd)], 400)

    async def _part_of_a_key(self, chat: Chat) -> None:
        """The beginning of another's credential, or more than it, is another credential."""
        other = key_of(self._other(chat))
        await self._stranger(
            chat,
            self._rng.choice(
                [other[:-1], f"{other}0", other.upper(), f"{other},{other}", f"{other} x"]
            ),
        )

    async def _nobody(self, chat: Chat) -> None:
        await self._stranger(chat, f"sk-stranger-{self._rng.randrange(3)}")

    async def _stranger(self, chat: Chat, key: str) -> None:
        messages = [
            {
                "role": "user",
                "content": "Which locker at Quarry Steps is mine, and what is its limit?",
            }
        ]
        headers = [("authorization", f"Bearer {key}"), *self._named(chat)]
        answer = await self._world.ask(
            headers, orjson.dumps({"model": "actor", "messages": messages})
        )
        self._judge("nobody", answer, 401 if self._world.name == "keys" else 200)

    async def _other_token(self, chat: Chat) -> None:
        """Signed, but for another tenant, another thread or another resource; in time or not."""
        tenant, now = self._world.tenant(chat.letter), time.time()
        claims = self._rng.choice([
            Claims(chat.resource, now + 60, tenant=self._world.tenant(self._other(chat))),
            Claims(f"{chat.resource}2", now + 60, tenant=tenant),
            Claims(chat.resource, now + 60, thread="another", tenant=tenant),
            Claims(chat.resource, now - 60, tenant=tenant),
        ])  # fmt: skip
        token = ("x-om-token", sign_claims(claims, SIGNING.encode()))
        if self._world.name == "keys":
            await self._refused(chat, [*self._headers(chat), token], 401)
        else:
            await self._say(chat, more=[token])  # says nothing where nobody can verify it

    async def _steer(self, chat: Chat) -> None:
        """The admin API by one's own credential, asked for one's own threads, which may not be there
        yet, or for another's: they are not there."""
        other = self._world.tenant(self._other(chat))
        path = self._rng.choice(["", f"/{quote(chat.thread, safe='')}"])
        is_own = self._rng.random() < 0.5
        query = f"?resource={quote(chat.resource, safe='')}" + (
            "" if is_own else f"&tenant={other}"
        )
        answer = await self._world.look(
            self._credential(chat.letter), f"/om/v1/threads{path}{query}"
        )
        may_be_absent = is_own and path and answer[0] == 404
        self._judge(chat.letter, answer, 404 if may_be_absent or not is_own else 200)
        if other.encode() in answer[2]:
            self._world.findings.wrong.append("the admin API tells of another tenant")
        self._world.findings.sinks["admin answer"] += (
            self._world.tenant(chat.letter).encode() in answer[2]
        )

    async def _refused(self, chat: Chat, headers: Headers, status: int) -> None:
        messages = [{"role": "user", "content": "Which locker at Quarry Steps is mine?"}]
        answer = await self._world.ask(
            headers, orjson.dumps({"model": "actor", "messages": messages})
        )
        self._judge("nobody", answer, status)

    # ── how it is said ────────────────────────────────────────────────────────────────────────────

    async def _sent(self, chat: Chat, messages: list[dict[str, Any]], more: Headers) -> str:
        stream = self._rng.random() < 0.4
        body = orjson.dumps({"model": "actor", "messages": messages, "stream": stream})
        if self._rng.random() < 0.1:
            body = body.replace(b"canary", b"\\u0063anary")
        headers = [*self._headers(chat), *more]
        answer = await self._world.ask(headers, body)
        self._judge(chat.letter, answer, 200)
        return said(answer[2], stream=stream) if answer[0] == 200 else "no answer"

    def _judge(self, letter: str, answer: tuple[int, Any, bytes], expected: int) -> None:
        status, headers, body = answer
        found = self._world.findings
        found.judge("response", letter, body, *(f"{n}: {v}".encode() for n, v in headers.items()))
        found.statuses[headers.get("x-om-status", "none")] += 1
        if status != expected:
            found.wrong.append(f"{status} instead of {expected}: {body[:200]!r}")
        if headers.get("x-om-status") == "degraded":
            found.wrong.append(f"degraded: {headers.get('x-om-reason')}")

    def _headers(self, chat: Chat) -> Headers:
        headers = [*self._credential(chat.letter), *self._named(chat)]
        if self._world.name == "keys" and self._rng.random() < 0.3:
            claims = Claims(chat.resource, time.time() + 60, tenant=self._world.tenant(chat.letter))
            headers.append(("X-OM-Token", sign_claims(claims, SIGNING.encode())))
        self._rng.shuffle(headers)
        return headers

    def _named(self, chat: Chat) -> Headers:
        thread = self._rng.choice(
            ["x-om-thread", "X-OM-Thread", "x-thread-id", "X-OpenWebUI-Chat-Id"]
        )
        resource = self._rng.choice(["x-om-resource", "X-Resource-Id", "x-openwebui-user-id"])
        return [(thread, chat.thread), (resource, chat.resource)]

    def _credential(self, letter: str) -> Headers:
        """The three headers, with a scheme or without, alone or repeated; with keys of ours beside
        the provider's own, too."""
        keyed = self._world.name == "keys"
        key = key_of(letter, self._rng.choice((1, 2)) if keyed else 1)
        spellings: list[Headers] = [
            [("Authorization", f"Bearer {key}")],
            [("authorization", f"bearer  {key} ")],
            [("x-api-key", key)],
            [("API-Key", key)],
            [("authorization", f"Bearer {key}"), ("x-api-key", key)],
        ]
        if keyed:
            name = self._rng.choice(["X-OM-Authorization", "X-Memory-Gateway-Authorization"])
            spellings += [
                [(name, f"Bearer {key}"), ("authorization", f"Bearer sk-own-{letter}")]
            ] * 5
        return self._rng.choice(spellings)

    def _other(self, chat: Chat) -> str:
        return self._rng.choice([x for x in LETTERS if x != chat.letter])


WEIGHTS: dict[Any, int] = {
    Operations._say: 50,
    Operations._window: 5,
    Operations._edit: 4,
    Operations._recall: 10,
    Operations._leave: 4,
    Operations._mode: 4,
    Operations._task: 2,
    Operations._other_name: 3,
    Operations._scope: 2,
    Operations._two_credentials: 4,
    Operations._two_names: 2,
    Operations._odd_name: 2,
    Operations._part_of_a_key: 3,
    Operations._nobody: 3,
    Operations._other_token: 2,
    Operations._steer: 3,
}


def said(body: bytes, *, stream: bool) -> str:
    """The reply's text."""
    if not stream:
        return str(orjson.loads(body)["choices"][0]["message"]["content"])
    events = [orjson.loads(line[6:]) for line in body.split(b"\n") if line.startswith(b"data: {")]
    return "".join(c["delta"].get("content") or "" for event in events for c in event["choices"])
