"""Simulated clients of every kind, a thread that lives by the pure functions alone, and the oracle
that knows the truth.

A `Client` holds the true conversation as `Node`s and shows it in its own way. A `Thread`
reconciles, forwards and commits as the engine does, with a store in a dict. `converse` lets the two
meet for some turns and compares after every one of them.

What the simulated clients avoid, because the specification lists it as a known limit: repeated
replies (periodic texts) in windows, edits that leave nothing known before them, edits and
regenerations by thin clients without a header, an exchange deleted from the middle, user texts
rewritten on every call. Two more limits come with clients that alter replies we may not replace
(folded ones, observed ones): only the recorded attempts, the last eight or so, know their texts, so
such clients edit a recent message only and, if they fold, compact or send windows as well, do not
go back to an old branch; and a reply that folded tool steps away is not lost to us in the same
turn.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import Any

import orjson
from msgspec.structs import replace

from om_proxy.memory import blocks
from om_proxy.memory.lifecycle import branch, transitions
from om_proxy.memory.message_view import fingerprint
from om_proxy.memory.model import (
    Generation,
    Item,
    Key,
    Memory,
    Message,
    Observation,
    extend_chain,
    sum_framed_tokens,
)
from om_proxy.memory.prompt.tail import Piece, build_tail, find_broken_pieces
from om_proxy.memory.transcript.apply_turn import EndedReply, apply_request, end_turn
from om_proxy.memory.transcript.corrections import NeedTexts, find_corrections
from om_proxy.memory.transcript.reconcile import Hints, reconcile
from om_proxy.memory.transcript.sent_history import SentHistory
from om_proxy.memory.transcript.stored_transcript import StoredTranscript
from om_proxy.memory.transcript.verdict import Verdict
from om_proxy.memory.transcript.wordings import StoredText, Texts, Wording, read_wording
from om_proxy.wire.apis.chat.chat_message import view_parsed
from om_proxy.wire.apis.json_text import write_canonical

TENANT = b"a tenant's key"


def parse(raw: bytes) -> Item:
    message = orjson.loads(raw)
    calls = tuple(call["id"] for call in message.get("tool_calls") or ())
    return Item(
        raw,
        message["role"],
        fingerprint(view_parsed(message), TENANT, write_canonical),
        calls,
        message.get("tool_call_id"),
    )


def wording(raw: bytes) -> Wording:
    return read_wording(view_parsed(orjson.loads(raw)), write_canonical)


def raw(role: str, content: Any, **more: Any) -> bytes:
    return orjson.dumps({"role": role, "content": content, **more})


def reply(text: str) -> bytes:
    return raw("assistant", text)


def apply_turn(
    memory: Memory,
    verdict: Verdict,
    sent: SentHistory,
    tokens: Mapping[int, int],
    now: float,
    reply: Item | None = None,
    reply_tokens: int = 0,
    revived: Mapping[int, Message] | None = None,
    encoding: str = "",
    asked_at: float = 0.0,
) -> Memory:
    """Return the memory after a turn that was asked and ended `now`."""
    asked = apply_request(memory, verdict, sent, tokens, now, revived, encoding, asked_at)
    ended = EndedReply(reply, reply_tokens, encoding) if reply is not None else None
    return end_turn(memory, asked, verdict, asked_at, now, ended)


class Thread:
    """A stored thread, driven as the engine drives it; `recent` marks are kept before coverage."""

    def __init__(self, recent: int = 256) -> None:
        self.memory = Memory(key=Key("tenant", "resource", "thread"))
        self.rows: dict[int, tuple[Message, bool, int]] = {}  # seq → message, live, parent
        self.generations: list[Generation] = []
        self.recent = recent
        self.now = 0.0
        self.cases: list[str] = []
        self.outlines = 0
        self.compared = 0  # texts
        self.corrections: set[int] = set()  # seqs

    # reading

    def live(self) -> list[Message]:
        return [message for _, (message, live, _) in sorted(self.rows.items()) if live]

    def stored_transcript(self, complete: bool = False) -> StoredTranscript:
        if not complete:
            return StoredTranscript.of(self.memory)
        live = tuple(message.mark for message in self.live())
        superseded = tuple(
            (message.mark, parent)
            for _, (message, alive, parent) in sorted(self.rows.items())
            if not alive
        )
        return StoredTranscript.of(self.memory, live=live, superseded=superseded)

    def read_sent(self, raws: Sequence[bytes]) -> SentHistory:
        return SentHistory.of(tuple(raws), parse, self.memory.views)

    def reconcile(self, sent: SentHistory, hints: Hints = Hints()) -> Verdict:
        found = reconcile(self.stored_transcript(), sent, hints)
        texts: Texts | None = None
        complete = False
        while not isinstance(found, Verdict):
            if isinstance(found, NeedTexts):
                assert texts is None
                texts = self._read_texts(found.seqs)
            else:
                assert not complete
                complete = True
                self.outlines += 1
            found = reconcile(self.stored_transcript(complete), sent, hints, texts)
        return found

    def _read_texts(self, seqs: Sequence[int]) -> Texts:
        self.compared += len(seqs)
        messages = [self.rows[seq][0] for seq in seqs]
        return Texts({m.seq: StoredText(wording(m.item.raw), m.item.fp) for m in messages}, wording)

    # a turn

    def projected(self, verdict: Verdict, sent: SentHistory) -> Memory:
        return apply_turn(
            self._ground(verdict),
            verdict,
            sent,
            self._tokens(sent),
            self.now,
            revived=self._revived(verdict),
        )

    def ask(
        self, raws: Sequence[bytes], hints: Hints = Hints()
    ) -> tuple[Verdict, SentHistory, tuple[Piece, ...]]:
        self.now += 1
        sent = self.read_sent(raws)
        verdict = self.reconcile(sent, hints)
        self.cases.append(verdict.case)
        return verdict, sent, build_tail(self.projected(verdict, sent), sent)

    def close(self, verdict: Verdict, sent: SentHistory, reply: bytes | None) -> None:
        """Commit the turn; without a reply only if nothing would be superseded."""
        if reply is None and (verdict.forks or verdict.revive):
            return
        item = parse(reply) if reply is not None else None
        base, tokens, revived = self._ground(verdict), self._tokens(sent), self._revived(verdict)
        asked_at = self.now - 0.5
        after = apply_turn(
            base, verdict, sent, tokens, self.now, item, 50, revived, asked_at=asked_at
        )
        # what was computed when the request came, with the reply, is the same
        asked = apply_request(base, verdict, sent, tokens, asked_at, revived, asked_at=asked_at)
        ended = EndedReply(item, 50) if item is not None else None
        assert end_turn(base, asked, verdict, asked_at, self.now, ended) == after
        self.commit(after)

    def turn(self, raws: Sequence[bytes], reply: bytes | None, hints: Hints = Hints()) -> Verdict:
        verdict, sent, _ = self.ask(raws, hints)
        self.close(verdict, sent, reply)
        return verdict

    def _tokens(self, sent: SentHistory) -> dict[int, int]:
        return dict.fromkeys(range(sent.count), 50)

    def _revived(self, verdict: Verdict) -> dict[int, Message]:
        return {seq: self.rows[seq][0] for seq in verdict.revive}

    def _ground(self, verdict: Verdict) -> Memory:
        memory = self.memory
        if verdict.cut_seq is None or verdict.cut_seq >= memory.coverage:
            return memory
        live = self.live()
        chains = {m.seq: m.chain for m in live}
        log, _ = branch.find_rollback_target(memory, verdict.cut_seq, self.generations, chains)
        reach = branch.find_coverage(memory, log)
        before = [m for m in live if m.seq <= reach]
        return branch.roll_back(
            memory,
            verdict.cut_seq,
            log,
            [m.mark for m in before][-self.recent :],
            [m for m in live if m.seq > reach],
            (len(before), sum_framed_tokens(before)),
            self.now,
        )

    def commit(self, after: Memory) -> None:
        self.corrections.update(chain.from_iterable(find_corrections(after.views).values()))
        parent = after.recent[-1].seq if after.recent else 0
        alive = {m.seq for m in after.tail}
        for seq, (message, live, above) in list(self.rows.items()):
            if live and seq > after.coverage and seq not in alive:
                self.rows[seq] = (message, False, above)
        for message in after.tail:
            self.rows[message.seq] = (message, True, parent)
            parent = message.seq
        if after.log.generation != self.memory.log.generation:
            self.generations.insert(
                0, Generation(self.memory.log.generation, self.memory.log.entries)
            )
        self.memory = replace(after, recent=after.recent[-self.recent :], version=after.version + 1)

    # the background

    def observe(self, count: int) -> None:
        """A chunk of the next unobserved messages, at the closed block end at or before `count` of
        them."""
        fresh = [m for m in self.memory.tail if m.seq > self.memory.chunked_to]
        ends = [end for end in blocks.find_closed_ends([m.mark for m in fresh]) if end < count]
        if not ends:
            return
        covered = fresh[: ends[-1] + 1]
        chunk = Observation(
            id=0,
            after=self.memory.chunked_to,
            last=covered[-1].seq,
            chain=covered[-1].chain,
            text="* 🔴 (09:00) noted",
            tokens=5,
            source_tokens=sum_framed_tokens(covered),
            at=self.now,
        )
        self.commit(transitions.add_chunk(self.memory, chunk))

    def activate(self, count: int) -> None:
        self.commit(
            transitions.activate_chunks(
                self.memory, [c.id for c in self.memory.chunks[:count]], self.now
            )
        )


# ── conversations in words ────────────────────────────────────────────────────────────────────────


def chat(words: str) -> list[bytes]:
    """`u1 a2 s3` says user, assistant, system; `cx+y` calls tools x and y, `rx` is the result of x,
    `rx=z` another one."""
    return [message(word[0], word[1:]) for word in words.split()]


def message(kind: str, text: str) -> bytes:
    if kind == "c":
        calls = [
            {"id": i, "type": "function", "function": {"name": "look", "arguments": "{}"}}
            for i in text.split("+")
        ]
        return raw("assistant", None, tool_calls=calls)
    if kind == "r":
        call, _, content = text.partition("=")
        return raw("tool", content or f"result of {call}", tool_call_id=call)
    return raw({"u": "user", "a": "assistant", "s": "system"}[kind], text)


def build_thread(words: str, recent: int = 256) -> Thread:
    """Build a thread that a client with a whole history filled, a turn at every reply."""
    thread, so_far = Thread(recent), list[bytes]()
    for sent in chat(words):
        if parse(sent).role == "assistant":
            thread.turn(so_far, sent)
        so_far.append(sent)
    if parse(so_far[-1]).role != "assistant":
        thread.turn(so_far, None)  # upstream failed: unanswered
    return thread


def build_covered_thread(words: str, observed: int, chunked: int = 0) -> Thread:
    """Build a thread with its first `observed` messages in the log and the next `chunked` in a
    chunk."""
    thread = build_thread(words)
    thread.observe(observed)
    thread.activate(1)
    if chunked:
        thread.observe(chunked)
    return thread


def render_live_words(thread: Thread) -> str:
    """The live messages, in the words of `chat`."""
    return " ".join(word(m.item.raw) for m in thread.live())


def word(raw_message: bytes) -> str:
    item = parse(raw_message)
    if item.calls:
        return "c" + "+".join(item.calls)
    return f"r{item.answers}" if item.answers else f"{item.role[0]}{_content(raw_message)}"


def forwarded_words(pieces: tuple[Piece, ...]) -> str:
    """Render the forwarded messages in words; those that come from the store stand in brackets."""
    return " ".join(word(p.raw) if p.sent else f"[{word(p.raw)}]" for p in pieces)


def _content(raw_message: bytes) -> str:
    return str(orjson.loads(raw_message)["content"])


# ── the truth ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(eq=False)
class Node:
    """One message of the true conversation: as it was made, and as the client shows it from then
    on."""

    made: bytes
    shown: bytes
    heard: bool = True  # whether we had a chance to store it
    corrected: list[bytes] = field(default_factory=list)  # fingerprints of its older texts

    @property
    def role(self) -> str:
        return str(orjson.loads(self.made)["role"])

    @property
    def calls(self) -> tuple[str, ...]:
        return parse(self.made).calls

    @property
    def prints(self) -> set[bytes]:
        return {parse(self.made).fp, parse(self.shown).fp, *self.corrected}


@dataclass
class Client:
    """A kind of client: how it changes its history before it sends it. The flags mix freely."""

    rng: random.Random
    window: int = 0  # newest messages it sends; 0: all
    compacts_at: int = 0  # messages from which the older ones give way to a summary; 0: never
    folds: bool = False  # leaves the tool steps of finished turns out
    alters: bool = False  # strips something from every other reply, once and for all
    prunes: bool = False  # replaces tool results older than a few messages
    thin: bool = False  # sends what is new since the last reply
    reminds: bool = False  # puts one system message before the newest message
    reorders: bool = False  # sends results as they complete, and later in the order of the calls
    renders: bool = False  # cuts and stamps all messages but the newest few, of both roles
    corrects: bool = False  # changes a word of an old message now and then, of either role
    nodes: list[Node] = field(default_factory=list)
    branches: list[tuple[list[Node], bytes | None, int]] = field(default_factory=list)
    summary: bytes | None = None
    summarised: int = 0  # nodes the summary stands for
    made: int = 0

    # making messages

    def text(self, kind: str) -> str:
        self.made += 1
        return f"{kind} {self.made} {self.rng.randrange(10**6)}"

    def say(self, repeats: bool = True) -> Node:
        content = (
            "ok"
            if repeats and self.rng.random() < 0.25 and len(self.nodes) > 3
            else self.text("question")
        )
        made = raw("user", content)
        return Node(made, made)

    def reply(self) -> bytes:
        return raw("assistant", f"<think>hm</think> {self.text('answer')}")

    def call(self) -> bytes:
        ids = [self.text("call").replace(" ", "_") for _ in range(self.rng.choice((1, 1, 2, 3)))]
        calls = [
            {"id": i, "type": "function", "function": {"name": "look", "arguments": "{}"}}
            for i in ids
        ]
        return raw("assistant", None, tool_calls=calls)

    def results(self, call: Node) -> list[Node]:
        made = [raw("tool", self.text("result"), tool_call_id=i) for i in call.calls]
        if self.reorders:
            self.rng.shuffle(made)
        return [Node(m, m) for m in made]

    def _list_nodes(self) -> list[Node]:
        """The messages as they are shown: results of earlier steps in the order of their calls."""
        if not self.reorders:
            return self.nodes
        places = {call: place for n in self.nodes for place, call in enumerate(n.calls)}
        ordered: list[Node] = []
        for is_result, run in groupby(self.nodes, lambda n: n.role == "tool"):
            step = list(run)
            if is_result and step[-1] is not self.nodes[-1]:
                step.sort(key=lambda n: places[parse(n.made).answers or ""])
            ordered += step
        return ordered

    def take(self, reply: bytes, heard: bool = True) -> Node:
        """The reply as this client keeps it."""
        message = orjson.loads(reply)
        shown = reply
        if self.alters and message["content"] and self.rng.random() < 0.6:
            shown = raw("assistant", message["content"].removeprefix("<think>hm</think> ") + " ")
        elif self.rng.random() < 0.3:
            shown = orjson.dumps({**message, "annotations": []})  # another spelling of the same
        node = Node(reply, shown, heard)
        self.nodes.append(node)
        return node

    # changing its mind

    def keep_branch(self) -> None:
        self.branches.append((list(self.nodes), self.summary, self.summarised))

    def switch(self) -> None:
        other = self.branches.pop(self.rng.randrange(len(self.branches)))
        self.keep_branch()
        self.nodes, self.summary, self.summarised = list(other[0]), other[1], other[2]

    @property
    def returns(self) -> bool:
        """Whether it goes back to branches of long ago: see the limits above."""
        hides = self.alters and (self.folds or self.compacts_at or self.window)
        return not (hides or self.renders or self.corrects)

    def editable(self) -> list[int]:
        """User messages with at least two known ones before them."""
        lowest = self.summarised + 2
        if (
            self.folds and self.alters
        ):  # what is folded is never replaced, so only recorded attempts know the altered text
            lowest = max(lowest, len(self.nodes) - 6)
        return [
            i
            for i, n in enumerate(self.nodes)
            if n.role == "user" and i >= lowest and not self.thin
        ]

    # showing them

    def shows(self) -> list[bytes]:
        if self.thin:
            last = max(
                (i for i, n in enumerate(self.nodes[:-1]) if n.role == "assistant"), default=-1
            )
            return [n.shown for n in self.nodes[last + 1 :]]
        nodes = self._list_nodes()
        indices = range(self.summarised, len(self.nodes))
        if self.window:
            indices = range(max(0, len(self.nodes) - self.window), len(self.nodes))
        shown = [
            self._show(nodes, i) for i in indices if not (self.folds and self._finished_step(i))
        ]
        head = [self.summary] if self.summary else []
        return self._reminded(head + shown)

    def _show(self, nodes: Sequence[Node], i: int) -> bytes:
        node = nodes[i]
        if self.prunes and node.role == "tool" and i < len(nodes) - 6:
            return raw("tool", "[pruned]", tool_call_id=parse(node.made).answers)
        message = orjson.loads(node.shown)
        if self.renders and i < len(nodes) - 6 and node.role != "tool" and message["content"]:
            text = message["content"]
            cut = text if len(text) < 16 else text[:-1] + "…"
            return orjson.dumps({**message, "content": f"[12:{i % 60:02}]\r\n{cut}"})
        return node.shown

    def correct(self) -> None:
        """Change a message of the past in place."""
        candidates = [n for n in self.nodes[:-4] if not n.calls and n.role != "tool" and n.heard]
        if self.corrects and candidates:
            node = self.rng.choice(candidates)
            node.corrected.append(parse(node.shown).fp)
            node.shown = raw(node.role, self.text("correction"))

    def _finished_step(self, i: int) -> bool:
        later = self.nodes[i + 1 :]
        return (self.nodes[i].role == "tool" or bool(self.nodes[i].calls)) and any(
            n.role == "user" for n in later
        )

    def _reminded(self, shown: list[bytes]) -> list[bytes]:
        return [*shown, raw("system", "remember the house rules")] if self.reminds else shown

    def compact(self) -> None:
        """Let a summary stand for all but the newest exchanges."""
        users = [i for i, n in enumerate(self.nodes) if n.role == "user"]
        if (
            self.compacts_at
            and len(self.nodes) - self.summarised > self.compacts_at
            and len(users) > 2
        ):
            self.summarised = users[-2]
            self.summary = raw("user", self.text("summary"))


@dataclass
class Meeting:
    """One client and one thread, turn by turn. Everything random comes from `rng`."""

    client: Client
    thread: Thread
    rng: random.Random
    story: list[str] = field(default_factory=list)

    def step(self) -> None:
        client, rng = self.client, self.rng
        choice = rng.random()
        self._background()
        if rng.random() < 0.3:
            client.compact()
        if client.corrects and rng.random() < 0.2:
            client.correct()
        if choice < 0.10 and client.editable():
            at = rng.choice(client.editable()[-3:])
            if rng.random() < 0.25:
                if (
                    len(client.nodes) > at + 2
                ):  # else it would come back with a reply that we never saw as it shows it
                    client.keep_branch()
                client.nodes = client.nodes[: at + 1]
                self._request(f"rewind {at}")
            else:
                client.keep_branch()
                client.nodes = client.nodes[:at]
                self._say(f"edit {at}", client.say(repeats=False))
        elif choice < 0.20 and not client.thin and len(client.nodes) > 2:
            self._back_to_question()
            self._request("regenerate")
        elif choice < 0.28 and client.branches and client.returns:
            client.switch()
            self._say("switch")
        else:
            self._say("say")

    def _say(self, what: str, node: Node | None = None) -> None:
        self.client.nodes.append(node or self.client.say())
        self._request(what)

    def _back_to_question(self) -> None:
        while self.client.nodes[-1].role != "user":
            self.client.nodes.pop()

    def _request(self, what: str) -> None:
        calls = self.rng.choice((0, 0, 0, 1, 2))
        for step in range(calls + 1):
            reply = self.client.call() if step < calls else self.client.reply()
            node = self._exchange(f"{what} {step}", reply)
            if step < calls:
                self.client.nodes += self.client.results(node)

    def _exchange(self, what: str, reply: bytes) -> Node:
        """One request until the client has its reply: upstream may fail, replies get lost on either
        side."""
        luck = self.rng.random()
        if luck < 0.08:
            self._ask(what + ", upstream fails", None)
        elif luck < 0.16:
            self._ask(
                what + ", the client misses the reply",
                self.client.call() if luck < 0.1 else self.client.reply(),
            )
        elif luck < 0.22 and not self.client.thin and not self.client.folds:
            verdict, sent, _ = self._open(what + ", we miss the reply")
            forks = verdict.forks or bool(verdict.revive)
            self.thread.close(verdict, sent, reply if forks else None)
            self._check() if not forks else None
            return self.client.take(reply, heard=forks)
        retry = luck < 0.16
        self._ask(what + (", again" if retry else ""), reply, Hints(sdk_retry=retry), check=False)
        node = self.client.take(reply)
        self._check()
        return node

    def _ask(
        self, what: str, reply: bytes | None, hints: Hints = Hints(), check: bool = True
    ) -> None:
        verdict, sent, _ = self._open(what, hints)
        self.thread.close(verdict, sent, reply)
        if check and reply is None and not verdict.forks and not verdict.revive:
            self._check()

    def _open(
        self, what: str, hints: Hints = Hints()
    ) -> tuple[Verdict, SentHistory, tuple[Piece, ...]]:
        shown = self.client.shows()
        verdict, sent, pieces = self.thread.ask(shown, hints)
        self.story.append(
            f"{what}: {verdict.case} cut {verdict.cut_seq} new {verdict.new} of {len(shown)}"
        )
        check_tail(self.client, self.thread.projected(verdict, sent), pieces, shown, self.told)
        for node in self.client.nodes:
            node.heard = node.heard or not self.client.thin
        return verdict, sent, pieces

    def _check(self) -> None:
        check_truth(self.client, self.thread, self.told)
        check_memory(self.thread, self.told)

    def _background(self) -> None:
        if self.rng.random() < 0.3:
            self.thread.observe(self.rng.randrange(1, 12))
        if self.rng.random() < 0.2:
            self.thread.activate(self.rng.randrange(1, 3))

    @property
    def told(self) -> str:
        return "\n".join(self.story[-25:])


KINDS: dict[str, dict[str, object]] = {
    "whole": {},
    "window": {"window": 8},
    "compacting": {"compacts_at": 14},
    "folding": {"folds": True},
    "altering": {"alters": True},
    "pruning": {"prunes": True},
    "thin": {"thin": True},
    "reminding": {"reminds": True},
    "folding, altering": {"folds": True, "alters": True},
    "pruning, altering": {"prunes": True, "alters": True},
    "compacting, altering": {"compacts_at": 14, "alters": True},
    "compacting, folding, pruning": {"compacts_at": 14, "folds": True, "prunes": True},
    "folding, reminding": {"folds": True, "reminds": True},
    "window, altering": {"window": 10, "alters": True},
    "reordering": {"reorders": True},
    "reordering, window": {"reorders": True, "window": 9},
    "reordering, thin": {"reorders": True, "thin": True},
    "reordering, pruning": {"reorders": True, "prunes": True},
    "reordering, compacting": {"reorders": True, "compacts_at": 14},
    "rendering": {"renders": True},
    "window, rendering": {"window": 12, "renders": True},
    "correcting": {"corrects": True},
    "window, correcting": {"window": 12, "corrects": True},
}


def converse(kind: str, seed: int, turns: int, recent: int = 256) -> Meeting:
    rng = random.Random(seed)
    meeting = Meeting(Client(rng, **KINDS[kind]), Thread(recent), rng)  # type: ignore[arg-type]  # its fields, by kind
    meeting.story.append(f"{kind}, seed {seed}, {recent} recent")
    for _ in range(turns):
        meeting.step()
    return meeting


def check_truth(client: Client, thread: Thread, story: str) -> None:
    """The live transcript is the conversation: nothing lost, nothing doubled, in order."""
    reminder = parse(raw("system", "remember the house rules")).fp
    stored = [m.item.fp for m in thread.live() if m.seq not in thread.corrections]
    assert stored.count(reminder) <= 1, story
    stored = [fp for fp in stored if fp != reminder]
    truth = [node for node in client.nodes if node.heard]
    if client.reorders:  # a step's results have no order
        order = {fp: place for place, node in enumerate(truth) for fp in node.prints}
        answers = {m.item.fp: m.item.answers for m in thread.live()}
        for start, stop in _result_runs([answers[fp] for fp in stored]):
            stored[start:stop] = sorted(stored[start:stop], key=lambda fp: order.get(fp, -1))
    match = [fp in node.prints for fp, node in zip(stored, truth, strict=False)]
    assert len(stored) == len(truth), f"{story}\n{len(stored)} stored, {len(truth)} true"
    assert all(match), f"{story}\ndiffers at {match.index(False)}"


def _result_runs(answers: Sequence[str | None]) -> list[tuple[int, int]]:
    places = groupby(range(len(answers)), lambda i: answers[i] is not None)
    runs = [list(run) for is_result, run in places if is_result]
    return [(run[0], run[-1] + 1) for run in runs]


def check_memory(thread: Thread, story: str) -> None:
    """The stored memory is sound: chains chain, chunks continue the log, each live message is
    covered or in the tail."""
    memory, live = thread.memory, thread.live()
    assert [m.seq for m in live if m.seq > memory.coverage] == [m.seq for m in memory.tail], story
    assert memory.covered_count + len(memory.tail) == len(live), story
    at = 0
    for entry in memory.log.entries + memory.chunks:
        assert entry.after == at, story
        at = entry.last
        assert any(m.seq == entry.last and m.chain == entry.chain for m in live), story
    chain = memory.chain_at_coverage
    for message in memory.tail:
        chain = extend_chain(chain, message.item.fp)
        assert chain == message.chain, story


def check_pairs(
    memory: Memory, pieces: Sequence[Piece], shown: Sequence[bytes], story: str
) -> None:
    """Each result follows its call, and each call has its results, as far as the client has shown
    it."""
    forwarded = _list_broken_calls([parse(p.raw) for p in pieces])
    by_client = _list_broken_calls([parse(raw) for raw in shown])
    # a window may begin inside a step, and a client may send results alone: the store has the rest
    steps = {mark.answers for mark in memory.marks if mark.answers}
    begins_inside = parse(shown[0]).role == "tool"
    accused = forwarded & steps if begins_inside else forwarded - by_client
    assert not accused, f"{story}: broken pairs {accused}"
    # the look before forwarding says the same
    sent = SentHistory.of(tuple(shown), parse)
    assert not find_broken_pieces(pieces, memory, sent).indices, (
        f"{story}: the last look finds a fault"
    )


def _list_broken_calls(items: Sequence[Item]) -> set[str]:
    """The calls without a result right behind them, and the results without a call before them; not
    those of a step at the very end."""
    broken: set[str] = set()
    waiting: set[str] = set()
    for item in items:
        if item.role == "tool" and item.answers:
            if item.answers not in waiting:
                broken.add(item.answers)
            waiting.discard(item.answers)
            continue
        broken |= waiting
        waiting = set(item.calls)
    return broken


def check_tail(
    client: Client, memory: Memory, pieces: Sequence[Piece], shown: Sequence[bytes], story: str
) -> None:
    """The tail ends with what the request asks, holds no orphan of ours, and holds every uncovered
    message that the client shows."""
    raws = [p.raw for p in pieces]
    assert raws, story
    assert raws[-1] == shown[-1], story
    check_pairs(memory, pieces, shown, story)
    corrections = frozenset(chain.from_iterable(find_corrections(memory.views[-1:]).values()))
    stored = [p.seq for p in pieces if p.seq and p.seq not in corrections]
    assert stored == sorted(set(stored)), f"{story}: out of order or doubled"
    theirs = iter(shown)
    for piece in pieces:
        if piece.sent:
            assert piece.raw in theirs, f"{story}: not in the client's order"
    replaced = {c.from_seq for c in memory.views[-1].cells if c.kind == "replaced"}
    exact = {m.seq for m in memory.tail} - replaced - corrections
    missing_corrections = {m.seq for m in memory.tail if m.seq in corrections} - {
        *(p.seq for p in pieces),
        *replaced,
    }
    assert not missing_corrections, f"{story}: corrections are not forwarded"
    if all(cell.kind != "folded" for cell in memory.views[-1].cells):
        missing = exact - set(stored)
        assert not missing, f"{story}: {len(missing)} of the tail are not forwarded"
