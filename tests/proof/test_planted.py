"""200 facts are planted at known days, and looked for: in the prompts of the model that takes notes, and
in the prompt of a question. The scripted model leaves none out, so one that is missing was lost by the
proxy."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import Any

import orjson
import pytest

from om_proxy import Stage, Turn
from om_proxy.agents.models import create_encoder
from om_proxy.proof.billing import CacheRules, SentPrompt, bill_calls
from om_proxy.proof.playing import Play, Rates, play
from om_proxy.proof.replay import bill_outcome, bill_prompts, compute_ratio, examine
from om_proxy.testing import notes
from om_proxy.testing.scripted import message_text
from tests.proof.test_playing import converse

SEED = 1
SESSIONS, TURNS_IN_A_SESSION, FACTS_IN_A_TURN = 25, 4, 2
START = datetime(2026, 1, 2, 23, 40, tzinfo=UTC).timestamp()  # sessions run over midnight
TURN_S, HOUR_S, DAY_S = 300.0, 3_600.0, 86_400.0
MAX_DAYS_APART = 20
RULES = CacheRules(HOUR_S, min_tokens=0)
SMALL = {"observation": {"message_tokens": 2_000}, "reflection": {"observation_tokens": 6_000}}
WITHOUT_IDLE = {"scope": "resource", "observation": {"buffer_on_idle": False}}
MIN_REACH_WITHOUT_IDLE = 0.93
MAX_SHORT_CHAT_RATIO = 1.02

_FACT_PATTERN = re.compile(r"K\d{6}")
_HEADING = re.compile(r"^Date: (?:[A-Z][a-z]+day, )?([A-Z][a-z]+ \d+, \d{4})", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class PlantedTurn:
    at: float
    text: str
    reply: str

    @property
    def facts(self) -> dict[str, str]:
        """The day of each fact, by its mark."""
        at = datetime.fromtimestamp(self.at, UTC)
        return dict.fromkeys(_FACT_PATTERN.findall(self.text), f"{at:%b} {at.day}, {at.year}")


def plant_facts(seed: int) -> list[list[PlantedTurn]]:
    """Return the sessions of one user."""
    dice = Random(seed)
    marks = iter(dice.sample(range(1_000_000), SESSIONS * TURNS_IN_A_SESSION * FACTS_IN_A_TURN))
    sessions, begin = [], START
    for _ in range(SESSIONS):
        turns = [
            PlantedTurn(begin + n * TURN_S, plant(dice, marks), plant(dice, None))
            for n in range(TURNS_IN_A_SESSION)
        ]
        sessions.append(turns)
        begin += dice.randrange(1, MAX_DAYS_APART) * DAY_S / 4
    return sessions


def plant(dice: Random, marks: Iterator[int] | None) -> str:
    """Write a turn's facts with words that no note keeps; without marks, a reply."""
    if marks is None:
        return f"The crane lifts {dice.randrange(900)} kilos because {say(dice, 200)}"
    return " ".join(
        f"Crate K{next(marks):06} weighs {dice.randrange(900)} kilos. Slow {say(dice, 40)}."
        for _ in range(FACTS_IN_A_TURN)
    )


def say(dice: Random, count: int) -> str:
    return " ".join(
        dice.choices(("harbour", "river", "the", "on", "quay", "slow", "barge"), k=count)
    )


@dataclass(slots=True)
class Played:
    """What came of the facts of one seed."""

    days: Mapping[str, str]  # of each fact, by its mark
    turns: list[tuple[float, Turn]] = field(default_factory=list)  # and when
    observed: list[tuple[str, str]] = field(default_factory=list)  # mark and day, as shown
    question: str = ""  # its prompt

    @property
    def reach(self) -> float:
        found = set(_FACT_PATTERN.findall(self.question))
        return len(found & self.days.keys()) / len(self.days)

    @property
    def noted(self) -> list[tuple[str, str]]:
        """The mark and the day of each fact in the notes of the question's prompt."""
        log = self.question.partition("<observations>")[2].partition("</observations>")[0]
        places = [(heading.start(), heading[1]) for heading in _HEADING.finditer(log)]
        return [
            (mark[0], [day for place, day in places if place < mark.start()][-1])
            for mark in _FACT_PATTERN.finditer(log)
        ]


