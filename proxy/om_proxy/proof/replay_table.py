"""Show the results of a replay: as lines, and as JSON. No text of a conversation but its title."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from msgspec import Struct

from om_proxy.proof.evaluation.report import find_wilson_interval
from om_proxy.proof.playing import Rates
from om_proxy.proof.replay import HIGH, LOW, MEASURED, Bill, ModelNotes, Result, compute_ratio

COLUMN = 34  # characters of a row's name
SHOWN_LITERALS = 10  # of those that are missing; --json has all


class Range(Struct, frozen=True):
    """A figure by how short notes are."""

    measured: float | None
    low: float | None  # the cheaper end
    high: float | None


class MemoryRow(Struct, frozen=True):
    memory_model: str
    dollars: Range
    ratio: Range  # of the cost without memory; of prompt tokens, where no price is known


class NotesRow(Struct, frozen=True):
    """What came of notes that a model wrote."""

    calls: int
    refused_calls: int
    source_tokens_of_a_note_token: float
    needed_later: int
    in_notes: int
    interval: tuple[float, float]  # of the share in notes, 95 %
    missing: list[str]


class ConversationAnswer(Struct, frozen=True):
    """What came of one conversation."""

    id: str
    title: str | None
    program: str
    calls: int
    actor: str
    cache: str
    counted: str
    is_partial: bool
    recorded_dollars: float | None
    without_memory_dollars: float | None
    never_compacted_dollars: float | None
    prompt_tokens: int
    memory: list[MemoryRow]
    degraded_calls: int
    notices: dict[str, int]
    model_notes: NotesRow | None


class ReplayAnswer(Struct, frozen=True):
    conversations: list[ConversationAnswer]
    skipped_files: list[str]


class Sums(NamedTuple):
    """The bills of one conversation, or of several together."""

    as_sent: Bill
    never_compacted: Bill | None
    with_memory: Mapping[str, Mapping[str, Bill]]
    recorded: Bill | None


def add_results(results: Sequence[Result]) -> Sums:
    """Add the bills up. A conversation whose actor makes its own notes by default counts so in each
    row."""
    names = max((list(result.with_memory) for result in results), key=len)

    def pick(result: Result, name: str, rates: Rates) -> Bill:
        return (result.with_memory.get(name) or result.with_memory["inherit"])[rates.name]

    return Sums(
        sum_bills(result.as_sent for result in results),
        sum_bills(result.never_compacted or result.as_sent for result in results)
        if any(result.never_compacted for result in results)
        else None,
        {
            name: {
                rates.name: sum_bills(pick(result, name, rates) for result in results)
                for rates in (MEASURED, LOW, HIGH)
                if rates.name in results[0].with_memory[names[0]]
            }
            for name in names
        },
        sum_bills(result.recorded for result in results if result.recorded)
        if all(result.recorded for result in results)
        else None,
    )


def drop_mixed_dollars(sums: Sums) -> Sums:
    """Return the sums in tokens alone, if the price of a model that makes notes is not known."""
    bills = [bill for by_rates in sums.with_memory.values() for bill in by_rates.values()]
    if all(bill.dollars is not None for bill in bills) or sums.as_sent.dollars is None:
        return sums
    never = sums.never_compacted and replace(sums.never_compacted, dollars=None)
    return sums._replace(as_sent=replace(sums.as_sent, dollars=None), never_compacted=never)


def sum_bills(bills: Iterable[Bill]) -> Bill:
    first, *others = bills
    for bill in others:
        first += bill
    return first


# ── lines ─────────────────────────────────────────────────────────────────────────────────────────


def render_results(results: Sequence[Result], names: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines. `names`: of each conversation, by its id. Partial conversations stand apart,
    and those that memory makes dearer come first."""
    whole = [result for result in results if not result.subject.conversation.is_partial]
    if len(results) > 1:
        yield f"{'without memory':>15}  {'ratio with memory':<22}conversation"
        for result in results:
            yield render_line(result, names[result.subject.conversation.id])
        yield ""
    if not whole:
        yield "Too many lines of these files are unreadable: no sum is shown."
        return
    yield from render_block(whole, names)


