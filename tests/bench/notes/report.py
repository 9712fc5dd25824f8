"""What a played recording shows of its notes: figures as plain values, and as text to read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from om_proxy.memory.model import Observation
from tests.bench.notes.calls import MemoryCall, mean_sizes, measure_call
from tests.bench.notes.compression import Noted, Said, compress_by_kind
from tests.bench.notes.facts import Fact, Tally, Verdict, tally_by_category
from tests.bench.notes.hint_age import summarise_ages
from tests.bench.notes.play import Played
from tests.bench.notes.recorded import Recording
from tests.bench.replaying import counted

BEFORE, AFTER = "before reflection", "after reflection"


@dataclass(frozen=True, slots=True)
class Kept:
    """Notes at one stage, and the facts that they should hold."""

    notes: str
    facts: Sequence[Fact]


@dataclass(slots=True)
class Verdicts:
    """Fact → verdict, by who judged it (`words`, `judge`) and the stage of the notes."""

    found: dict[str, dict[str, dict[str, Verdict]]] = field(default_factory=dict)

    def add(self, by: str, stage: str, verdicts: Mapping[str, Verdict]) -> None:
        self.found.setdefault(by, {}).setdefault(stage, {}).update(verdicts)


def observations(played: Played) -> list[Observation]:
    """All that an observer wrote, in order, thread by thread; without what a reflector made of
    it."""
    return [
        notes[number]
        for notes in played.notes.values()
        for number in sorted(notes)
        if notes[number].kind == "observation"
    ]


def has_reflected(played: Played) -> bool:
    return any(
        o.kind == "reflection" for memory in played.memories.values() for o in memory.log.entries
    )


def stages(recording: Recording, played: Played, facts: Sequence[Fact]) -> dict[str, Kept]:
    """Before: all observations, and the facts in what they cover. After: the log as it stands, and
    the facts in what that covers; left out where nothing was reflected.

    Where a recording has several threads, facts that name a message belong to none of them: all are
    asked for.
    """
    made = observations(played)
    logs = [o.text for memory in played.memories.values() for o in memory.log.entries]
    alone = len(recording.conversations) == 1
    observed = max((o.last for o in made), default=0)
    covered = sum(memory.covered_count for memory in played.memories.values())
    known = [f for f in facts if not alone or f.is_told_within(observed)] if made else []
    rewritten = [f for f in known if not alone or f.is_told_within(covered)] if logs else []
    found = {BEFORE: Kept("\n\n".join(o.text for o in made), known)}
    if has_reflected(played):
        found[AFTER] = Kept("\n\n".join(logs), rewritten)
    return found


def measure(
    recording: Recording,
    played: Played,
    calls: Sequence[MemoryCall],
    verdicts: Verdicts,
    facts: Sequence[Fact],
    count: Callable[[str], int],
) -> dict[str, Any]:
    """All figures, ready to be written as JSON."""
    sizes = {
        kind: [measure_call(call, count) for call in calls if call.kind == kind]
        for kind in ("observer", "reflector")
    }
    new = sum(s.notes for s in sizes["observer"])
    return {
        "recording": recording.name,
        "requests": played.requests,
        "applied": played.applied,
        "messages": sum(map(len, recording.conversations.values())),
        "observed_messages": sum(
            max((o.last for o in n.values()), default=0) for n in played.notes.values()
        ),
        "covered_messages": sum(memory.covered_count for memory in played.memories.values()),
        "generations": {
            thread: memory.log.generation for thread, memory in played.memories.items()
        },
        "facts": {
            by: {stage: _tallies(facts, found) for stage, found in kept.items()}
            for by, kept in verdicts.found.items()
        },
        "survived": {by: survive(kept) for by, kept in verdicts.found.items()},
        "verdicts": verdicts.found,
        "calls": {
            kind: {"calls": len(found), **mean_sizes(found)} for kind, found in sizes.items()
        },
        "reflector_written_per_new_note_token": sum(s.written for s in sizes["reflector"]) / new
        if new
        else None,
        "hints": summarise_ages(played.hints, played.requests),
        "compression": compress(recording, played),
    }


def _tallies(facts: Sequence[Fact], found: Mapping[str, Verdict]) -> dict[str, dict[str, Any]]:
    return {
        name: {**asdict(t), "total": t.total, "share": t.share}
        for name, t in tally_by_category(facts, found).items()
    }


def survive(kept: Mapping[str, Mapping[str, Verdict]]) -> dict[str, int]:
    """Of the facts that the observer's notes keep and the log covers: how many there are, and how
    many the log still keeps."""
    before, after = kept.get(BEFORE, {}), kept.get(AFTER, {})
    known = [fact for fact, verdict in after.items() if before.get(fact) == "kept"]
    return {"of": len(known), "kept": sum(after[fact] == "kept" for fact in known)}


def compress(recording: Recording, played: Played) -> dict[str, dict[str, float]]:
    """Tokens of messages and of notes: by kind as the observer wrote them, and of the log as it
    stands."""
    found: dict[str, dict[str, float]] = {}
    for thread, messages in recording.conversations.items():
        said = [Said.of(m, counted(m)[1]) for m in messages]
        notes = [o for o in played.notes.get(thread, {}).values() if o.kind == "observation"]
        for name, kind in compress_by_kind(
            said, [Noted(o.after, o.last, o.tokens) for o in notes]
        ).items():
            _add(found, name, kind.source, kind.notes)
        if (memory := played.memories.get(thread)) and memory.log.entries:
            _add(
                found, "log", sum(s.tokens for s in said[: memory.covered_count]), memory.log.tokens
            )
    for row in found.values():
        row["times"] = row["source"] / max(row["notes"], 1)
    return found


def _add(found: dict[str, dict[str, float]], name: str, source: int, notes: int) -> None:
    row = found.setdefault(name, {"source": 0, "notes": 0})
    row["source"] += source
    row["notes"] += notes


# ── as text ───────────────────────────────────────────────────────────────────────────────────────


def render(report: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"{report['recording']}: {report['requests']} requests ({report['applied']} with notes), {report['messages']} messages, "
        f"{report['observed_messages']} observed, {report['covered_messages']} covered"
    )
    yield from _render_facts(report["facts"], report["survived"])
    yield from _render_calls(report)
    yield from _render_hints(report["hints"])
    yield "\nCompression (o200k tokens of messages as sent, and of notes)\n"
    for name, row in report["compression"].items():
        label = {
            "chat": "chat, as observed",
            "tools": "tools, as observed",
            "log": "log at the end",
        }[name]
        yield f"  {label:<20}{row['source']:>9.0f} → {row['notes']:>6.0f}   {row['times']:.1f} times less"


def _render_facts(
    facts: Mapping[str, Any], survived: Mapping[str, Mapping[str, int]]
) -> Iterator[str]:
    for by, kept in facts.items():
        if not any(kept.values()):
            continue
        yield f"\nFacts kept, by {'the judge' if by == 'judge' else 'words (a cheap measure: to compare, not to believe)'}\n"
        for stage, groups in kept.items():
            for name, row in groups.items():
                yield f"  {stage:<18} {name:<12} {Tally(row['kept'], row['partly'], row['lost'])}"
        if survived[by]["of"]:
            yield f"  Of {survived[by]['of']} that were kept before, {survived[by]['kept']} are kept after."


def _render_calls(report: Mapping[str, Any]) -> Iterator[str]:
    yield "\nTokens a call (means)\n"
    parts = (
        "calls",
        "system",
        "previous",
        "transcript",
        "other_in",
        "read",
        "notes",
        "hints",
        "written",
    )
    yield "  " + f"{'':<10}" + "".join(f"{part.replace('_', ' '):>11}" for part in parts)
    for kind, row in report["calls"].items():
        yield "  " + f"{kind:<10}" + "".join(f"{row.get(part, 0):>11.0f}" for part in parts)
    if (ratio := report["reflector_written_per_new_note_token"]) is not None:
        yield f"\n  The reflector wrote {ratio:.2f} tokens for each token of new notes."


def _render_hints(hints: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    yield "\nHints' age where they were shown: what stood between them and the newest message\n"
    if not hints:
        yield "  no hint was shown"
    for name, row in hints.items():
        yield (
            f"  {name:<20} in {row['shown']} of {row['requests']} requests, median {row['median_tokens']:.0f} tokens and "
            f"{row['median_messages']:.0f} messages, at most {row['most_tokens']} and {row['most_messages']}; "
            f"the user had spoken since in {row['user_spoke_since']}"
        )