async def play_facts(memory: Mapping[str, Any], *, is_one_thread: bool) -> Played:
    sessions = plant_facts(SEED)
    played = Played({m: day for s in sessions for turn in s for m, day in turn.facts.items()})
    replies: list[str] = []
    count = create_encoder("")

    async def answer(_: Mapping[str, Any]) -> str:
        return replies[-1]

    async def take_notes(request: Mapping[str, Any]) -> str:
        text = message_text(request["messages"][-1])
        if "# New messages" not in text:
            return notes.reflect(text, count)
        for message in read_transcripts(text):
            day = message.day.partition(" (")[0]  # the weeks around it follow
            played.observed += [(mark, day) for mark in _FACT_PATTERN.findall(message.text)]
        return notes.observe(text)

    said: dict[str, list[Mapping[str, Any]]] = {}
    async with Stage(
        {"memory": dict(memory)},
        actor=answer, memory_model=take_notes, now=START, secret=bytes(32),
    ) as stage:  # fmt: skip
        for number, session in enumerate(sessions):
            thread = "all" if is_one_thread else f"session-{number}"
            messages = said.setdefault(thread, [])
            for planted in session:
                await stage.advance(planted.at)
                replies.append(planted.reply)
                messages.append({"role": "user", "content": planted.text})
                turn = await stage.chat(thread, messages)
                played.turns.append((planted.at, turn))
                messages.append(turn.reply)
        for wait_s in (HOUR_S, HOUR_S, 7 * DAY_S):
            await stage.advance(stage.clock.now + wait_s)
        thread = "all" if is_one_thread else "question"
        asked = {"role": "user", "content": "What do you know of the crates?"}
        turn = await stage.chat(thread, [*said.get(thread, ()), asked])
        played.question = "\n".join(map(message_text, turn.prompt))
    return played


def read_transcripts(prompt: str) -> Iterator[notes.TranscriptMessage]:
    """Yield the new messages, of all threads that the prompt holds."""
    new = prompt.partition("# New messages")[2]
    for part in re.split(r'^<thread id="[0-9a-f]{16}">$', new, flags=re.MULTILINE):
        whole = part if "<transcript>" in part else f"<transcript>\n{part}\n</transcript>"
        yield from notes.parse_transcript(whole)


@pytest.fixture(scope="module")
def one_thread() -> Played:
    return asyncio.run(play_facts(SMALL, is_one_thread=True))


@pytest.fixture(scope="module")
def resource() -> Played:
    return asyncio.run(play_facts({"scope": "resource"}, is_one_thread=False))


@pytest.fixture(params=["one_thread", "resource"])
def played(request: pytest.FixtureRequest) -> Played:
    found: Played = request.getfixturevalue(request.param)
    return found


def test_one_thread_keeps_every_fact(one_thread: Played) -> None:
    """Through activations and reflections: each stands in its notes or in its raw messages."""
    assert len(one_thread.days) == 200
    assert len(one_thread.noted) > 100
    assert one_thread.reach == 1.0


def test_a_new_thread_knows_what_others_said(resource: Played) -> None:
    """With the defaults of a resource, whose idle threads are noted (`buffer_on_idle`)."""
    assert resource.reach >= 0.99


async def test_a_new_thread_without_idle_notes_knows_most() -> None:
    played = await play_facts(WITHOUT_IDLE, is_one_thread=False)
    assert MIN_REACH_WITHOUT_IDLE <= played.reach < 1


def test_the_observer_sees_each_fact_on_its_day(played: Played) -> None:
    assert {day for _, day in played.observed} >= {"Jan 2, 2026", "Jan 3, 2026"}
    assert [pair for pair in played.observed if played.days[pair[0]] != pair[1]] == []


def test_notes_stand_under_the_day_of_their_messages(played: Played) -> None:
    assert len(played.noted) > 100
    assert [pair for pair in played.noted if played.days[pair[0]] != pair[1]] == []


def test_nothing_breaks_a_prompt_but_new_notes_and_lost_caches(one_thread: Played) -> None:
    """What was sent is found in the cache at the next call, but after an activation, a reflection, or
    a pause longer than the cache lives."""
    sent = [
        SentPrompt(at, [(orjson.dumps(m), len(str(m))) for m in turn.prompt])
        for at, turn in one_thread.turns
    ]
    bills = list(bill_calls(sent, RULES))
    broken = {n for n in range(1, len(sent)) if bills[n].read < sent[n - 1].tokens}
    marks = [
        (turn.receipt["generation"], turn.receipt["observation-tokens"])
        for _, turn in one_thread.turns
    ]
    renewed = {n for n in range(1, len(marks)) if marks[n] != marks[n - 1]}
    lost = {n for n in range(1, len(sent)) if sent[n].at - sent[n - 1].at > RULES.lifetime_s}
    assert len(renewed - lost) > 3
    assert {mark[0] for mark in marks} > {"0"}
    assert broken == renewed | lost


@pytest.mark.parametrize("turn_count", [60, 115])
async def test_short_chats_cost_no_more_with_memory(turn_count: int) -> None:
    """With the defaults (`economy: auto`), up to 27 000 tokens: below the threshold."""
    subject = examine(converse(turn_count))
    assert subject is not None
    base = bill_prompts(subject, [call.sent for call in subject.calls])
    model = next(iter(subject.memory_models.values()))
    bill = bill_outcome(await play(Play(subject, model, Rates("dear", 3, 3))), subject, model)
    assert compute_ratio(bill, base) <= MAX_SHORT_CHAT_RATIO
