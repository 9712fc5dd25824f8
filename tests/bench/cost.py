"""What memory costs and saves on real conversations: the recorded coding session, and forty short
service chats.

1. A cache model (proof/billing.py) is held against the session's recorded bill: within 15 %.
2. The session goes through the real proxy at its recorded times, with a note-taker of a given
compression (proof/scripted_notes.py). What was
   forwarded is billed by the same model, the memory's own calls are added.
3. So is the session as other actors would have led it, with the defaults, for `auto` and
`inherit`, and the service chats, threads below the threshold, where memory can only cost.
4. Recorded dialogues are held against the notes that a model wrote of them: how much shorter those
are.
5. Notes keep coming to a long log, by the memory's own rules: what the reflector writes for them,
and how often it rewrites an old one.

Left out: what an answer is worth, and that an actor might answer differently. Run by `scripts/bench
cost`; ends with 1 where a promise is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from om_proxy.agents.models import Price, find_price
from om_proxy.engine.policy import resolve_model
from om_proxy.memory.lifecycle.thresholds import Limits
from om_proxy.observability import logs
from om_proxy.proof.billing import (
    ANTHROPIC,
    OPENAI,
    BilledTokens,
    CacheRules,
    SentPrompt,
    bill_calls,
    price_in_dollars,
    sum_tokens,
)
from om_proxy.proof.scripted_notes import NotesCall
from tests.bench.cost_compression import Compressed, Kind, dialogues
from tests.bench.cost_new import KINDS, New, new
from tests.bench.cost_profiles import CONFIG, profiles
from tests.bench.cost_steady import play_notes, write_as_accepted, write_as_asked
from tests.bench.recordings import Session, billed, coding_session, paused, service_chats
from tests.bench.replaying import Reading, Replayed, Timed, counted, replayed
from tests.e2e.replay import SHARED, Message

THINKING = 215  # tokens a memory model writes beside each answer, as measured
DEVIATION = 0.15  # from the recorded bill, at most
SHORT = 1.02  # times the cost without memory, at most, for conversations below the threshold
SERVED = 0.95  # of a prompt after an unbroken one, from the cache
# tokens of a reflector for each of new notes, where it writes as much as it is asked for; notes are
# condensed gently the first time
MAX_WRITTEN_PER_NEW = 1.2
CODING = 12  # tokens of messages for one of notes
# text alone, and a coding session as measured; a column for each with each memory model
RATIOS, CHOICES = (4, 18), ("auto", "inherit")
COLUMNS = tuple((choice, ratio) for ratio in RATIOS for choice in CHOICES)
# of the session's full history, with the defaults at notes 1:18
MAX_DEFAULT_SHARES = {"claude-sonnet-5-5": 0.30, "gpt-5.4": 0.30}
LITE = "gemini-3.1-flash-lite"
TOOLS = 2_500  # tokens of the service chats' tools, which the file leaves out, as measured
# tokens of messages in a thread, which then ends just below the threshold: notes were made for
# nothing
JOINED = 27_000


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    observer: str = ""  # as `auto` chooses for the actor
    settings: str = ""
    ratio: float = CODING
    tools: float | None = None  # as `ratio`, of what tools returned; None: as all else
    # the calls that found their cache gone come after a pause as long as its life
    paused: bool = False


TUNED = "observation: {buffer_tokens: 0.4, previous_observer_tokens: 2000}, reflection: {observation_tokens: 20000}"
SETTINGS = (
    Setting("defaults"),
    Setting("defaults, notes 1:4", ratio=4),
    Setting(
        "text 1:4.2, tools 1:14", ratio=4.2, tools=14
    ),  # the geometric means of what the reference publishes
    Setting("idle auto", "", "activate_after_idle: auto"),
    Setting("idle 60 s", "", "activate_after_idle: 60s"),
    Setting("tuned, idle auto", LITE, f"activate_after_idle: auto, {TUNED}"),
    Setting("tuned, idle 60 s", LITE, f"activate_after_idle: 60s, {TUNED}"),
    Setting("idle auto, pauses", "", "activate_after_idle: auto", paused=True),
)


@dataclass(frozen=True, slots=True)
class Actor:
    model: str
    rules: CacheRules
    scale: float = 1.0


ACTORS = (
    Actor("claude-sonnet-5-5", ANTHROPIC, 1.22),  # as claude-sonnet-4-5 counts the coding session
    Actor("gpt-5.4", OPENAI),
    Actor("gpt-5.4-mini", OPENAI),
    Actor("gemini-3.5-flash", OPENAI),
)
SERVERS = {
    "claude": "https://api.anthropic.com/v1",
    "gpt": "https://api.openai.com/v1",
    "gemini": "https://generativelanguage.googleapis.com/v1beta/openai",
}


def choose_observer(actor: str, choice: str) -> str:
    """The model that makes notes for an actor on its provider's own server."""
    return resolve_model(choice, actor, SERVERS[actor.partition("-")[0]])


