"""A week of one thread: what stands before the tail changes for a reason that the store can name,
or not at all (docs/contributing/behaviour.md#stable-prefix,
docs/contributing/behaviour.md#render-date).

Every forwarded prompt is compared with the one before it. Instructions, observation block and hint
may change at an activation, a reflection, a fork that takes observed messages back, or after an
hour in which nobody asked; the tail may lose what became covered and what was taken back. Whether
that happened is read from the memory in the store before and after the request, never guessed from
the prompt. Midnights, the change of the clocks, retries, failures and slow answers are no reasons.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Literal
from zoneinfo import ZoneInfo

import msgspec
import orjson
import pytest

from om_proxy.memory.model import Memory
from om_proxy.memory.prompt.context import continuation_hint
from om_proxy.testing.scripted import ACTOR, Fault, ScriptedServer
from tests.e2e.running import Clock, Running, read_streamed_text, run_with_scripted_models
from tests.support.long_forms import long_form

HOUR = 3_600.0  # seconds the provider's prompt cache lives
ANSWERING = 20.0  # seconds an answer takes: some are asked for on one day and come on the next
THRESHOLDS = "observation: {message_tokens: 700, buffer_tokens: 150, block_timeout: 2s}, reflection: {observation_tokens: 1000}"
REFLECTOR = 'models: {"*": {reflection: {model: openai/scripted-reflector}}}'
INSTRUCTIONS = {"role": "system", "content": "You keep the books of a packing house. Be brief."}
HINT = continuation_hint(date(2026, 1, 1)).partition("today is ")[0]

Style = Literal["full", "window", "new"]
Prompt = tuple[bytes, ...]

HOUR_LOST = ("Europe/Berlin", datetime(2026, 3, 23))  # noqa: DTZ001 — a local day
HOUR_WON = ("America/New_York", datetime(2026, 10, 26))  # noqa: DTZ001 — as above
WEEKS = [  # local days of which the sixth night changes the clocks
    pytest.param(*HOUR_LOST, "blocks", id="Berlin, blocks"),
    pytest.param(*HOUR_WON, "merged", id="New York, merged"),
    pytest.param(*HOUR_LOST, "merged", id="Berlin, merged", marks=long_form),
    pytest.param(*HOUR_WON, "blocks", id="New York, blocks", marks=long_form),
]


# ── the week ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Step:
    """`act` is a method of Client; `gap`: seconds since the answer before, None: when the session
    begins."""

    act: str
    at: datetime
    gap: float | None


MORNING = "say say tool say say".split()  # noqa: SIM905 — words are what a session reads like
NOON = "say say tool say".split()  # noqa: SIM905 — as above
NIGHT = "say tool say say say say".split()  # noqa: SIM905 — as above
FORKS = {  # (day, session): what takes something back, or asks again
    (0, "noon"): "say again other say",
    (1, "morning"): "say edit say other say",
    (1, "night"): "say again say say edit say",
    (2, "noon"): "say say fail say",
    (3, "morning"): "say say deep say say",
    (3, "night"): "say other say say edit say",
    (4, "noon"): "say back say",
    (5, "morning"): "say again fail again say",
    (6, "noon"): "say deep say say",
}


def week(first: datetime, zone: ZoneInfo, style: Style) -> Iterator[Step]:
    """Three sessions a day, the last one through midnight; in the sixth night it lasts until the
    clocks have changed."""
    for day in range(7):
        for session, hour, words, minutes in (
            ("morning", 8.6, MORNING, (4, 12, 3, 55, 9)),
            ("noon", 14.2, NOON, (7, 2, 31, 58)),
            ("night", 23.25, NIGHT, (14, 17, 12, 8, 25, 30)),
        ):
            start = first.replace(tzinfo=zone) + timedelta(
                days=day, hours=hour
            )  # wall time of that day
            acts = (
                FORKS[day, session].split()
                if style == "full" and (day, session) in FORKS
                else words
            )
            acts = [*acts, *["say"] * 12] if (day, session) == (5, "night") else acts
            for n, act in enumerate(acts):
                yield Step(act, start, 60.0 * minutes[n % len(minutes)] if n else None)
    # an hour exactly, and one second more, both across midnight
    last = first.replace(tzinfo=zone) + timedelta(days=7, hours=23, minutes=20)
    yield Step("say", last, None)
    yield Step("say", last, HOUR)
    yield Step("say", last + timedelta(days=1), None)
    yield Step("say", last, HOUR + 1)


class Slow(ScriptedServer):
    """An answer takes its time, on the clock of the test."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock=clock)
        self.time = clock

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if (
            dict(scope["headers"]).get(b"authorization") == b"Bearer sk-a"
        ):  # the actor; observers do not hold up the clock
            self.time.now += ANSWERING
        await super().__call__(scope, receive, send)


