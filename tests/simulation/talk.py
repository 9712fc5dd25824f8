"""A thread and its requests as the world knows them: what was said, what the client saw, and what
may be forgotten."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile

from om_proxy.memory.model import Key
from tests.simulation.callers import Client, Node, partial_reply
from tests.simulation.changes import Changes
from tests.simulation.words import id_of


@dataclass(eq=False)
class Talk:
    """One thread as the world knows it: who talks there, and what became of every id."""

    key: Key
    letter: str
    changes: Changes  # of people
    clients: list[Client] = field(default_factory=list)
    ids: int = 0
    withdrawn: set[str] = field(default_factory=set)  # taken back by a client at some time
    loose: set[str] = field(
        default_factory=set
    )  # said in two tabs at once: where they stand, nobody can say
    unsure: set[str] = field(
        default_factory=set
    )  # replies to one request, of which the client holds one that was not stored
    again: set[str] = field(
        default_factory=set
    )  # sent again while others talked: may be taken for new
    answers: dict[str, str] = field(default_factory=dict)  # id of a tool's result → id of its call
    live: dict[int, str] = field(
        default_factory=dict
    )  # seq → id of what is stored, as of the last commit
    ever: set[str] = field(default_factory=set)  # stored at some time
    shown: set[str] = field(default_factory=set)  # to the actor, raw or observed
    exchanges: list[Exchange] = field(default_factory=list)
    forked: float = -math.inf  # when a request last took something back

    def new_id(self) -> str:
        self.ids += 1
        return f"{self.letter}{self.ids}"

    def may_lose(self, one: str) -> bool:
        """Whether a commit may supersede it: it was taken back, or it is a reply that no client
        has."""
        held = any(node.id == one for client in self.clients for node in client.nodes)
        return one in self.withdrawn | self.doubtful() or not held

    def doubtful(self) -> set[str]:
        """Ids of which nobody can say whether they belong to the branch, and where."""
        return self.loose | self.unsure | {one.reply_id for one in self.exchanges if one.raced}

    def rivals(self, unstored: set[str], nodes: Sequence[Node]) -> set[str]:
        """What was answered to the same questions as these replies, the tool steps included, up to
        what a user said next.

        A reply that we never stored, shown where another one stands, with its tool steps before it,
        looks like that one altered and its steps folded away: nobody can tell it from a client that
        does both.
        """
        said = {one.reply_id for one in self.exchanges} | self.answers.keys()
        questions = {before.id for before, node in pairwise(nodes) if node.id in unstored}
        found: set[str] = set()
        for exchange in self.exchanges:
            ids = [*exchange.shown, exchange.reply_id]
            for place, one in enumerate(ids):
                if one in questions:
                    found |= set(takewhile(said.__contains__, ids[place + 1 :]))
        return found

    def promised(self) -> set[str]:
        return {node.id for client in self.clients for node in client.nodes if node.promised}


@dataclass(eq=False)
class Exchange:
    """One request and what the client gets of its answer."""

    number: int
    client: Client
    shown: list[str]  # ids, in order
    asked: set[str]  # what the request itself asks: never covered in its own prompt
    calls: set[str]  # the calls that answers
    body: bytes
    stream: bool
    required: set[str]  # promised before it began
    started: float
    over: asyncio.Future[None]
    gone: asyncio.Future[None]
    closings: int = 0
    handled: bool = False
    raced: bool = False  # its client had left it and asked again before the proxy was done with it
    finished: float = math.inf
    reply: bytes = b""
    status: int = 0
    receipt: dict[str, str] = field(default_factory=dict)
    received: bytes = b""
    ended: bool = False  # the last bytes came
    # taken back at some time, and told by notes of which a note of a fork says that they do not hold
    disclaimed: set[str] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)  # of the original, where that went upstream
    kept: bool = False  # memory promised to hold it

    @property
    def reply_id(self) -> str:
        return id_of(self.reply) or "?"

    @property
    def under_way(self) -> bool:
        """Whether the proxy is still busy with it."""
        return self.closings > 0 or not self.handled

    @property
    def complete(self) -> bool:
        whole = b"data: [DONE]" in self.received if self.stream else self.ended
        return self.status == 200 and whole

    @property
    def partial(self) -> bytes | None:
        return partial_reply(self.stream, self.received) if self.status == 200 else None

    def allowed(self) -> set[str]:
        """Ids that may stand in its prompt although the client did not show them."""
        talk, client = self.client.talk, self.client
        if client.thin:
            return talk.ever | talk.doubtful()
        meanwhile = {one.reply_id for one in talk.exchanges if one.finished >= self.started}
        return {node.id for node in client.nodes} | talk.doubtful() | meanwhile
