"""People change notes in small worlds, while clients talk, models answer and processes crash: what
they wrote stands, and what they took away stays away."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace as replace_fields

from om_proxy.management import note_editor
from om_proxy.memory.lifecycle import branch, edits, pins, transitions
from om_proxy.memory.model import Memory, Observation, ObservationLog, Reflection
from om_proxy.storage.values.changes import NoteErasure
from tests.simulation.people import ACTS
from tests.simulation.plan import Plan
from tests.simulation.sharing import SWITCHES, SharedWorld, plan_of
from tests.simulation.store import Disk
from tests.simulation.world import World, simulate
from tests.support.long_forms import IS_LONG

FOUND_WITHIN = 30  # seeds
LOOKED_AT_SEEDS = 24 if IS_LONG else 8
FORGETFUL_SEEDS = 6 if IS_LONG else 2
# a fork that forgets edits shows soon from here
FORKING_SEED = 0 if IS_LONG else 20


def busy(seed: int, made: type[World], trouble: float) -> World:
    """A world of clients that show everything, and of two people who are seldom idle. `trouble`: share of
    the models' calls that are late or useless."""
    rng = Random(seed)
    plan = plan_of(rng) if made is SharedWorld else Plan.of(rng)
    kinds = tuple(("whole",) for _ in plan.kinds[:2])
    plan = replace(
        plan,
        settings=re.sub("observation_tokens: [0-9]+", "observation_tokens: 150", plan.settings),
        kinds=kinds,
        moves=16,
        minds=trouble,
        crashes=0.0,
        faults=False,
        cache_bytes=2**20,
        people=2,
        acts=40,
    )
    return simulate(seed, plan=plan, made=made)


@pytest.mark.parametrize("made", [World, SharedWorld])
def test_people_meet_everything(made: type[World]) -> None:
    """Every act is performed, alone and while a model is asked; every change is taken back at some
    time, and every refusal occurs."""
    worlds = [simulate(seed, made=made) for seed in range(LOOKED_AT_SEEDS)]
    told = Counter(
        tuple(line.split(" person ")[1].split(" ", 1)[1].split(", "))
        for world in worlds
        for line in world.trace
        if " person " in line
    )
    met = {told_of[0] for told_of in told if told_of[1] == "meets a call"}
    acts = ("edit", "withdraw", "undo", "edit_chunk", "drop_chunk", "pin", "activate", "reflect")
    assert met >= {f"{act}: done" for act in acts}
    assert {told_of[0].split(": ")[1] for told_of in told} >= {
        "crashed", "NotFound", "BadRequest", "Unproductive",
    }  # fmt: skip
    counts = sum((Counter(world.changes.counts) for world in worlds), Counter())
    assert counts.keys() >= {
        "edited", "withdrawn", "change undone", "reflection undone", "pins", "chunk edited",
        "edited chunk active",
    }  # fmt: skip
    assert all(world.broken is None for world in worlds)


# ── planted bugs ──────────────────────────────────────────────────────────────────────────────────


def a_reflection_fits_by_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the place of an entry that a person has written anew meanwhile."""

    def careless(entries: tuple[Observation, ...], reflection: Reflection) -> slice | None:
        first = {entry.id for entry in entries} | {entry.replaces for entry in entries}
        place = next(
            (i for i, e in enumerate(entries) if reflection.sources[0] in (e.id, e.replaces)), None
        )
        return None if place is None or not first else slice(place, place + len(reflection.sources))

    monkeypatch.setattr(transitions, "find_sources", careless)


def a_fork_forgets_edits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(branch, "carry_edits", lambda memory, entries, older, live: entries)


def a_withdrawn_entry_leaves_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(memory: Memory, id_: int, now: float, *, forget: bool = False) -> Memory:
        kept = tuple(entry for entry in memory.log.entries if entry.id != id_)
        log = edits.begin_edited_generation(memory.log, kept, "edit", now)
        return replace_fields(memory, log=log, render_date=now)

    monkeypatch.setattr(edits, "withdraw_entry", careless)


def an_undo_writes_the_text_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not its bytes."""
    kept = note_editor.undo_newest_change

    def careless(*args: Any) -> Memory | None:
        after = kept(*args)
        if after is None:
            return None
        known = {entry.id for entry in args[0].log.entries}
        entries = tuple(
            entry if entry.id in known else replace_fields(entry, text=f"{entry.text} ")
            for entry in after.log.entries
        )
        return replace_fields(after, log=replace_fields(after.log, entries=entries))

    monkeypatch.setattr(note_editor, "undo_newest_change", careless)


def what_is_forgotten_stays_in_older_generations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(note_editor, "list_traces", lambda withdrawn, current, older: ())


def a_dropped_chunk_leaves_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(memory: Memory, id_: int) -> Memory | None:
        kept = tuple(chunk for chunk in memory.chunks if chunk.id != id_)
        return replace_fields(memory, chunks=kept) if kept != memory.chunks else None

    monkeypatch.setattr(edits, "drop_chunk", careless)


