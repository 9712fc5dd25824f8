"""Every trigger, budget and choice of model of observing and reflecting, set in the configuration
and seen over the wire."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from om_proxy.memory.model import Memory
from om_proxy.testing.scripted import OBSERVER, REFLECTOR, Fault, Message, ScriptedServer
from tests.e2e.running import Chat, Running, run_with_scripted_models

ACTOR = "scripted-actor"
SCANNING = "background: {observer_interval: 20ms}"
LONG = (
    "Crate {n} weighs {n} kilos, is painted red and goes to dock {n} at Quarry Steps. " * 8
)  # about 180 tokens
SHORT = "Crate {n} weighs {n} kilos."
ASKED = (
    "Would you tell me once more how heavy crate {n} is, and which dock at Quarry Steps it goes to? "
    * 8
)  # one 🟡 note


class Minds(ScriptedServer):
    """A model server with observers and reflectors of many names: all that end so. `asked` tells
    that an observer was."""

    def __init__(self) -> None:
        super().__init__()
        self.title: str | None = None
        self.asked = asyncio.Event()

    def choose_answer(
        self, model: str, messages: Sequence[Message], fault: Fault | None
    ) -> Message:
        if model.endswith("-reflector"):
            return super().choose_answer(REFLECTOR, messages, fault)
        if not model.endswith("-observer"):
            return super().choose_answer(model, messages, fault)
        self.asked.set()
        answer = super().choose_answer(OBSERVER, messages, fault)
        title = f"\n<thread-title>{self.title}</thread-title>" if self.title else ""
        return {**answer, "content": f"{answer['content']}{title}"}

    @property
    def work(self) -> list[str]:
        """Which models were asked, in order."""
        return [seen.model for seen in self.requests]


@dataclass
class Client(Chat):
    """A client that may change its model."""

    model: str | None = ACTOR

    async def send(
        self, messages: list[dict[str, Any]], *, stream: bool = False
    ) -> tuple[str, dict[str, str]]:
        body = {"messages": messages} | ({"model": self.model} if self.model else {})
        url = f"{self.running.base}/v1/chat/completions"
        answer = await self.running.http.post(url, json=body, headers=self.headers)
        assert answer.status_code == 200, answer.text
        receipt = {n[5:]: v for n, v in answer.headers.items() if n.startswith("x-om-")}
        return orjson.loads(answer.content)["choices"][0]["message"]["content"], receipt

    async def turns(self, count: int, text: str = LONG) -> list[dict[str, str]]:
        """So many turns, memory's work after each of them done; their receipts."""
        receipts = []
        for _ in range(count):
            receipts.append((await self.say(text.format(n=len(self.history))))[1])
            await self.running.app.background.wait_idle()
        return receipts


def client(run: Running, model: str | None = ACTOR) -> Client:
    chat = run.chat()
    return Client(run, chat.headers, model=model)


def minds(run: Running) -> Minds:
    assert isinstance(run.models, Minds)
    return run.models


def observation(more: str = "", *, T: int = 1_200, interval: object = 300) -> str:  # noqa: N803 - the specification's name
    return (
        f"observation: {{message_tokens: {T}, buffer_tokens: {interval}, block_timeout: 5s{more}}}"
    )


# ── on idle ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("idle", "model", "seconds"),
    [
        pytest.param("10m", ACTOR, 600, id="as activate_after_idle"),
        pytest.param("auto", ACTOR, 300, id="auto: an unknown provider"),
        pytest.param("off", ACTOR, 300, id="the provider's cache"),
        pytest.param("off", f"gemini/{ACTOR}", 86_400, id="another provider's cache"),
    ],
)
async def test_what_is_left_over_is_buffered_once_idle(
    tmp_path: Path, idle: str, model: str, seconds: int
) -> None:
    """Half an interval waits until the prompt cache is cold, then is found without a request, and
    used by the next one."""
    memory = f"{observation(', buffer_on_idle: true')}, activate_after_idle: {idle}"
    async with run_with_scripted_models(tmp_path, memory, models=Minds(), more=SCANNING) as run:
        talk, start = client(run, model), run.clock.now
        await talk.turns(1)
        made = await run.memory()
        assert (made.chunks, made.due_at) == ((), start + seconds)
        assert await run.app.store.due_threads(start + seconds - 0.1, 10) == ()
        run.clock.now += seconds
        await asyncio.wait_for(minds(run).asked.wait(), 30)
        await run.app.background.wait_idle()
        made = await run.memory()
        assert ([c.last for c in made.chunks], made.due_at) == ([2], None)
        (receipt,) = await talk.turns(1, SHORT)
        expected = ("applied", "0") if idle != "off" else ("raw", "1")
        assert (receipt["status"], receipt["chunks"]) == expected