# ── without memory ────────────────────────────────────────────────────────────────────────────────


def fitted(session: Session) -> Reading:
    """How the provider counts, from the recorded contexts alone: a straight line through the first
    of them."""
    sizes = [sum(counted(m)[1] for m in call.sent) for call in session.calls]
    grown = [
        (x - sizes[0], y - session.context[0]) for x, y in zip(sizes, session.context, strict=True)
    ]
    scale = sum(x * y for x, y in grown) / sum(x * x for x, _ in grown)
    return Reading(scale, round(session.context[0] - scale * sizes[0]))


def listed(session: Session, price: Price) -> float:
    """The largest difference between a call's recorded cost and its tokens at list prices, in
    dollars."""
    found: list[float] = [
        abs(price_in_dollars(billed(u), price) - u["cost"]["total"]) for u in session.recorded
    ]
    return max(found)


# ── with memory ───────────────────────────────────────────────────────────────────────────────────


def memory_dollars(asked: Sequence[NotesCall], model: str, scale: float) -> float:
    """Uncached, as single calls minutes apart are. Their tokens are scaled like the actor's: the
    texts are the same."""
    return sum(
        price_in_dollars(
            BilledTokens(fresh=round(a.read * scale), output=round(a.written * scale) + THINKING),
            priced(model),
        )
        for a in asked
    )


def unbroken(calls: Sequence[SentPrompt], broken: Collection[int], rules: CacheRules) -> list[int]:
    """The calls whose prompt goes on from the one before, while that is still kept."""
    cold = {n for n, (a, b) in enumerate(pairwise(calls), 1) if b.at - a.at > rules.lifetime_s}
    return [n for n in range(1, len(calls)) if n not in broken and n not in cold]


@dataclass(frozen=True, slots=True)
class Cached:
    """What the cache served of the prompts after unbroken ones."""

    calls: int
    share: float  # of all their tokens
    repeated: float  # of what stood in the prompt before, the least of all calls
    below: int  # calls below SERVED

    @classmethod
    def of(
        cls, calls: Sequence[SentPrompt], bills: Sequence[BilledTokens], chosen: Sequence[int]
    ) -> Cached:
        return cls(
            len(chosen),
            sum_tokens(bills[n] for n in chosen).share,
            min((bills[n].read / calls[n - 1].tokens for n in chosen), default=0.0),
            sum(bills[n].share < SERVED for n in chosen),
        )


# ── the report ────────────────────────────────────────────────────────────────────────────────────


def priced(model: str) -> Price:
    price = find_price(model)
    if price is None:
        raise SystemExit(f"scripts/bench: no list price of {model}; is litellm installed?")
    return price


def row(*cells: object) -> None:
    name, *rest = map(str, cells)
    print(f"  {name:<26}" + "".join(f"{cell:>13}" for cell in rest))