# ── what is looked at ─────────────────────────────────────────────────────────────────────────────


class Body(msgspec.Struct):
    messages: list[msgspec.Raw]


def front(prompt: Prompt) -> int:
    """How many messages stand before the tail: up to the one that ends in the hint, or the
    instructions where there is none."""
    for n, message in enumerate(prompt):
        if HINT.encode() in message:
            return n + 1
    return 1


@dataclass
class Watch:
    """Compares each forwarded prompt with the one before, and asks the store why they differ."""

    run: Running
    zone: ZoneInfo
    act: str = ""
    before: Memory | None = None
    prompt: Prompt = ()
    asked_at: float = 0.0  # when the last request went out
    answered_at: float = 0.0
    seen: int = 0
    changes: Counter[str] = field(default_factory=Counter)
    unchanged: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    async def look(self, asked_at: float, *, is_refused: bool = False) -> None:
        """At the request that was sent last; its background work is done. One that is refused may
        have been sent once more without memory's additions."""
        after, sent = await self.run.memory(), self.run.models.requests_to(ACTOR)
        new, self.seen = sent[self.seen :], len(sent)
        assert len(new) == 1 or (is_refused and len(new) == 2), "requests to the actor"
        prompt = tuple(bytes(raw) for raw in msgspec.json.decode(new[0].body, type=Body).messages)
        if self.before:
            self._judge(self.before, after, prompt, idle=asked_at - self.answered_at > HOUR)
            self._count_days(asked_at, prompt)
        self._dated(after, prompt, asked_at)
        self.before, self.prompt, self.asked_at, self.answered_at = (
            after,
            prompt,
            asked_at,
            self.run.clock.now,
        )

    def _judge(self, before: Memory, after: Memory, prompt: Prompt, *, idle: bool) -> None:
        forked = not _holds(after, before)
        causes = set(_causes(before, after, forked, idle))
        old, new = self.prompt, prompt
        if new[: front(new)] != old[: front(old)]:
            self.changes[" + ".join(sorted(causes)) or "nothing"] += 1
            if not causes:
                self._fault("the prefix changed for nothing", before, after, old, new)
        elif causes & {"activation", "reflection", "fork"}:
            self._fault("the prefix did not follow the memory", before, after, old, new)
        kept, tail = _kept(before, after, old[front(old) :]), new[front(new) :]
        if tail[: len(kept)] != kept:
            self._fault("the tail does not go on from what it was", before, after, old, new)

    def _dated(self, memory: Memory, prompt: Prompt, asked_at: float) -> None:
        """The day the actor is told is the day of the render date where the user is, and today's
        after a pause."""
        if not memory.log.entries:
            return
        assert memory.render_date is not None
        hint = continuation_hint(datetime.fromtimestamp(memory.render_date, self.zone))
        if hint.encode() not in b"".join(prompt[: front(prompt)]):
            self.faults.append(f"{self.act}: the hint names another day than the render date")
        if (
            self.answered_at
            and asked_at - self.answered_at > HOUR
            and memory.render_date < asked_at
        ):
            self.faults.append(f"{self.act}: after a pause the dates are not today's")

    def _count_days(self, asked_at: float, prompt: Prompt) -> None:
        """How often a midnight, or a change of the clocks, passed with the prefix as it was."""
        was, now = (datetime.fromtimestamp(at, self.zone) for at in (self.asked_at, asked_at))
        told = prompt[: front(prompt)]
        if told == self.prompt[: front(self.prompt)] and HINT.encode() in told[-1]:
            self.unchanged["request"] += 1
            self.unchanged["midnight"] += was.date() != now.date()
            self.unchanged["clocks"] += was.utcoffset() != now.utcoffset()

    def _fault(self, what: str, before: Memory, after: Memory, old: Prompt, new: Prompt) -> None:
        when = datetime.fromtimestamp(self.run.clock.now, self.zone)
        self.faults.append(
            f"{when:%a %H:%M} {self.act}: {what}; {before!r} -> {after!r}; {difference(old, new)}"
        )

    def report(self) -> str:
        return "\n".join(
            [f"changes {dict(self.changes)}", f"unchanged {dict(self.unchanged)}", *self.faults]
        )


