"""Answers as memory models give them: the good ones are kept to the character, the bad ones cost a
retry and nothing else.

The corpus (tests/agents/corpus) is judged three times: by the parser alone, by the observer with a
model that answers so, and in a memory that has something to lose.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from random import Random

import pytest
from msgspec.structs import replace

from om_proxy.agents.model_access.llm import Target
from om_proxy.agents.observer import Observed, Observer, ObserverTask
from om_proxy.common.errors import Unusable
from om_proxy.memory.lifecycle import transitions
from om_proxy.memory.lifecycle.decisions import Observe, Reflect
from om_proxy.memory.model import MESSAGE_FRAMING_TOKENS, Memory, Reflection, replace_log
from om_proxy.memory.notes.observations import parse_observation
from om_proxy.settings.config.sections.memory import ObservationSettings
from tests.agents.corpus import HONEST, UNUSABLE, USABLE, Entry
from tests.agents.corpus.forms import long
from tests.agents.corpus.wordlist import sentence
from tests.agents.messages import messages, user
from tests.agents.scripted_llm import ScriptedLLM, Waits, bullets, know_nothing, words
from tests.memory.building import KEY, chat, chunk
from tests.support.counting import TIMES, count_lines_run, measure_cpu_s
from tests.support.long_forms import IS_LONG
from tests.support.performing import NOTES, Parts, open_parts

OBSERVER_TARGET = Target("a")
SETTINGS = ObservationSettings().model_settings
GOOD = bullets("the limit is 40 MB")
REFUSED_AT_MOST = 0.05  # of the honest logs that repeat themselves
every_unusable = pytest.mark.parametrize("entry", UNUSABLE, ids=lambda entry: entry.name)
every_usable = pytest.mark.parametrize(
    "entry", [e for e in USABLE if e not in HONEST], ids=lambda entry: entry.name
)


LOOPS = {f"loop/{period:02}-lines" for period in range(1, 51)} - {
    "loop/01-lines",
    "loop/07-lines",
    "loop/50-lines",
}


def read(entry: Entry) -> str | None:
    """The notes in it; None: unusable."""
    try:
        return parse_observation(entry.answer, source_tokens=entry.source_tokens, tokens=words).text
    except Unusable:
        return None


# ── the corpus itself ─────────────────────────────────────────────────────────────────────────────


def test_the_corpus_holds_what_it_is_for() -> None:
    """A hundred answers and more, none twice; forty of them honest and repetitive; loops of 1 to 50
    lines; 300 000 tokens."""
    corpus = [*USABLE, *UNUSABLE]
    assert len(corpus) >= 100
    assert (
        len({entry.name for entry in corpus})
        == len({entry.answer for entry in corpus})
        == len(corpus)
    )
    assert len(HONEST) >= 40
    assert {f"loop/{period:02}-lines" for period in range(1, 51)} <= {
        entry.name for entry in UNUSABLE
    }
    assert any(words(entry.answer) >= 300_000 for entry in USABLE)
    assert any(words(entry.answer) >= 300_000 for entry in UNUSABLE)
    assert (
        len({script(c) for e in USABLE if e.name.startswith("language/") for c in e.answer} - {""})
        >= 8
    )


def script(character: str) -> str:
    """The block of 256 code points a letter stands in, which tells the scripts of the corpus
    apart."""
    return f"{ord(character) >> 8:x}" if character.isalpha() else ""


# ── the parser ────────────────────────────────────────────────────────────────────────────────────


@every_unusable
def test_nothing_of_an_unusable_answer_is_read(entry: Entry) -> None:
    """It is refused, with the reason it should have, and without a word of it in the error."""
    with pytest.raises(Unusable) as caught:
        parse_observation(entry.answer, source_tokens=entry.source_tokens, tokens=words)
    reason = str(caught.value).rpartition(": ")[2]
    assert reason in ({entry.reason} if entry.reason else {"empty", "refusal", "prose"})


@every_usable
def test_what_a_usable_answer_says_is_kept(entry: Entry) -> None:
    """Its notes come out to the character, whatever their form, their language and their length."""
    assert read(entry) == entry.kept


def test_honest_repetition_is_kept() -> None:
    """Of the true logs that repeat themselves, at most one in twenty is taken for a loop; the
    others are kept whole."""
    got = {entry.name: (read(entry), entry.kept) for entry in HONEST}
    refused = [name for name, (text, _) in got.items() if text is None]
    assert len(refused) <= REFUSED_AT_MOST * len(HONEST), refused
    altered = [name for name, (text, kept) in got.items() if text not in (None, kept)]
    assert not altered


# ── the observer ──────────────────────────────────────────────────────────────────────────────────


async def observed(llm: ScriptedLLM, entry: Entry) -> Observed:
    (said,) = messages(user("The limit is 40 MB."))
    task = ObserverTask(
        messages=(replace(said, tokens=entry.source_tokens - MESSAGE_FRAMING_TOKENS),)
    )
    observer = Observer(llm, tokens=words, abilities=know_nothing, sleep=Waits(), rng=Random(1))
    return await observer.observe(task, [OBSERVER_TARGET], SETTINGS)


@pytest.mark.sample(24)
@every_unusable
async def test_the_observer_asks_once_more(entry: Entry) -> None:
    """After an unusable answer the next good one is taken; after two of them it has failed, and no
    third is asked for."""
    llm = ScriptedLLM.of(entry.answer, GOOD)
    made = await observed(llm, entry)
    assert made.text == "Date: May 22, 2023\n* 🔴 (10:00) the limit is 40 MB"
    assert len(llm.asked) == 2
    llm = ScriptedLLM.of(entry.answer, entry.answer, GOOD)
    with pytest.raises(Unusable):
        await observed(llm, entry)
    assert len(llm.asked) == 2


@every_usable
async def test_the_observer_takes_a_good_answer_at_once(entry: Entry) -> None:
    """One call, and the notes as they were written."""
    llm = ScriptedLLM.of(entry.answer)
    assert (await observed(llm, entry)).text == entry.kept
    assert len(llm.asked) == 1


# ── a memory that has something to lose ───────────────────────────────────────────────────────────

NEXT = Observe(after=4, last=6, tokens=0)


async def furnished(p: Parts, entry: Entry) -> Memory:
    """A thread with a log, a pending reflection of it, a chunk, a title, and two messages of the
    entry's weight to observe."""
    memory = await p.store_tail(chat(4, entry.source_tokens // 2))
    text = "* 🔴 (10:00) the first fact " + "at length " * (entry.source_tokens // 2)
    first = replace(chunk(memory, 2, entry.source_tokens, text), task="the task", title="The title")
    memory = transitions.add_chunk(memory, first)
    memory = transitions.activate_chunks(memory, [memory.chunks[0].id], 5.0)
    memory = transitions.add_chunk(memory, chunk(memory, 4, 40, "* 🔴 (10:01) the second fact"))
    shorter = Reflection(
        generation=0,
        sources=(memory.log.entries[0].id,),
        text="* 🔴 fact",
        tokens=9,
        source_tokens=40,
        at=6.0,
        model="m",
    )
    memory = transitions.keep_reflection(memory, shorter)
    return await p.memories.update(KEY, lambda _: memory)


def apart_from_trouble(memory: Memory) -> Memory:
    """What may differ after a failure is that it is noted and paid for, and when to look again."""
    empty = Memory(key=KEY)
    return replace(memory, failures=empty.failures, ledger=empty.ledger, version=0, due_at=None)


@pytest.mark.sample(25)
@pytest.mark.parametrize(
    "entry", [e for e in UNUSABLE if e.name not in LOOPS], ids=lambda entry: entry.name
)
async def test_an_unusable_answer_changes_nothing(entry: Entry) -> None:
    """No coverage moves, no chunk is made, nothing that is there goes; and the next good answer is
    taken."""
    async with open_parts(entry.answer, entry.answer) as p:
        before = await furnished(p, entry)
        assert not await p.worker.perform(KEY, NEXT, p.context())
        after = await p.memory()
        assert after.failures.count == 1
        assert apart_from_trouble(after) == apart_from_trouble(before)
        await recovers(p, before)


async def recovers(p: Parts, before: Memory) -> None:
    """The model answers `NOTES` from now on."""
    assert await p.worker.perform(KEY, NEXT, p.context())
    after = await p.memory()
    assert (after.log.entries, after.log.reflection, after.coverage) == (
        before.log.entries,
        before.log.reflection,
        before.coverage,
    )
    assert after.chunks[:-1] == before.chunks
    assert (after.chunks[-1].after, after.chunks[-1].last) == (4, 6)
    assert after.chunks[-1].text in NOTES
    assert after.failures.count == 0
    ids = [made.id for made in after.chunks]
    active = await p.memories.update(KEY, lambda m: transitions.activate_chunks(m, ids, 7.0))
    assert (active.coverage, len(active.log.entries), active.title) == (6, 3, "The title")


@pytest.mark.sample(30)
@pytest.mark.parametrize("entry", USABLE, ids=lambda entry: entry.name)
async def test_a_usable_answer_becomes_a_chunk(entry: Entry) -> None:
    """Its notes stand in the store as they were written, for the messages they are about; what was
    there stays."""
    if read(entry) is None:
        return  # one of the honest ones that may be refused; how many is counted above
    async with open_parts(entry.answer) as p:
        before = await furnished(p, entry)
        assert await p.worker.perform(KEY, NEXT, p.context())
        after = await p.memory()
        assert (after.chunks[-1].text, after.chunks[-1].last) == (entry.kept, 6)
        assert (*before.chunks, after.chunks[-1]) == after.chunks
        assert (after.log.entries, after.coverage, after.tail) == (
            before.log.entries,
            before.coverage,
            before.tail,
        )


@pytest.mark.sample(24)
@pytest.mark.parametrize(
    "entry", [e for e in UNUSABLE if e.name not in LOOPS], ids=lambda entry: entry.name
)
async def test_an_unusable_answer_is_no_reflection(entry: Entry) -> None:
    """Four of them about a log of the weight of what they are about, and it stands as it was."""
    async with open_parts(*[entry.answer] * 4) as p:
        await furnished(p, entry)
        before = await p.memories.update(KEY, lambda m: replace_log(m, reflection=None))
        assert not await p.worker.perform(
            KEY, Reflect(entries=1, accept_below=1_000_000), p.context()
        )
        after = await p.memory()
        assert (after.log.entries, after.chunks, after.log.reflection, after.coverage, after.log.generation) == (
            before.log.entries, before.chunks, None, before.coverage, before.log.generation,
        )  # fmt: skip
        assert after.log.unproductive_tokens == before.log.tokens


# ── the time it takes ─────────────────────────────────────────────────────────────────────────────

SHORT = 40_000 if IS_LONG else 5_000  # tokens; in the long form TIMES as many are over 300 000


def alike(tokens: int) -> str:
    return "* 🟢 (11:00) Assistant waited for the answer\n" * (tokens // 8)


def almost_alike(tokens: int) -> str:
    return "".join(
        f"* 🟢 ({n // 60 % 24:02}:{n % 60:02}) Assistant waited for it\n"
        for n in range(tokens // 8)
    )


def in_one_line(tokens: int) -> str:
    return "* 🔴 " + "and then the user confirmed that " * (tokens // 6)


def no_notes(tokens: int) -> str:
    return "\n".join(sentence(Random(n), 20) for n in range(tokens // 20))


def tags(tokens: int) -> str:
    return "<observations>* a</observations> <current-task>x" * (tokens // 24)


def without_blanks(tokens: int) -> str:
    return "* 🔴 " + "同じことを何度も書く。" * (tokens // 8)


SHAPES = {
    "honest": lambda tokens: long("", tokens).answer,
    "alike": alike,
    "almost alike": almost_alike,
    "in one line": in_one_line,
    "no notes": no_notes,
    "tags": tags,
    "without blanks": without_blanks,
}


def judge(answer: str) -> int:
    """Characters that the tokenizer was given."""
    given: list[int] = []

    def counted(text: str) -> int:
        given.append(len(text))
        return words(text)

    with suppress(Unusable):
        parse_observation(answer, source_tokens=1_000_000, tokens=counted)
    return sum(given)


def sizes(shape: str) -> Iterator[str]:
    yield from (SHAPES[shape](tokens) for tokens in (SHORT, TIMES * SHORT))


@pytest.mark.parametrize("shape", SHAPES)
def test_judging_takes_steps_in_proportion(shape: str) -> None:
    """Eight times as long an answer takes at most nine times as many steps; its notes are counted
    once at most."""
    shorter, longer = sizes(shape)
    few, many = count_lines_run(partial(judge, shorter)), count_lines_run(partial(judge, longer))
    assert many <= (TIMES + 1) * few
    assert judge(longer) <= len(longer)


@pytest.mark.parametrize("shape", SHAPES)
def test_judging_takes_time_in_proportion(shape: str) -> None:
    """What the regular expressions do is no step of Python's: eight times the text takes less than
    the 64 times of a square, also on a machine that does other things."""
    shorter, longer = sizes(shape)
    assert measure_cpu_s(partial(judge, longer)) < 5 * TIMES * max(
        measure_cpu_s(partial(judge, shorter)), 0.005
    )
