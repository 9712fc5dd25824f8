"""What must hold after every step, told from the ids in the texts; whatever breaks it is a
`Violation`.

The promises, in the words of the issue: each message in the tail or in exactly one committed range;
every message shown to the actor at least once, raw or observed; coverage monotone on a branch; no
chunk stranded; one live record; no observation of an abandoned branch in any prompt; tool calls
with their results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import orjson
from msgspec.structs import replace

from om_proxy.memory.model import EMPTY_CHAIN, Memory, Message, Observation, extend_chain
from tests.simulation.changes import Changes, Covered
from tests.simulation.promises import must
from tests.simulation.store import Thread
from tests.simulation.words import id_of, ids_in, ids_of, markers_in, numbered

if TYPE_CHECKING:
    from tests.simulation.talk import Exchange, Talk


# how `branch.ROLLBACK_NOTE` begins
NOTE_OF_FORK = "The conversation was taken back to an earlier point"
HINT_BEGIN = "Note from the system, not from the user:"


def named(ids: Iterable[str]) -> str:
    return " ".join(numbered(ids)) or "none"


# ── the store, at every commit ────────────────────────────────────────────────────────────────────


def check_commit(talk: Talk, before: Memory, after: Memory, rows: Thread) -> None:
    """`before`: what was stored; `after`: what is stored now, and `rows` of it."""
    live = rows.live()
    stored = rows.memory()
    must(
        replace(after, recent=stored.recent) == stored,
        "one live record",
        "what is stored is not what was committed",
    )
    must(after.version > before.version, "one live record", before, after)
    here = {m.seq: id_of(m.item.raw) or "?" for m in live}
    gone = {seq: one for seq, one in talk.live.items() if seq not in here}
    _check_messages(talk, here, gone)
    note_changes(talk, before, after, live)
    _check_ranges(after, live, talk.changes)
    _check_coverage(before, after, min(gone, default=before.end + 1) - 1)
    talk.live = here
    talk.ever |= set(here.values())
    places = {(talk.letter, seq) for seq in here}
    talk.changes.check_chunks(before, after, after.key, after.log.entries, places)
    uncertain = talk.again | talk.doubtful()
    moves = before.scope != after.scope
    talk.changes.check_log(after.key, after.log.entries, places, uncertain, moves=moves)


def note_changes(talk: Talk, before: Memory, after: Memory, live: Sequence[Message]) -> None:
    """What people did to the notes of a thread with a log of its own."""
    changes = talk.changes

    def find(entry: Observation) -> Covered:
        return find_covered(talk, entry.after, entry.last, live)

    changes.note_log(after.key, before.log, after.log, find)
    changes.note_chunks(before, after, find)
    settle(talk, after, live)


def settle(talk: Talk, after: Memory, live: Sequence[Message]) -> None:
    covered = find_covered(talk, 0, after.coverage, live)
    chunked = find_covered(talk, 0, after.chunked_to, live)
    talk.changes.settle(talk.letter, set(covered.values()), set(chunked.values()))


def find_covered(talk: Talk, after: int, last: int, live: Sequence[Message]) -> Covered:
    return {(talk.letter, m.seq): id_of(m.item.raw) or "?" for m in live if after < m.seq <= last}


def _check_messages(talk: Talk, here: dict[int, str], gone: dict[int, str]) -> None:
    ids = list(here.values())
    twice = (
        {one for one in ids if ids.count(one) > 1} - talk.again
        if len(set(ids)) < len(ids)
        else set()
    )
    must(not twice, "nothing is stored twice", named(twice))
    lost = {one for one in gone.values() if one not in here.values() and not talk.may_lose(one)}
    must(not lost, "never lost", "superseded without having been taken back:", named(lost))


def _check_ranges(after: Memory, live: Sequence[Message], changes: Changes) -> None:
    """The log and the chunks cover the transcript from its beginning without a gap; the rest is the
    tail."""
    chain, chains = EMPTY_CHAIN, {0: EMPTY_CHAIN}
    for message in live:
        chain = extend_chain(chain, message.item.fp)
        must(chain == message.chain, "one live record", "broken chain at", message)
        chains[message.seq] = chain
    end = 0
    for entry in after.log.entries + after.chunks:
        must(
            entry.after == end,
            "each message in exactly one range",
            f"{entry} begins after {entry.after}, not {end}",
        )
        must(
            chains.get(entry.last) == entry.chain,
            "no chunk stranded",
            f"{entry} is about another branch",
        )
        end = entry.last
        _check_notes(entry, [m for m in live if entry.after < m.seq <= entry.last], changes)
    reach = after.log.entries[-1].last if after.log.entries else 0
    must(
        after.coverage == reach,
        "coverage moves only with an observation",
        f"{after.coverage}, the log's end is {reach}",
    )
    covered = sum(m.seq <= after.coverage for m in live)
    must(
        after.covered_count == covered,
        "each message in exactly one range",
        f"{after.covered_count} is not {covered}",
    )
    must(
        [m.seq for m in live[covered:]] == [m.seq for m in after.tail],
        "each message in the tail or in a range",
        after,
    )
    _check_reflection(after)


def _check_notes(entry: Observation, messages: Sequence[Message], changes: Changes) -> None:
    """What a person took away may be missing."""
    about = {id_of(m.item.raw) or "?" for m in messages}
    noted = ids_in(entry.text)
    must(
        noted <= about <= noted | changes.excused(),
        "each message in exactly one range",
        entry,
        f"covers {named(about)}, notes {named(noted)}",
    )


def _check_reflection(after: Memory) -> None:
    made = after.log.reflection
    sources = after.log.entries[: len(made.sources)] if made else ()
    if (
        made
        and made.generation == after.log.generation
        and tuple(o.id for o in sources) == made.sources
    ):
        about = set().union(*(ids_in(o.text) for o in sources))
        must(
            about == ids_in(made.text),
            "a reflection covers its sources",
            named(about ^ ids_in(made.text)),
        )
        must(
            markers_in(*(o.text for o in sources)) == markers_in(made.text),
            "a reflection says what people wrote",
            made,
        )


def _check_coverage(before: Memory, after: Memory, cut: int) -> None:
    """It falls only with what the client took back, which is all after `cut`, and no further than
    to the entry before that."""
    kept = max((o.last for o in before.log.entries if o.last <= cut), default=0)
    must(
        after.coverage >= kept,
        "coverage monotone on a branch",
        f"{before.coverage} → {after.coverage}, kept {kept}",
    )


# ── the prompt, at every request ──────────────────────────────────────────────────────────────────


def check_prompt(exchange: Exchange, body: bytes) -> None:
    """What the actor is sent in place of what the client sent."""
    check_told(exchange, *parts(body))


def check_told(exchange: Exchange, observed: set[str], raw: Sequence[str]) -> None:
    """`observed`: what the block says of this thread; `raw`: the messages behind it."""
    shown, talk = set(exchange.shown), exchange.client.talk
    seen = set(raw) | observed
    returned = talk.changes.returnable() if talk.forked >= exchange.started else set()
    must(raw[-1:] == exchange.shown[-1:], "the newest message rules", raw[-3:], exchange.shown[-3:])
    missing = (
        (shown | exchange.required)
        - seen
        - _late_results(exchange, observed)
        - _unanswered_steps(exchange, raw)
        - talk.unsure
        - talk.changes.excused(exchange.started)
        - returned
    )
    must(
        not missing,
        "every message shown to the actor",
        "neither raw nor observed:",
        named(missing),
        raw,
    )
    strange = seen - shown - exchange.allowed()
    must(not strange, "no abandoned branch in any prompt", named(strange))
    told = [one for one in raw if one not in talk.again]
    must(len(told) == len(set(told)), "no message twice in a prompt", raw)
    must(
        exchange.asked <= set(raw),
        "what is asked is never covered",
        named(exchange.asked - set(raw)),
        raw,
    )
    both = set(told) & observed - exchange.disclaimed - exchange.asked - exchange.calls
    must(
        not both,
        "in the tail or in a range, never both",
        named(both),
        raw,
        f"observed {named(observed)}",
    )
    order = [one for one in exchange.shown if one in set(told)]
    must(
        [one for one in told if one in shown] == order, "in the client's order", raw, exchange.shown
    )
    _check_tools(exchange, raw)


def find_disclaimed(notes: str) -> set[str]:
    """Ids that the notes of a thread tell before the last note of a fork, and not behind it. If the
    client returns to what was taken back there, that is raw: the notes about it do not hold. Without
    such a note, one was reflected together with what stood before it."""
    before, note, behind = notes.rpartition(NOTE_OF_FORK)
    return ids_in(before) - ids_in(behind) if note else ids_in(notes)


def _late_results(exchange: Exchange, observed: set[str]) -> set[str]:
    """Results that came after others had spoken: their call's block was closed
    (docs/contributing/behaviour.md#safe-cut) and may be observed. No server takes them without
    their call, so they wait for their own observation; the request that brought them has shown
    them."""
    answers = exchange.client.talk.answers
    noted = observed | exchange.client.talk.changes.excused(exchange.started)
    return {one for one, call in answers.items() if call in noted and one not in exchange.shown}


def _unanswered_steps(exchange: Exchange, raw: Sequence[str]) -> set[str]:
    """Calls without all of their results, and those that came. No server takes them once something
    else was said, so they are left out where the client does not show them."""
    talk = exchange.client.talk
    counts = {
        node.id: len(node.calls) for client in talk.clients for node in client.nodes if node.calls
    }
    told = Counter(call for result, call in talk.answers.items() if result in set(raw))
    stored = set(talk.live.values())
    known = Counter(call for result, call in talk.answers.items() if result in stored)
    calls = {call for call, count in counts.items() if told[call] < count}
    steps = {call for call in calls if known[call] < counts[call]}
    results = {result for result, call in talk.answers.items() if call in steps}
    return (calls | results) - set(exchange.shown)


def _check_tools(exchange: Exchange, raw: Sequence[str]) -> None:
    """Thin clients send results alone: those the server gets as they came."""
    place = {one: index for index, one in enumerate(raw)}
    shown = exchange.shown
    for result, call in exchange.client.talk.answers.items():
        if result in place and (call in shown or result not in shown):
            must(
                place.get(call, len(raw)) < place[result],
                "tool calls with their results",
                f"{result} without {call}",
            )
        elif call in place and result in shown:
            must(result in place, "tool calls with their results", f"{call} without {result}")


def parts(body: bytes) -> tuple[set[str], list[str]]:
    """The ids in the observation block, and those of the raw messages in order."""
    observed: set[str] = set()
    raw: list[str] = []
    for said in orjson.loads(body)["messages"]:
        block, own = split_message(said)
        observed |= ids_in(block)
        raw += ids_of(own)
    return observed, raw


def split_message(said: dict[str, Any]) -> tuple[str, bytes]:
    """The observation block in a message, and what else it says. A server that refuses system
    messages gets the block, and the hint behind it, at the beginning of the user's."""
    text = _text(said)
    if "<observations>" not in text and "<other-conversation " not in text:
        return "", orjson.dumps(said)
    if said["role"] != "user":
        return text, b""
    block, _, hinted = text.partition(HINT_BEGIN)
    return block, hinted.partition("\n")[2].encode()


def find_block(body: bytes) -> str:
    """The text of the message with the observation block."""
    blocks = (split_message(said)[0] for said in orjson.loads(body)["messages"])
    return "\n".join(block for block in blocks if "<observations>" in block)


def _text(said: dict[str, Any]) -> str:
    content = said["content"]
    return (
        "\n".join(part["text"] for part in content) if isinstance(content, list) else content or ""
    )


# ── after a turn, and in the end ──────────────────────────────────────────────────────────────────


def check_turn(exchange: Exchange) -> None:
    """The client has seen the end of a reply: the turn is stored, and the transcript is the
    conversation."""
    client, talk = exchange.client, exchange.client.talk
    stored = list(talk.live.values())
    unsure = talk.doubtful()
    live = [one for one in stored if one not in unsure]
    if client.shows_all:
        told = [node.id for node in client.nodes if node.id not in unsure]
        must(live == told, "acknowledged is durable", f"stored {live[-12:]}, true {told[-12:]}")
    else:
        promised = [node.id for node in client.nodes if node.promised]
        kept = [one for one in stored if one in set(promised)]
        must(
            kept == promised,
            "acknowledged is durable",
            f"stored {kept[-12:]}, promised {promised[-12:]}",
        )


def check_end(talk: Talk, memory: Memory, live: Sequence[Message]) -> None:
    """Everything has settled: what was stored was shown, and nothing waits. A call that its client
    gave up has no result, and no server takes it: the notes alone tell it."""
    answered = {m.item.answers for m in live}
    given_up = {
        id_of(m.item.raw) for m in live if m.item.calls and answered.isdisjoint(m.item.calls)
    }
    never = (
        set(talk.live.values())
        - talk.shown
        - talk.doubtful()
        - talk.changes.excused()
        - given_up
        - {id_of(m.item.raw) for m in live[-1:]}
    )
    must(not never, "every message shown to the actor at least once", named(never))
    for one, other in pairwise(memory.log.entries + memory.chunks):
        must(one.last == other.after or other.kind == "note", "no chunk stranded", one, other)