def _holds(after: Memory, before: Memory) -> bool:
    """Whether all of the transcript as it was still stands."""
    return not before.count or before.chain in {m.chain for m in after.marks}


def _kept(before: Memory, after: Memory, tail: Prompt) -> Prompt:
    """What the new tail has to begin with: all of the old one, without what became covered and what
    was taken back."""
    if _holds(after, before):
        return tail[max(after.covered_count - before.covered_count, 0) :]
    standing = {m.chain for m in after.tail}
    return (
        tail[: sum(m.chain in standing for m in before.tail)]
        if after.coverage == before.coverage
        else ()
    )


def _causes(before: Memory, after: Memory, forked: bool, idle: bool) -> Iterator[str]:
    """A fork within the tail is none: nothing is taken back of what is told before it."""
    entries = [o.id for o in before.log.entries]
    told_otherwise = [o.id for o in after.log.entries][: len(entries)] != entries
    if after.coverage > before.coverage:
        yield "activation"
    elif idle and after.render_date != before.render_date:
        yield "idle"
    if told_otherwise:
        yield "fork" if forked else "reflection"


def difference(old: Prompt, new: Prompt) -> str:
    """The first place where they differ, with some of what follows."""
    one, other = b"\n".join(old), b"\n".join(new)
    at = next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )
    return f"at {at}: {one[at - 20 : at + 60]!r} / {other[at - 20 : at + 60]!r}"