async def test_it_is_found_after_a_restart(tmp_path: Path) -> None:
    """The store knows when it is due: no request is needed in the process that does it."""
    memory = observation(", buffer_on_idle: true")
    async with run_with_scripted_models(tmp_path, memory, models=Minds()) as run:
        await client(run).turns(1)
        assert (await run.memory()).chunks == ()
    async with run_with_scripted_models(tmp_path, memory, models=Minds(), more=SCANNING) as run:
        run.clock.now += 300
        await asyncio.wait_for(minds(run).asked.wait(), 30)
        await run.app.background.wait_idle()
        assert len((await run.memory()).chunks) == 1


@pytest.mark.parametrize(
    ("switched_on", "text"), [("true", SHORT), ("false", LONG)], ids=["too little", "not asked for"]
)
async def test_nothing_is_due_when_idle(tmp_path: Path, switched_on: str, text: str) -> None:
    """Less than half an interval is never sent; without `buffer_on_idle` nothing below an interval
    is."""
    memory = observation(f", buffer_on_idle: {switched_on}")
    async with run_with_scripted_models(tmp_path, memory, models=Minds()) as run:
        await client(run).turns(1, text)
        assert (await run.memory()).due_at is None


# ── a cold cache ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("idle", "model", "gap", "status"),
    [
        ("5m", ACTOR, 299, "raw"),
        ("5m", ACTOR, 300, "applied"),
        ("off", ACTOR, 10**6, "raw"),
        ("auto", ACTOR, 299, "raw"),
        ("auto", ACTOR, 300, "applied"),
        ("auto", f"deepseek/{ACTOR}", 3_599, "raw"),
        ("auto", f"deepseek/{ACTOR}", 3_600, "applied"),
    ],
)
async def test_a_pause_activates(
    tmp_path: Path, idle: str, model: str, gap: int, status: str
) -> None:
    """Below the threshold, what is buffered becomes active with the first request after the pause:
    no observer is asked for it."""
    async with run_with_scripted_models(
        tmp_path, f"{observation()}, activate_after_idle: {idle}", models=Minds()
    ) as run:
        talk = client(run, model)
        assert (await talk.turns(3))[-1]["status"] == "raw"
        assert len((await run.memory()).chunks) == 1
        run.clock.now += gap
        _, receipt = await talk.say("And now?")
        assert (receipt["status"], receipt["chunks"]) == (
            status,
            "0" if status == "applied" else "1",
        )
        assert int(receipt["pending-tokens"]) < 1_200
        assert minds(run).work[-2:] != [OBSERVER, ACTOR]


async def test_a_pause_leaves_as_much_raw_as_the_threshold_does(tmp_path: Path) -> None:
    """It activates once: what it does not take stays buffered, and the next turn finds the prompt
    as it is."""
    memory = f"{observation(T=6_000, interval=300)}, activate_after_idle: 5m"
    async with run_with_scripted_models(tmp_path, memory, models=Minds()) as run:
        talk = client(run)
        await talk.turns(12)
        chunks = len((await run.memory()).chunks)
        run.clock.now += 300
        first, second = await talk.turns(2, SHORT)
        assert 0 < int(first["chunks"]) < chunks
        assert int(first["pending-tokens"]) > 1_000
        assert int(second["chunks"]) >= int(first["chunks"])


@pytest.mark.parametrize(
    ("switched_on", "second", "status"),
    [
        pytest.param("true", "other-actor", "applied", id="another model"),
        pytest.param("true", f"deepseek/{ACTOR}", "applied", id="the same elsewhere"),
        pytest.param("true", ACTOR, "raw", id="the same"),
        pytest.param("true", None, "raw", id="none named"),
        pytest.param("false", "other-actor", "raw", id="switched off"),
    ],
)
async def test_another_model_activates(
    tmp_path: Path, switched_on: str, second: str | None, status: str
) -> None:
    """Its prompt cache never saw the conversation, so shortening the prompt costs nothing."""
    memory = f"{observation()}, activate_on_provider_change: {switched_on}"
    async with run_with_scripted_models(tmp_path, memory, models=Minds()) as run:
        talk = client(run)
        await talk.turns(3)
        run.clock.now += 1
        talk.model = second
        _, receipt = await talk.say("And now?")
        assert receipt["status"] == status