def render_line(result: Result, name: str) -> str:
    conversation = result.subject.conversation
    marks = " · DEARER with memory" if result.default_ratio > 1 else ""
    marks += " · partial" if conversation.is_partial else ""
    bills = next(iter(result.with_memory.values()))
    return (
        f"{render_amount(result.as_sent):>15}  {render_ratios(bills, result.as_sent):<22}"
        f"{name} · {describe_calls([result])}{marks}"
    )


def render_block(results: Sequence[Result], names: Mapping[str, str]) -> Iterator[str]:
    """Yield the table of one conversation, or of several together."""
    sums = drop_mixed_dollars(add_results(results))
    alone = names[results[0].subject.conversation.id] if len(results) == 1 else None
    yield " · ".join(
        [
            alone or f"{len(results)} conversations",
            describe_calls(results),
            describe_caches(results),
        ]
    )
    unit = "dollars" if sums.as_sent.dollars is not None else "prompt tokens"
    yield f"{'':<{COLUMN}}{unit:<22}ratio"
    base = sums.as_sent
    if sums.never_compacted:
        yield render_row("as the client compacted", render_amount(base))
        amount = render_amount(sums.never_compacted)
        ratio = render_ratio(compute_ratio(sums.never_compacted, base))
        yield render_row("never compacted (hypothetical)", amount, ratio)
    else:
        yield render_row("never compacted", render_amount(base))
    small = sorted({r.subject.memory_models["auto"] for r in results if "auto" in r.with_memory})
    for name, bills in sums.with_memory.items():
        label = f"memory, auto ({', '.join(small)})" if name == "auto" else f"memory, {name}"
        yield render_row(label, render_range(bills), render_ratios(bills, base))
    yield from render_remarks(results, sums)


def render_row(name: str, amount: str, ratio: str = "") -> str:
    return f" {name:<{COLUMN - 1}}{amount:<22}{ratio}".rstrip()


def render_remarks(results: Sequence[Result], sums: Sums) -> Iterator[str]:
    if sums.recorded and sums.recorded.dollars and sums.as_sent.dollars:
        off = sums.as_sent.dollars / sums.recorded.dollars - 1
        yield f" Recorded bill: {sums.recorded.dollars:.2f}; our model of it is {off:+.1%} off."
    if not all(result.subject.has_usage for result in results):
        yield " Without the provider's usage: tokens are counted as o200k, and the cache is perfect."
    unpriced = sorted({r.subject.actor for r in results if r.subject.price is None})
    if unpriced:
        yield f" No price is known of {', '.join(unpriced)}: give dollars a million with --price in=,out="
    if sums.as_sent.dollars is None and not unpriced:
        yield f" No price is known of {', '.join(sums.with_memory)}: tokens are compared."
    if degraded := sum(result.degraded_calls for result in results):
        yield f" {degraded} calls were forwarded without memory, because of a fault."
    notices: dict[str, int] = {}
    for result in results:
        for what, count in result.subject.conversation.notices.items():
            notices[what] = notices.get(what, 0) + count
    if notices:
        yield " While reading: " + ", ".join(f"{what} {n}" for what, n in sorted(notices.items()))
    if any(result.model_notes for result in results):
        yield from render_notes(results)
        return
    yield (
        " Measured (low–high). The widest cause is how short notes are: one token of them for 2.8 of text"
    )
    yield " and 18 of tool results as measured, for 18 and 18 at best, for 3 and 3 at worst."


def render_notes(results: Sequence[Result]) -> Iterator[str]:
    """Yield what came of the notes that a model wrote."""
    made = [result.model_notes for result in results if result.model_notes]
    source, written = sum(m.source_tokens for m in made), sum(m.tokens for m in made)
    calls, refused = sum(m.calls for m in made), sum(m.refused_calls for m in made)
    yield f" Notes: {calls} calls, {refused} refused; one token of them for {source / max(written, 1):.1f} of messages."
    count, noted = sum(m.needed.count for m in made), sum(len(m.needed.in_notes) for m in made)
    low, high = find_wilson_interval(noted, count)
    yield (
        f" Needed later: {count} paths, numbers, URLs and identifiers that no raw message held any more;"
    )
    yield f" {noted} stood in notes ({low:.0%}–{high:.0%}). An alarm, not a score: a file can be read again."
    missing = [literal for m in made for literal in m.needed.missing]
    for literal in missing[:SHOWN_LITERALS]:
        yield f"   missing: {literal}"
    if len(missing) > SHOWN_LITERALS:
        yield f"   and {len(missing) - SHOWN_LITERALS} more: --json"