# ── the client ────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Client:
    """One that shows its whole history, a window of it, or only what is new."""

    watch: Watch
    style: Style
    zone: str
    history: list[dict[str, Any]] = field(default_factory=list)
    left: list[dict[str, Any]] = field(default_factory=list)  # a branch it has left
    count: int = 0

    @property
    def run(self) -> Running:
        return self.watch.run

    async def say(self) -> None:
        await self._asked({"role": "user", "content": self._words()})

    async def tool(self) -> None:
        """A question, a call, its result, an answer."""
        words = self._words()
        call = {
            "id": f"c{self.count}",
            "type": "function",
            "function": {"name": "weigh", "arguments": '{"lot": 7}'},
        }
        self.run.models.script[words] = {"role": "assistant", "content": None, "tool_calls": [call]}
        await self._asked({"role": "user", "content": words})
        await self._asked(
            {
                "role": "tool",
                "tool_call_id": call["id"],
                "content": f"lot 7: {self.count} kg in total",
            }
        )

    async def again(self) -> None:
        """The last request once more, and the same answer."""
        self.history.pop()
        await self._send()

    async def other(self) -> None:
        """The last request once more, for another answer."""
        self.history.pop()
        words = self.history[-1].get("tool_call_id") or self.history[-1]["content"]
        self.run.models.script[words] = {
            "role": "assistant",
            "content": f"Put otherwise, number {self.count}: noted.",
        }
        await self._send()

    async def edit(self) -> None:
        """The last question, asked differently."""
        self._back(1)
        await self.say()

    async def deep(self) -> None:
        """A question long ago, asked differently; the branch is kept."""
        self.left = list(self.history)
        self._back(12)
        await self.say()

    async def back(self) -> None:
        """To the branch that was left."""
        self.history = list(self.left)
        await self.say()

    async def fail(self) -> None:
        """The model server answers 500, and the client asks again."""
        self.run.models.faults.switch(Fault(kind="http", model=ACTOR, times=2, status=500))
        self.history.append({"role": "user", "content": self._words()})
        assert await self._post() is None
        self.run.models.faults.switch()
        await self._send()

    def _words(self) -> str:
        self.count += 1
        n = self.count
        if n % 3:
            return f"Could lot {n} go to shed {n % 5} next week (meaning March {n % 27 + 1}, 2026)? Is {300 + n} crates too many?"
        return (
            f"Lot {n} goes to the north shed, {300 + n} crates at {n}.50 each. "
            f"We will press lot {n + 1} in a while (estimated November {n % 29 + 1}, 2026). Is shed {n % 5} free for lot {n}?"
        )

    def _back(self, turns: int) -> None:
        users = [n for n, m in enumerate(self.history) if m["role"] == "user"]
        del self.history[users[-turns] :]

    async def _asked(self, message: dict[str, Any]) -> None:
        self.history.append(message)
        await self._send()

    async def _send(self) -> None:
        reply = await self._post()
        assert reply is not None
        self.history.append(reply)

    def _shown(self) -> list[dict[str, Any]]:
        users = [n for n, m in enumerate(self.history) if m["role"] == "user"]
        start = {"full": 0, "window": users[-3:][0], "new": len(self.history) - 1}[self.style]
        return [INSTRUCTIONS, *self.history[start:]]

    async def _post(self) -> dict[str, Any] | None:
        stream = (
            bool(self.count % 2) and self.history[-1]["role"] == "user" and not self._scripted()
        )
        body = {"model": ACTOR, "messages": self._shown(), "stream": stream}
        headers = {
            "authorization": "Bearer sk-a",
            "x-om-thread": "week",
            "x-om-timezone": self.zone,
            "x-om-history": "auto" if self.style == "full" else self.style,
        }
        asked_at = self.run.clock.now
        answer = await self.run.http.post(
            f"{self.run.base}/v1/chat/completions", json=body, headers=headers
        )
        await self.run.app.background.wait_idle()
        await self.watch.look(asked_at, is_refused=answer.status_code == 500)
        if answer.status_code == 500:
            return None
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-om-status"] in ("raw", "applied"), answer.headers
        if stream:
            return {"role": "assistant", "content": read_streamed_text(answer.content)}
        reply: dict[str, Any] = orjson.loads(answer.content)["choices"][0]["message"]
        return reply

    def _scripted(self) -> bool:
        return self.history[-1]["content"] in self.run.models.script


async def lived(run: Running, zone: str, first: datetime, style: Style) -> Watch:
    """The whole week, each turn with its background work done before the next."""
    watch = Watch(run, ZoneInfo(zone))
    client = Client(watch, style, zone)
    for step in week(first, ZoneInfo(zone), style):
        run.clock.now = step.at.timestamp() if step.gap is None else run.clock.now + step.gap
        watch.act = step.act
        await getattr(client, step.act)()
    return watch


@pytest.fixture(params=["blocks", "merged"])
def layout(request: pytest.FixtureRequest) -> str:
    return f"context: {{layout: {request.param}}}"


@asynccontextmanager
async def packing_house(tmp_path: Path, layout: str) -> AsyncIterator[Running]:
    models = Slow(Clock())
    async with run_with_scripted_models(
        tmp_path, memory=THRESHOLDS, models=models, more=f"{layout}\n            {REFLECTOR}"
    ) as run:
        models.time = run.clock
        yield run