async def coding(path: Path) -> bool:
    session = coding_session(path)
    price, reading, lost = priced(session.model), fitted(session), session.lost
    calls = [reading.sent(call, call.sent) for call in session.calls]
    bills = list(bill_calls(calls, ANTHROPIC, lost))
    kept = _calibrated(session, reading, bills, calls, price)
    full = sum_tokens(bills)
    without = price_in_dollars(full, price)
    print(
        f"\nThe coding session with memory (notes 1:{CODING}, list prices, memory's own calls included)\n"
    )
    row("", "dollars", "of them", "ratio", "prompt", "mean", "longest", "breaks", "memory")
    row("", "", "memory", "", "tokens", "prompt", "prompt", "", "calls")
    row("full history", *_figures(without, 0.0, without, full, calls), "-", "-")
    whole_history = unbroken(calls, lost, ANTHROPIC)
    shares = [("full history", Cached.of(calls, bills, whole_history), full)]
    news = {"full history": list(new([c.sent for c in session.calls], calls, bills, whole_history))}
    compressed: list[tuple[str, Compressed, Replayed]] = []
    for setting in (*SETTINGS, *_profiles()):
        timed = (
            paused(session.calls, lost, ANTHROPIC.lifetime_s) if setting.paused else session.calls
        )
        run = await _replayed(timed, session.model, setting)
        sent = [reading.sent(f.call, f.messages, f.tools) for f in run.forwarded]
        with_memory = list(bill_calls(sent, ANTHROPIC, lost))
        observer = setting.observer or choose_observer(session.model, "auto")
        own = memory_dollars(run.asked, observer, reading.scale)
        whole = sum_tokens(with_memory)
        breaks = len(run.broken()) - 1
        row(
            setting.name,
            *_figures(price_in_dollars(whole, price) + own, own, without, whole, sent),
            breaks,
            len(run.asked),
        )
        chosen = unbroken(sent, run.broken() | lost, ANTHROPIC)
        shares.append((setting.name, Cached.of(sent, with_memory, chosen), whole))
        news[setting.name] = list(
            new([f.messages for f in run.forwarded], sent, with_memory, chosen)
        )
        compressed.append((setting.name, Compressed.of(run.memories, session.calls), run))
    kept &= _print_shares(shares) & _print_new(news)
    _print_compressed(compressed)
    print(
        "\n  pauses: as if before each lost cache there had been a pause longer than it lives, so that `auto` could know of it."
        "\n  The last three settings are the profiles of config/om-proxy.yaml."
    )
    await _cheap(session, reading)
    return kept & await _print_defaults(session, reading)


def _profiles() -> list[Setting]:
    found = profiles(CONFIG.read_text(encoding="utf-8"))
    return [Setting(name, observer or "", settings) for name, observer, settings in found]


async def _cheap(session: Session, reading: Reading) -> None:
    """The last profile where it belongs: the same session, had it been led by a cheap actor."""
    actor, (*_, profile) = ACTORS[2], _profiles()
    price, spent = priced(actor.model), list[float]()
    for setting in (None, Setting("defaults"), profile):
        run = await _replayed(session.calls, actor.model, setting) if setting else None
        prompts = (
            [(f.call, f.messages, f.tools) for f in run.forwarded]
            if run
            else [(c, c.sent, b"") for c in session.calls]
        )
        bills = bill_calls([reading.sent(*prompt) for prompt in prompts], actor.rules, session.lost)
        observer = (setting and setting.observer) or choose_observer(actor.model, "auto")
        own = memory_dollars(run.asked, observer, reading.scale) if run else 0.0
        spent.append(price_in_dollars(sum_tokens(bills), price) + own)
    full, defaults, cheap = spent
    print(
        f"\n  The session on {actor.model}: ${full:.2f} with full history, {defaults / full:.3f} of it with the defaults, "
        f"{cheap / full:.3f} with the profile {profile.name!r}."
    )


