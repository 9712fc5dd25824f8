"""The clients: they hold the true conversation and show it as their kind does, for better or worse.

What they avoid, because docs/concepts/limits.md lists it: an edit with nothing known before it (the
first two messages stay); an exchange deleted from the middle; the same text twice (every text has
its id); a lost fork shown by a window that begins after it (clients with windows edit only what is
recent, and meet no broken disk); what came of the second reply to a question, shown in place of the
first, and a second reply that we never stored, of which we hold the first (each looks like an
altered text of what we hold); folded, compacted and altered histories (tests/memory/clients.py has
them).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

import orjson

from om_proxy.wire.apis.registry import CHAT
from tests.simulation.words import filler, id_of, message

if TYPE_CHECKING:
    from tests.simulation.talk import Exchange, Talk
    from tests.simulation.world import World

# what a client does next, and how often
MOVES = {"say": 60, "regenerate": 9, "rewind": 3, "edit": 10, "switch": 5, "twice": 4, "tabs": 3}
TRIES = 3


@dataclass(eq=False)
class Node:
    """One message as the client holds it."""

    raw: bytes
    promised: bool = False  # an acknowledged turn held it, so memory must

    @property
    def id(self) -> str:
        return id_of(self.raw) or "?"

    @property
    def role(self) -> str:
        return str(orjson.loads(self.raw)["role"])

    @property
    def calls(self) -> list[str]:
        return [call["id"] for call in orjson.loads(self.raw).get("tool_calls") or ()]


@dataclass(eq=False)
class Client:
    world: World
    talk: Talk
    rng: Random
    history: str = "auto"  # X-OM-History
    window: int = 0  # newest messages it sends; 0: all
    thin: bool = False  # sends only what is new
    tools: bool = True
    sticky: bool = True  # always asks the same engine, while that lives
    nodes: list[Node] = field(default_factory=list)
    branches: list[list[Node]] = field(default_factory=list)
    forked: bool = False  # it went back, and has seen no reply since
    told: int = 0  # thin: nodes before it are not sent again

    @property
    def thread(self) -> Talk:
        return self.talk

    @property
    def shows_all(self) -> bool:
        return not self.thin

    @property
    def alone(self) -> bool:
        """Whether nobody else talks in the thread."""
        return len(self.talk.clients) == 1

    # ── its day ──

    async def live(self, moves: int) -> None:
        for _ in range(moves):
            await asyncio.sleep(self.rng.choice((0.0, 1.0, 5.0, 30.0, 30.0, 200.0, 9_000.0)))
            await self.move()

    async def move(self) -> None:
        moves = dict(MOVES)
        if self.thin:
            moves = {"say": 1}
        elif self.window or len(self.nodes) < 4:
            moves |= {"switch": 0, "tabs": 0, "rewind": 0}
        if len(self.nodes) < 4:
            moves |= {"edit": 0, "regenerate": 0, "twice": 0}
        if not self.branches:
            moves["switch"] = 0
        move = self.rng.choices(list(moves), weights=list(moves.values()))[0]
        self.world.told(f"{self.talk.letter} {move}")
        match move:
            case "say":
                await self.say()
            case "regenerate":
                await self.back_to(self.user_places()[-1:], keep=True)
            case "rewind":
                await self.back_to(self.user_places()[-4:], keep=True)
            case "edit":
                await self.back_to(self.user_places()[-3:], keep=False)
            case "switch":
                await self.switch()
            case "twice":
                await self.twice()
            case "tabs":
                await self.tabs()

    def user_places(self) -> list[int]:
        """Where it may go back to."""
        return [i for i, node in enumerate(self.nodes) if i >= 2 and node.role == "user"]

    def user_says(self) -> Node:
        one = self.talk.new_id()
        return Node(message("user", f"{one}: {filler(self.rng, self.rng.randrange(3, 60))}"))

    async def say(self) -> None:
        self.nodes.append(self.user_says())
        await self.turn()

    async def back_to(self, places: list[int], keep: bool) -> None:
        if not places:
            await self.say()
            return
        at = self.rng.choice(places)
        self.hold(self.nodes[: at + 1] if keep else [*self.nodes[:at], self.user_says()])
        await self.turn()

    async def switch(self) -> None:
        other = self.branches.pop(self.rng.randrange(len(self.branches)))
        self.hold(list(other))
        await self.say()

    async def twice(self) -> None:
        """The same request twice at once; the reply that is seen whole first counts."""
        self.nodes.append(self.user_says())
        first = asyncio.create_task(self.world.exchange(self, self.shows()))
        await asyncio.sleep(self.rng.choice((0.0, 0.01, 1.0)))
        second = await self.world.exchange(self, self.shows(), retry=True)
        first_ = await first
        self.world.told(f"{self.talk.letter} twice: {first_.complete} {second.complete}")
        if first_.complete and not second.complete:
            first_.raced = True  # the begun reply may have its place: docs/concepts/limits.md
        for seen in (second, first_):
            if seen.complete:
                self.take(seen, [second, first_], check=False)
                return

    async def tabs(self) -> None:
        """Two questions at once behind the same history; it goes on with one of them."""
        base, asked = list(self.nodes), [self.user_says(), self.user_says()]
        views = [[*base, node] for node in asked]
        self.talk.loose |= {node.id for node in asked}
        tabs = [asyncio.create_task(self.world.exchange(self, view)) for view in views]
        seen = [await tab for tab in tabs]
        for view, exchange in zip(views, seen, strict=True):
            self.talk.loose |= {exchange.reply_id}
            if exchange.complete:
                view.append(Node(exchange.reply))
        self.nodes = self.rng.choice(views)

    def hold(self, nodes: list[Node]) -> None:
        """Another branch from now on."""
        kept = {node.id for node in nodes}
        gone = {node.id for node in self.nodes} - kept
        self.talk.withdrawn |= gone
        if any(exchange.under_way for exchange in self.talk.exchanges):
            self.talk.loose |= (
                gone  # it left a request and changed it at once: both may be stored, as of two tabs
            )
        if unstored := {node.id for node in nodes if node.role == "assistant"} - self.talk.ever:
            # another reply may stand in its place: on the live branch, or on the one that comes
            # back
            others = set(self.talk.live.values()) | self.talk.rivals(unstored, nodes)
            self.talk.unsure |= unstored | (others - kept)
        if len(self.nodes) > 4:
            self.branches = [*self.branches[-3:], list(self.nodes)]
        self.nodes = nodes
        self.forked = True

    # ── a turn ──

    async def turn(self) -> None:
        for _ in range(4):
            if not await self.ask():
                return
            if not self.nodes[-1].calls:
                return
            self.results()

    def results(self) -> None:
        """Answer the calls; sometimes only some of them, or none: then the user goes on."""
        call = self.nodes[-1]
        luck = self.rng.random()
        answered = call.calls if luck > 0.1 else call.calls[:-1] if luck > 0.05 else []
        for wanted in answered:
            one = self.talk.new_id()
            text = f"{one}: {filler(self.rng, self.rng.randrange(2, 60))}"
            self.nodes.append(Node(message("tool", text, tool_call_id=wanted)))
            self.talk.answers[one] = call.id
        if len(answered) < len(call.calls):
            self.nodes.append(self.user_says())

    async def ask(self) -> bool:
        """Whether there is a reply at last."""
        tried: list[Exchange] = []
        while len(tried) < TRIES:
            seen = await self.world.exchange(self, self.shows(), retry=bool(tried))
            tried.append(seen)
            if seen.complete:
                self.take(seen, tried)
                return True
            if self.rng.random() < 0.35:
                break
            await asyncio.sleep(self.rng.choice((0.0, 0.2, 3.0, 20.0)))
        self.told = len(self.nodes)
        known = (
            self.forked or len(tried) > 1
        )  # memory may hold another reply, which this would be taken for an altered text of
        partial = seen.partial if self.shows_all and not known and self.rng.random() < 0.9 else None
        if partial:
            self.world.told(f"{self.talk.letter} shows what it got of {id_of(partial)}")
            self.nodes.append(Node(partial))
        return False

    def take(self, seen: Exchange, tried: list[Exchange], check: bool = True) -> None:
        """Hold this reply, of all that came for the same request."""
        if not seen.kept and (len(tried) > 1 or self.forked):
            others = set(self.talk.live.values()) - {node.id for node in self.nodes}
            self.talk.unsure |= others | {one.reply_id for one in tried}
        self.nodes.append(Node(self.spelt(seen.reply)))
        shown, self.forked = set(seen.shown), False
        if seen.kept:
            for node in self.nodes:
                node.promised = node.promised or node.id in shown or node is self.nodes[-1]
        self.told = len(self.nodes)
        if check and seen.kept:
            self.world.turned(seen)

    def spelt(self, reply: bytes) -> bytes:
        """The reply as this client writes it from then on: sometimes in another spelling of the
        same."""
        return (
            orjson.dumps({**orjson.loads(reply), "annotations": []})
            if self.rng.random() < 0.2
            else reply
        )

    def shows(self) -> list[Node]:
        if self.thin:
            return self.nodes[self.told :]
        if not self.window or len(self.nodes) <= self.window:
            return list(self.nodes)
        users = [i for i, node in enumerate(self.nodes) if node.role == "user"]
        start = len(self.nodes) - self.window
        return self.nodes[max((i for i in users if i <= start), default=0) :]


def partial_reply(stream: bool, received: bytes) -> bytes | None:
    """The text that came of a reply that broke off, as a client would keep it."""
    reader = CHAT.create_reply_reader(stream)
    reader.feed(received)
    said = reader.finish().message
    if said is None:
        return None
    content = orjson.loads(said).get("content")
    return message("assistant", content) if content and id_of(said) and ": " in content else None