@pytest.mark.parametrize(("zone", "first", "layout"), WEEKS, indirect=["layout"])
async def test_a_week(tmp_path: Path, layout: str, zone: str, first: datetime) -> None:
    """Every change of the prefix has its cause in the store; each cause is met, and so are
    midnights and the change of the clocks."""
    async with packing_house(tmp_path, layout) as run:
        watch = await lived(run, zone, first, "full")
    assert not watch.faults, watch.report()
    met = Counter(
        cause
        for causes, times in watch.changes.items()
        for cause in causes.split(" + ")
        for _ in range(times)
    )
    assert met["activation"] >= 8, watch.report()
    assert met["reflection"] >= 3, watch.report()
    assert met["fork"] >= 2, watch.report()
    assert met["idle"] >= 4, watch.report()
    assert watch.unchanged["midnight"] >= 5, watch.report()
    assert watch.unchanged["clocks"] == 1, watch.report()
    assert watch.unchanged["request"] > 3 * sum(watch.changes.values()), watch.report()


@pytest.mark.parametrize(
    ("style", "layout"), [("window", "merged"), ("new", "blocks")], indirect=["layout"]
)
async def test_a_week_of_clients_that_show_less(tmp_path: Path, layout: str, style: Style) -> None:
    """What a client no longer shows, or never did, is filled in with the same bytes every time."""
    zone, first = "Europe/Berlin", datetime(2026, 3, 23)  # noqa: DTZ001 — a local day
    async with packing_house(tmp_path, layout) as run:
        watch = await lived(run, zone, first, style)
    assert not watch.faults, watch.report()
    assert sum(watch.changes.values()) >= 12, watch.report()
    assert watch.unchanged["midnight"] >= 5, watch.report()


# ── at a pause ────────────────────────────────────────────────────────────────────────────────────


async def remembering(run: Running, zone: str, at: datetime) -> Client:
    """A client whose thread has notes, made on the day before."""
    client = Client(Watch(run, ZoneInfo(zone)), "full", zone)
    run.clock.now = at.timestamp() - 86_400
    while not (await run.memories() and (await run.memory()).log.entries):
        await client.say()
    run.clock.now = at.timestamp()
    return client


def prefix(client: Client) -> Prompt:
    return client.watch.prompt[: front(client.watch.prompt)]


async def test_a_request_after_a_pause_starts_the_day(tmp_path: Path, layout: str) -> None:
    """Asked late in the evening after a pause: midnight comes with a warm cache, and the date
    stays."""
    async with packing_house(tmp_path, layout) as run:
        client = await remembering(run, "UTC", datetime(2026, 3, 24, 23, 50, tzinfo=UTC))
        yesterday = prefix(client)
        await client.say()
        evening = prefix(client)
        assert evening != yesterday
        run.clock.now += 1_200
        await client.say()
        assert prefix(client) == evening
        assert not client.watch.faults, client.watch.report()


@pytest.mark.parametrize("pause", [0.0, 3 * HOUR], ids=["within the hour", "after a pause"])
async def test_a_retry_keeps_the_cache_warm(tmp_path: Path, layout: str, pause: float) -> None:
    """The last request once more, answered as before: midnight comes within the hour, and the date
    it was told stays."""
    async with packing_house(tmp_path, layout) as run:
        client = await remembering(
            run, "UTC", datetime(2026, 3, 24, 23, 5, tzinfo=UTC) - timedelta(seconds=pause)
        )
        await client.say()
        run.clock.now += pause + 2_400
        await client.again()
        evening = prefix(client)
        run.clock.now += 1_800
        await client.say()
        assert prefix(client) == evening


async def test_another_time_zone(tmp_path: Path, layout: str) -> None:
    """A second device, or a traveller: the day is told anew when the prefix changes anyway, not
    when the zone does."""
    async with packing_house(tmp_path, layout) as run:
        client = await remembering(run, "UTC", datetime(2026, 3, 24, 20, 0, tzinfo=UTC))
        await client.say()
        before = prefix(client)
        client.zone = "Asia/Tokyo"
        run.clock.now += 60
        await client.say()
        assert prefix(client) == before