async def _replayed(calls: Sequence[Timed], model: str, setting: Setting) -> Replayed:
    return await replayed(
        calls,
        model=model,
        observer=setting.observer or choose_observer(model, "auto"),
        ratio=setting.ratio,
        tools=setting.tools,
        settings=setting.settings,
    )


def _figures(
    spent: float, own: float, without: float, tokens: BilledTokens, calls: Sequence[SentPrompt]
) -> tuple[str, ...]:
    sizes = [call.tokens for call in calls]
    return (
        f"{spent:.2f}",
        f"{own:.2f}",
        f"{spent / without:.3f}",
        f"{tokens.prompt / 1e6:.2f} M",
        f"{sum(sizes) / len(sizes) / 1e3:.1f} k",
        f"{max(sizes) / 1e3:.1f} k",
    )


def _calibrated(
    session: Session,
    reading: Reading,
    bills: Sequence[BilledTokens],
    calls: Sequence[SentPrompt],
    price: Price,
) -> bool:
    recorded, simulated = session.bill, sum_tokens(bills)
    paid = sum(u["cost"]["total"] for u in session.recorded)
    found = price_in_dollars(simulated, price)
    deviation, difference = found / paid - 1, listed(session, price)
    forgetful = price_in_dollars(sum_tokens(bill_calls(calls, ANTHROPIC)), price)
    cold = sum(calls[n].at - calls[n - 1].at > ANTHROPIC.lifetime_s for n in session.lost)
    print(f"The cache model against the recorded bill: {len(bills)} calls of {session.model}\n")
    row("", "dollars", "read", "written", "output", "share read")
    row("recorded", f"{paid:.2f}", *_kinds(recorded))
    row("simulated", f"{found:.2f}", *_kinds(simulated))
    row("deviation", f"{deviation:+.1%}")
    print(
        f"\n  The provider counts {reading.scale:.3f} tokens for one of o200k, and {reading.tools} before the first message."
        f"\n  {len(session.lost)} calls found their cache gone, {cold} of them after more than {ANTHROPIC.lifetime_s:g} s; all are"
        f" replayed (without: ${forgetful:.2f})."
        f"\n  List prices against each call's recorded cost: at most ${difference:.9f} apart."
    )
    return _kept(
        abs(deviation) <= DEVIATION,
        f"the simulated bill is within {DEVIATION:.0%} of the recorded one",
    ) & _kept(difference < 1e-6, "list prices are the recorded ones")


def _kinds(tokens: BilledTokens) -> tuple[str, ...]:
    millions = (tokens.read, tokens.written + tokens.fresh, tokens.output)
    return (*(f"{n / 1e6:.2f} M" for n in millions), f"{tokens.share:.3f}")


def _print_shares(found: Sequence[tuple[str, Cached, BilledTokens]]) -> bool:
    print("\n  Prompt tokens served by the provider's cache\n")
    row("", "all calls", "calls after", "of these,", "of what was", "calls below")
    row("", "", "no break", "served", "sent before", f"{SERVED:.0%}")
    for name, cached, whole in found:
        row(
            name,
            f"{whole.share:.3f}",
            cached.calls,
            f"{cached.share:.3f}",
            f">= {cached.repeated:.3f}",
            cached.below,
        )
    print("\n  A break: an activation, a reflection, a cache that was lost or has expired.")
    return _kept(
        all(cached.repeated >= 1 for _, cached, _ in found),
        "after no break, all that was sent before is served",
    ) & _kept(
        all(cached.share >= SERVED for _, cached, _ in found),
        f"after no break, {SERVED:.0%} of prompt tokens are served",
    )