# ── budgets ───────────────────────────────────────────────────────────────────────────────────────

OWN_REFLECTOR = "models: {'*': {observation: {model: openai/scripted-observer}, reflection: {model: openai/scripted-reflector}}}"


async def test_a_shared_budget(tmp_path: Path) -> None:
    """Messages use what observations leave free, and together they stay within T + R and a turn;
    buffering goes on."""
    memory = f"{observation(T=600, interval=0.25)}, reflection: {{observation_tokens: 900}}, share_token_budget: true"
    async with run_with_scripted_models(
        tmp_path, memory, models=Minds(), more=OWN_REFLECTOR
    ) as run:
        receipts = await client(run).turns(60, ASKED)
        pending = [int(r["pending-tokens"]) for r in receipts]
        both = [p + int(r["observation-tokens"]) for p, r in zip(pending, receipts, strict=True)]
        raw = [r for r in receipts if r["status"] == "raw"]
        assert 1_200 < int(raw[-1]["pending-tokens"]) < 1_500, (
            "while there are no observations, messages have it all"
        )
        assert max(both) < 1_500 + 250
        assert max(int(r["chunks"]) for r in receipts) > 1
        assert int(receipts[-1]["generation"]) >= 1
        assert {r.get("reason") for r in receipts} == {None}, "nobody waited, nothing failed"


async def test_without_buffering_requests_wait(tmp_path: Path) -> None:
    """`buffer_tokens: false`: nothing in the background; at T a request has all but its own
    question observed, at R it has the log condensed."""
    memory = f"{observation(T=600, interval='false')}, reflection: {{observation_tokens: 400}}"
    async with run_with_scripted_models(
        tmp_path, memory, models=Minds(), more=OWN_REFLECTOR
    ) as run:
        talk, models, seen = client(run), minds(run), []
        for _ in range(40):
            before = len(models.requests)
            (receipt,) = await talk.turns(1, ASKED)
            work = models.work[before:]
            assert work[-1] == ACTOR, "nothing is done after the reply"
            assert len(work) <= 2, "at most one model call before it"
            seen.append((work[0], receipt))
        observed = [r for model, r in seen if model == OBSERVER]
        assert len(observed) >= 4
        assert all(r["status"] == "applied" and int(r["pending-tokens"]) < 250 for r in observed)
        assert max(int(r["pending-tokens"]) for _, r in seen) < 600
        reflected = [r for model, r in seen if model == REFLECTOR]
        assert reflected
        assert all(int(r["observation-tokens"]) < 400 for r in reflected)


async def test_without_buffering_a_failure_is_not_the_end(tmp_path: Path) -> None:
    """In its back-off the thread goes raw; after it the next request tries again."""
    async with run_with_scripted_models(
        tmp_path, observation(T=600, interval="false"), models=Minds()
    ) as run:
        talk = client(run)
        run.models.faults.switch(Fault(kind="http", model=OBSERVER, status=401))
        receipts = await talk.turns(5)
        assert {r["status"] for r in receipts} == {"raw"}
        assert [r.get("reason") for r in receipts[-3:]] == [
            "observer-failing",
            "observer-late",
            "observer-late",
        ]
        assert minds(run).work.count(OBSERVER) == 1
        run.models.faults.switch()
        run.clock.now += 80  # seconds; the first back-off is a minute and a quarter of it at most
        (receipt,) = await talk.turns(1)
        assert (receipt["status"], receipt.get("reason")) == ("applied", None)
        assert (await run.memory()).failures.count == 0


@pytest.mark.parametrize(
    ("block_after", "waits"),
    [("1.2", True), ("3", False), ("700", True), ("1500", False), ("99", False)],
)
async def test_block_after(tmp_path: Path, block_after: str, waits: bool) -> None:
    """A multiple of T, or tokens from 100 on: from there on a request waits for its observation."""
    async with run_with_scripted_models(
        tmp_path, observation(f", block_after: {block_after}", T=600, interval=150), models=Minds()
    ) as run:
        talk = client(run)
        await talk.turns(1, "hi")
        talk.history += [
            {"role": role, "content": LONG.format(n=n)}
            for n in range(3)
            for role in ("user", "assistant")
        ]
        before = len(run.models.requests)
        (receipt,) = await talk.turns(1, SHORT)
        assert (minds(run).work[before] == OBSERVER) is waits
        assert receipt["status"] == ("applied" if waits else "raw")