def an_observation_brings_the_chunks_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a person has written into a chunk meanwhile is gone."""
    original: dict[int, str] = {}
    kept = transitions.add_chunk

    def careless(memory: Memory, chunk: Observation) -> Memory:
        chunks = tuple(
            replace_fields(known, text=original.setdefault(id(memory.key), known.text))
            for known in memory.chunks
        )
        return kept(replace_fields(memory, chunks=chunks), chunk)

    monkeypatch.setattr(transitions, "add_chunk", careless)


def a_new_pin_takes_the_place_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = pins.add_pin

    def careless(memory: Memory, *args: Any) -> Memory:
        log = replace_fields(memory.log, pins=memory.log.pins[1:])
        return kept(replace_fields(memory, log=log), *args)

    monkeypatch.setattr(pins, "add_pin", careless)


def a_generation_forgets_its_pins(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = ObservationLog.begin_generation

    def careless(self: ObservationLog, *args: Any) -> ObservationLog:
        return replace_fields(kept(self, *args), pins=())

    monkeypatch.setattr(ObservationLog, "begin_generation", careless)


PROMPT, LATE = 0.0, 1.0  # how the models answer where a bug shows soon
PLANTED = [
    (World, LATE, a_reflection_fits_by_its_place),
    (World, PROMPT, a_withdrawn_entry_leaves_a_gap),
    (World, PROMPT, an_undo_writes_the_text_again),
    (World, PROMPT, what_is_forgotten_stays_in_older_generations),
    (World, PROMPT, a_dropped_chunk_leaves_a_gap),
    (World, PROMPT, an_observation_brings_the_chunks_it_knows),
    (World, PROMPT, a_new_pin_takes_the_place_of_another),
    (World, PROMPT, a_generation_forgets_its_pins),
    (SharedWorld, LATE, a_reflection_fits_by_its_place),
]


@pytest.mark.parametrize(("made", "trouble", "plant"), PLANTED)
def test_a_planted_bug_is_found(
    made: type[World],
    trouble: float,
    plant: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    assert found(made, trouble) is not None


def gone_back_on(seed: int) -> World:
    """A world whose one client often goes back behind notes that people have changed: thresholds are
    low, and it talks for long."""
    rng = Random(seed)
    plan = Plan.of(rng)
    settings = re.sub("message_tokens: [0-9]+", "message_tokens: 400", plan.settings)
    plan = replace(
        plan,
        settings=re.sub(" observation_tokens: [0-9]+", " observation_tokens: 600", settings),
        kinds=(("whole",),),
        moves=32,
        minds=0.0,
        crashes=0.0,
        faults=False,
        cache_bytes=2**20,
        people=2,
        acts=40,
    )
    return simulate(seed, plan=plan)


def test_a_fork_that_forgets_edits_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    a_fork_forgets_edits(monkeypatch)
    seeds = range(FORKING_SEED, FORKING_SEED + FOUND_WITHIN)
    assert any(gone_back_on(seed).broken is not None for seed in seeds)


# ── people who forget notes while threads change their logs ──────────────────────────────────────


def restless(seed: int) -> World:
    """A world whose clients change the scope now and then, and whose people forget often. Without
    late answers: notes soon become entries."""
    rng = Random(seed)
    plan = plan_of(rng)
    scopes = plan.settings if SWITCHES in plan.settings else plan.settings + SWITCHES
    plan = replace(
        plan,
        settings=re.sub("observation_tokens: [0-9]+", "observation_tokens: 150", scopes),
        kinds=tuple(("whole",) for _ in plan.kinds[:3]),
        moves=16,
        minds=0.0,
        faults=False,
        people=2,
        acts=40,
    )
    return simulate(seed, plan=plan, made=SharedWorld)


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """People forget a note every second time."""
    monkeypatch.setitem(ACTS, "forget", sum(ACTS.values()))


def the_log_before_sharing_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def careless(*_: object) -> list[NoteErasure]:
        return []

    monkeypatch.setattr(note_editor, "_list_own_traces", careless)


def the_log_that_was_left_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def careless(*_: object) -> list[NoteErasure]:
        return []

    monkeypatch.setattr(note_editor, "_list_shared_traces", careless)


def other_threads_tell_it_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """What their prompts told beside the log stays with them."""
    kept = Disk._erase_notes

    def careless(self: Disk, erasure: NoteErasure) -> None:
        texts = {key: rows.head.other_threads_text for key, rows in self.threads.items()}
        kept(self, erasure)
        for key, text in texts.items():
            rows = self.threads[key]
            rows.head = replace_fields(rows.head, other_threads_text=text)

    monkeypatch.setattr(Disk, "_erase_notes", careless)


@pytest.mark.usefixtures("forgetful")
def test_what_is_forgotten_is_forgotten_in_every_log() -> None:
    """Threads join and leave logs that have entries, and nothing that is stored afterwards says
    what was forgotten."""
    worlds = [restless(seed) for seed in range(FORGETFUL_SEEDS)]
    assert [world.broken for world in worlds] == [None] * len(worlds)
    counts = sum((Counter(world.changes.counts) for world in worlds), Counter())
    assert counts["withdrawn"] > 8 * FORGETFUL_SEEDS
    began = {
        beginning.why
        for world in worlds
        for rows in world.disk.threads.values()
        for beginning in rows.beginnings.values()
    }
    assert began >= {"scope", "forgotten"}


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize(
    "plant",
    [
        the_log_before_sharing_keeps_it,
        the_log_that_was_left_keeps_it,
        other_threads_tell_it_on,
    ],
)
def test_a_log_that_keeps_what_was_forgotten_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    found = (str(restless(seed).broken) for seed in range(FOUND_WITHIN))
    assert any("what was forgotten is stored nowhere" in broken for broken in found)


def found(made: type[World], trouble: float) -> int | None:
    """The first seed that breaks."""
    seeds = range(FOUND_WITHIN)
    return next((seed for seed in seeds if busy(seed, made, trouble).broken is not None), None)