def describe_notes(made: ModelNotes | None) -> NotesRow | None:
    if made is None:
        return None
    needed = made.needed
    return NotesRow(
        made.calls,
        made.refused_calls,
        made.source_tokens / max(made.tokens, 1),
        needed.count,
        len(needed.in_notes),
        find_wilson_interval(len(needed.in_notes), needed.count),
        needed.missing,
    )


def describe_calls(results: Sequence[Result]) -> str:
    count = sum(len(result.subject.calls) for result in results)
    actors = sorted({result.subject.actor for result in results})
    shown = ", ".join(actors[:3]) + (" …" if len(actors) > 3 else "")
    return f"{count} call{'s' if count != 1 else ''} · {shown}"


def describe_caches(results: Sequence[Result]) -> str:
    recorded = sum(result.subject.has_usage for result in results)
    if recorded in (0, len(results)):
        return "cache as recorded" if recorded else "perfect cache"
    return f"cache as recorded in {recorded}, perfect cache in {len(results) - recorded}"


def render_amount(bill: Bill) -> str:
    return f"{bill.tokens.prompt:,}" if bill.dollars is None else f"{bill.dollars:.2f}"


def render_range(bills: Mapping[str, Bill]) -> str:
    if LOW.name not in bills:
        return render_amount(bills[MEASURED.name])
    low, high = sorted((bills[LOW.name], bills[HIGH.name]), key=measure_bill)
    return f"{render_amount(bills[MEASURED.name])} ({render_amount(low)}–{render_amount(high)})"


def render_ratios(bills: Mapping[str, Bill], base: Bill) -> str:
    if LOW.name not in bills:
        return render_ratio(compute_ratio(bills[MEASURED.name], base))
    ends = sorted(compute_ratio(bills[rates.name], base) for rates in (LOW, HIGH))
    low, high = map(render_ratio, ends)
    return f"{render_ratio(compute_ratio(bills[MEASURED.name], base))} ({low}–{high})"


def render_ratio(ratio: float) -> str:
    return f"{ratio:.3f}".removeprefix("0")


def measure_bill(bill: Bill) -> float:
    return bill.tokens.prompt if bill.dollars is None else bill.dollars


# ── JSON ──────────────────────────────────────────────────────────────────────────────────────────


def describe_result(result: Result, *, has_titles: bool) -> ConversationAnswer:
    conversation, subject = result.subject.conversation, result.subject
    return ConversationAnswer(
        conversation.id,
        conversation.title if has_titles else None,
        conversation.program,
        len(subject.calls),
        subject.actor,
        "as recorded" if subject.has_usage else "perfect",
        "fitted to usage" if subject.has_usage else "o200k",
        conversation.is_partial,
        result.recorded.dollars if result.recorded else None,
        result.as_sent.dollars,
        result.never_compacted.dollars if result.never_compacted else None,
        result.as_sent.tokens.prompt,
        [
            MemoryRow(
                subject.memory_models.get(name, name),
                list_range(bills, lambda bill: bill.dollars),
                list_range(bills, lambda bill: compute_ratio(bill, result.as_sent)),
            )
            for name, bills in result.with_memory.items()
        ],
        result.degraded_calls,
        dict(conversation.notices),
        describe_notes(result.model_notes),
    )


def list_range(bills: Mapping[str, Bill], measure: Callable[[Bill], float | None]) -> Range:
    """Return a figure of each bill; notes that a model wrote have one length."""
    names = (MEASURED.name, HIGH.name, LOW.name)
    return Range(*(measure(bills[name]) if name in bills else None for name in names))