# ── what the observer is shown ────────────────────────────────────────────────────────────────────


async def observed(run: Running) -> Memory:
    """A thread that was observed several times."""
    await client(run).turns(12)
    assert len(run.models.requests_to(OBSERVER)) >= 4
    return await run.memory()


def known(run: Running) -> str:
    """What the newest observation was reminded of."""
    (text,) = [
        str(m["content"])
        for m in run.models.requests_to(OBSERVER)[-1].messages
        if m["role"] == "user"
    ]
    return text.partition("<previous-observations>\n")[2].partition("\n</previous-observations>")[0]


def noted(run: Running) -> list[str]:
    """All lines noted before the newest observation."""
    answers = [str(seen.answer["content"]) for seen in run.models.requests_to(OBSERVER)[:-1]]
    return [line for answer in answers for line in answer.splitlines() if line.startswith("* ")]


@pytest.mark.parametrize("previous", ["0", "false", "120"])
async def test_previous_observer_tokens(tmp_path: Path, previous: str) -> None:
    """0: the observer sees nothing of what was noted, false: all of it, a number: the newest so
    many tokens, the gap marked."""
    memory = observation(f", previous_observer_tokens: {previous}")
    async with run_with_scripted_models(tmp_path, memory, models=Minds()) as run:
        await observed(run)
        shown, lines = known(run), noted(run)
        kept = [line for line in lines if line in shown]
        if previous == "0":
            assert shown == ""
        elif previous == "false":
            assert kept == lines
        else:
            assert kept == lines[-len(kept) :]
            assert 0 < len(kept) < len(lines)
            assert "left out]" in shown
            assert len(shown) < 120 * 5, "a token of these words has four characters"


async def test_instructions_and_their_prompts(tmp_path: Path) -> None:
    """The operator's words stand in the system prompt of the agent they were written for."""
    memory = (
        f"{observation(', instruction: Mind the weights of crates.', T=600)}, "
        "reflection: {observation_tokens: 400, instruction: Forget the docks.}"
    )
    async with run_with_scripted_models(
        tmp_path, memory, models=Minds(), more=OWN_REFLECTOR
    ) as run:
        await client(run).turns(20)
        for model, own, other in (
            (OBSERVER, "Mind the weights of crates.", "Forget the docks."),
            (REFLECTOR, "Forget the docks.", "Mind the weights of crates."),
        ):
            asked = run.models.requests_to(model)
            assert asked
            assert all(own in str(seen.messages[0]["content"]) for seen in asked)
            assert all(other not in str(m["content"]) for seen in asked for m in seen.messages)


async def test_thread_title(tmp_path: Path) -> None:
    """Asked for where it is wanted, kept with the thread; an answer without one keeps it, the
    observer is told it."""
    async with run_with_scripted_models(
        tmp_path, observation(", thread_title: true"), models=Minds()
    ) as run:
        talk = client(run)
        minds(run).title = "Crates for Quarry Steps"
        await talk.turns(3)
        assert (await run.memory()).title == "Crates for Quarry Steps"
        minds(run).title = None
        await talk.turns(6)
        assert (await run.memory()).title == "Crates for Quarry Steps"
        asked = run.models.requests_to(OBSERVER)
        assert "thread-title" in str(asked[0].messages[0]["content"])
        assert "<thread-title>\nCrates for Quarry Steps\n</thread-title>" in str(
            asked[-1].messages[-1]["content"]
        )
        (info,) = await run.app.store.threads(None)
        assert info.title == "Crates for Quarry Steps"


async def test_no_title_is_asked_for_by_default(tmp_path: Path) -> None:
    """Its tokens are spent by those who show it."""
    async with run_with_scripted_models(tmp_path, observation(), models=Minds()) as run:
        await client(run).turns(3)
        (asked,) = run.models.requests_to(OBSERVER)
        assert "thread-title" not in str(asked.messages)
        assert (await run.memory()).title is None


# ── which model is asked ──────────────────────────────────────────────────────────────────────────


def asking(model: str) -> str:
    return f"models: {{'*': {{model: {model}}}}}"