def _print_new(found: Mapping[str, Sequence[New]]) -> bool:
    """Why calls are served less than the rest: of a prompt that holds more new than that, no cache
    could serve more."""
    print(
        f"\n  Calls after no break of which less than {SERVED:.0%} is served, by what most of their new tokens are\n"
    )
    row("", "calls", *KINDS.values(), "also with", "new tokens", "prompt", "not served")
    row("", "", "", "", "", "full history", "(median)", "(median)", "though old")
    without = {n.number for n in found["full history"] if n.share < SERVED}
    for name, calls in found.items():
        below = [n for n in calls if n.share < SERVED]
        why = Counter(n.mostly for n in below)
        medians = [
            round(median(sizes)) for sizes in ([n.tokens for n in below], [n.prompt for n in below])
        ]
        old = sum(n.most - n.read for n in calls)
        row(
            name,
            len(below),
            *(why[kind] for kind in KINDS.values()),
            len(without & {n.number for n in below}),
            *medians,
            old,
        )
    print("\n  With the defaults, call by call (number: new tokens of the prompt's):")
    _print_calls([n for n in found["defaults"] if n.share < SERVED])
    served = all(n.read >= n.most for calls in found.values() for n in calls)
    return _kept(
        served, "after no break, a prompt is served but for what is new in it, at every call"
    )


def _print_calls(calls: Sequence[New]) -> None:
    cells = [f"{n.number}: {n.tokens} of {n.prompt} ({n.share:.1%} served)" for n in calls]
    for start in range(0, len(cells), 3):
        print("    " + "".join(f"{cell:<42}" for cell in cells[start : start + 3]).rstrip())


def _print_compressed(found: Sequence[tuple[str, Compressed, Replayed]]) -> None:
    print("\n  What left the prompt, and the notes that stand for it (o200k tokens)\n")
    row(
        "",
        "text, calls",
        "notes",
        "times less",
        "tool results",
        "notes",
        "times less",
        "together",
        "reflections",
    )
    for name, c, run in found:
        kinds = [
            cell
            for kind in (c.text, c.results)
            for cell in (kind.source, kind.notes, f"{kind.times:.1f}")
        ]
        row(name, *kinds, f"{c.whole.times:.1f}", sum(a.reflects for a in run.asked))
    print(
        "\n  How long notes are is the note-taker's setting: the table shows what becomes of it, kind by kind, through long results that"
        "\n  are shown in part, repetitions and reflections. How much shorter a model writes, it cannot show."
    )


async def written(path: Path) -> bool:
    print("\nNotes that a model wrote of dialogues, text alone (o200k tokens)\n")
    found = list(dialogues(path))
    row("", "dialogues", "text", "notes", "times less", "least", "most")
    times = [kind.times for kind in found]
    both = sum(found, Kind())
    row(
        path.stem,
        len(found),
        both.source,
        both.notes,
        f"{both.times:.1f}",
        f"{min(times):.1f}",
        f"{max(times):.1f}",
    )
    print(
        "\n  Written by another prompt than ours: an anchor for what notes of text alone come to, not a figure of this program."
    )
    return True


async def service(path: Path) -> bool:
    """Short conversations below the threshold, each alone and several in a row, with the
    defaults."""
    print("\nConversations that end below the threshold: times the cost without memory, by notes\n")
    row("", "threads", "memory", *(f"{name} 1:{ratio}" for ratio in RATIOS for name in CHOICES))
    kept = True
    for what, most in (("each alone", 0), (f"in a row to {JOINED}", JOINED)):
        calls = service_chats(path, most)
        for actor in ACTORS:
            cells = await _list_defaults(calls, actor, Reading(actor.scale, TOOLS))
            asked = sum(len(run.asked) for _, run in cells)
            threads = len({call.thread for call in calls})
            row(f"{actor.model}, {what}", threads, asked, *(f"{share:.3f}" for share, _ in cells))
            kept &= _kept(
                all(share <= SHORT for share, _ in cells),
                f"a conversation with {actor.model} that ends below the threshold costs at most {SHORT} times as much",
            )
    return kept