async def test_the_second_model_answers_for_the_first(tmp_path: Path) -> None:
    """A list is tried in order; what came is told with the note."""
    listed = "[{model: openai/first-observer, max_retries: 0}, openai/second-observer]"
    async with run_with_scripted_models(
        tmp_path, observation(), models=Minds(), more=asking(listed)
    ) as run:
        run.models.faults.switch(Fault(kind="http", model="first-observer", status=503))
        await client(run).turns(3)
        assert [m for m in minds(run).work if m != ACTOR] == [
            "first-observer",
            "first-observer",
            "second-observer",
        ]
        (chunk,) = (await run.memory()).chunks
        assert chunk.model == "second-observer"


async def test_all_models_fail(tmp_path: Path) -> None:
    """Each is asked once, and the thread backs off."""
    async with run_with_scripted_models(
        tmp_path,
        observation(),
        models=Minds(),
        more=asking("[openai/first-observer, openai/second-observer]"),
    ) as run:
        run.models.faults.switch(Fault(kind="http", model="*-observer", status=401))
        await client(run).turns(3)
        assert [m for m in minds(run).work if m != ACTOR] == ["first-observer", "second-observer"]
        assert (await run.memory()).failures.count == 1


async def test_the_input_chooses_the_tier(tmp_path: Path) -> None:
    """`up_to`: by the tokens to be observed, inclusive; beyond the largest the largest is asked."""
    tiers = "{up_to: {450: openai/small-observer, 800: [openai/broken-observer, openai/large-observer]}}"
    async with run_with_scripted_models(
        tmp_path, observation(T=3_000), models=Minds(), more=asking(tiers)
    ) as run:
        run.models.faults.switch(Fault(kind="http", model="broken-observer", status=401))
        talk, models = client(run), minds(run)
        for size, asked in (
            (2, ["small-observer"]),
            (4, ["broken-observer", "large-observer"]),
            (6, ["broken-observer", "large-observer"]),
        ):
            before = len(models.requests)
            await talk.turns(1, LONG * size)
            assert [m for m in models.work[before:] if m != ACTOR] == asked
        sizes = [c.source_tokens for c in (await run.memory()).chunks]
        assert sizes[0] <= 450 < sizes[1] <= 800 < sizes[2]


async def test_what_is_observed_is_shown_whole(tmp_path: Path) -> None:
    """Only one block larger than T is clipped for the observer; a waited-for backlog of many is
    read as it is."""
    async with run_with_scripted_models(
        tmp_path, observation(T=600, interval="false"), models=Minds()
    ) as run:
        talk = client(run)
        await talk.turns(1, "hi")
        talk.history += [
            {"role": role, "content": LONG.format(n=n)}
            for n in range(6)
            for role in ("user", "assistant")
        ]
        (receipt,) = await talk.turns(1, SHORT)
        assert receipt["status"] == "applied"
        assert "left out" not in str(run.models.requests_to(OBSERVER)[0].messages[-1]["content"])


# ── economy ───────────────────────────────────────────────────────────────────────────────────────


class Listed(Minds):
    """The observer under a name that has a list price."""

    def choose_answer(
        self, model: str, messages: Sequence[Message], fault: Fault | None
    ) -> Message:
        return super().choose_answer(
            OBSERVER if model == "gpt-4.1-mini" else model, messages, fault
        )


@pytest.mark.parametrize("actor", ["gpt-4o-mini", ACTOR], ids=["known prices", "an unknown price"])
async def test_economy(tmp_path: Path, actor: str) -> None:
    """Notes that would cost more than they save wait, and the receipt says so; at the threshold
    they are made all the same. Where a price is not known, nothing waits."""
    priced = "openai/gpt-4.1-mini"
    memory = f"{observation()}, economy: auto"
    async with run_with_scripted_models(
        tmp_path, memory, models=Listed(), more=f'models: {{"*": {{model: {priced}}}}}'
    ) as run:
        talk = client(run, actor)
        receipts = await talk.turns(5)
        early = [receipt for receipt in receipts if int(receipt["pending-tokens"]) < 1_200]
        assert len(early) >= 4
        if actor == ACTOR:
            assert run.models.requests_to("gpt-4.1-mini")
            assert not [receipt for receipt in receipts if receipt.get("reason")]
            return
        assert {receipt.get("reason") for receipt in early[2:]} == {"economy"}
        assert not run.models.requests_to("gpt-4.1-mini")
        (*_, last) = await talk.turns(5)
        assert run.models.requests_to("gpt-4.1-mini")
        assert last["status"] == "applied"