async def _print_defaults(session: Session, reading: Reading) -> bool:
    """The session as each actor would have led it, with nothing set but the memory model."""
    print(
        "\n  The defaults: times the cost of full history, memory's own calls included, by notes\n"
    )
    row("", *(f"{name} 1:{ratio}" for ratio in RATIOS for name in CHOICES), "auto is")
    kept = True
    for actor in ACTORS[:3]:
        cells = await _list_defaults(session.calls, actor, reading, session.lost)
        row(
            actor.model,
            *(f"{share:.3f}" for share, _ in cells),
            choose_observer(actor.model, "auto"),
        )
        share, _ = cells[-2]
        kept &= actor.model not in MAX_DEFAULT_SHARES or _kept(
            share <= MAX_DEFAULT_SHARES[actor.model],
            f"with the defaults the session on {actor.model} costs at most {MAX_DEFAULT_SHARES[actor.model]} of its full history",
        )
    return kept


async def _list_defaults(
    calls: Sequence[Timed], actor: Actor, reading: Reading, lost: Collection[int] = ()
) -> list[tuple[float, Replayed]]:
    """For each of COLUMNS the share of the cost without memory, and what was played."""

    def bill(prompts: Iterable[tuple[Timed, Sequence[Message], bytes]]) -> float:
        sent = [reading.sent(*prompt) for prompt in prompts]
        return price_in_dollars(
            sum_tokens(bill_calls(sent, actor.rules, lost)), priced(actor.model)
        )

    without = bill((call, call.sent, b"") for call in calls)
    found: dict[tuple[str, int], tuple[float, Replayed]] = {}
    keys = [(choose_observer(actor.model, choice), ratio) for choice, ratio in COLUMNS]
    for observer, ratio in dict.fromkeys(keys):
        run = await _replayed(calls, actor.model, Setting("", observer, ratio=ratio))
        spent = bill((f.call, f.messages, f.tools) for f in run.forwarded)
        spent += memory_dollars(run.asked, observer, reading.scale)
        found[observer, ratio] = (spent / without, run)
    return [found[key] for key in keys]


def steady() -> bool:
    print(
        "\nReflecting in its steady state: notes that keep coming, with the default thresholds (simulated)\n"
    )
    row("the reflector writes", "written, per", "read, per", "rewrites of")
    row("", "new token", "new token", "an old note")
    row("", "of notes", "of notes", "per 100 k")
    asked = play_notes(Limits(), write_as_asked)
    for name, found in (
        ("as long as accepted", play_notes(Limits(), write_as_accepted)),
        ("as long as asked for", asked),
    ):
        row(
            name,
            f"{found.written_per_new:.2f}",
            f"{found.read_per_new:.2f}",
            f"{found.rewrites:.1f}",
        )
    holds = asked.written_per_new <= MAX_WRITTEN_PER_NEW
    return _kept(
        holds,
        f"a reflector that keeps to its size writes at most {MAX_WRITTEN_PER_NEW} tokens for one of new notes",
    )


def _kept(holds: bool, promise: str) -> bool:
    if not holds:
        print(f"\n  BROKEN: {promise}", file=sys.stderr)
    return holds


def main() -> int:
    options = argparse.ArgumentParser(prog="scripts/bench cost", description=__doc__)
    options.add_argument(
        "--data", type=Path, default=SHARED, help="folder of the recorded conversations"
    )
    options.add_argument("--only", choices=["coding", "service", "written", "steady"])
    chosen = options.parse_args()
    logs.configure_log("off")
    parts: dict[str, tuple[Callable[[Path], Any], Path]] = {
        "coding": (coding, chosen.data / "coding-session.jsonl"),
        "service": (service, chosen.data / "airline-service.jsonl"),
        "written": (written, chosen.data / "locomo10.json"),
    }
    kept = True
    for name, (part, path) in parts.items():
        if chosen.only in (None, name):
            if not path.exists():
                raise SystemExit(
                    f"scripts/bench: no {path.name} in {path.parent}; name its folder with --data"
                )
            kept &= asyncio.run(part(path))
    if chosen.only in (None, "steady"):
        kept &= steady()
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
