"""Find what does not fit together in a thread, stored or exported, and compute anew what can be."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeVar

import orjson
from msgspec.structs import replace

from om_proxy.common.apis import API_NAMES
from om_proxy.common.errors import ConfigError, Conflict, UnopenedText, UsageError
from om_proxy.management.moving.thread_records import load_rows
from om_proxy.management.moving.value_decoding import WHAT_TO_REPAIR
from om_proxy.memory.lifecycle.log_sharing import find_thread_coverage
from om_proxy.memory.lifecycle.pins import MAX_PINNED_TOKENS, MAX_PINS
from om_proxy.memory.model import (
    EMPTY_CHAIN,
    MAX_VIEWS,
    RESOURCE_THREAD,
    Item,
    Key,
    Memory,
    Message,
    Observation,
    extend_chain,
    sum_framed_tokens,
)
from om_proxy.memory.value_bounds import find_bad_fields
from om_proxy.settings.config import parse_thread_overrides
from om_proxy.settings.identity.keyed_hashes import label_thread
from om_proxy.storage.contract.memories import StoredThreads
from om_proxy.storage.contract.removal import MemoryMoving
from om_proxy.storage.shared.rekeying import ResourceRekeying, rekey_whole_thread
from om_proxy.storage.values.listing import ThreadInfo
from om_proxy.storage.values.stored_rows import StoredMessage, WholeThread
from om_proxy.storage.whole_threads import find_listed, list_all, read_whole_thread
from om_proxy.wire.apis.api import Unreadable
from om_proxy.wire.apis.registry import read_item

_Row = TypeVar("_Row", Message, Observation)
MENDABLE_FIELDS = frozenset(("tokens", "source_tokens", "at", "depth"))
WRONG_CHAIN = "a chain does not follow from the messages before it"
_NO_KEY = bytes(32)  # fingerprints are not compared
# a byte of text is a token at most, beside some for framing; an image of which nothing is seen takes
# a few dozen bytes
FRAMING_TOKENS = 100
MAX_TOKENS_PER_TEXT_BYTE = 1
MAX_TOKENS_PER_ATTACHMENT_BYTE = 1_000
# `lasting`: nobody can compute it anew
FaultState = Literal["repairable", "repaired", "lasting"]


class Fault(NamedTuple):
    """One thing that does not fit together."""

    key: Key
    text: str
    state: FaultState


@dataclass(slots=True)
class VerifyResult:
    """The results of a check."""

    threads: int = 0
    messages: int = 0
    busy_threads: int = 0  # that changed at every attempt to read or repair them
    faults: list[Fault] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        return all(fault.state == "repaired" for fault in self.faults) and not self.busy_threads


async def verify_store(store: MemoryMoving, *, repairs: bool = False) -> VerifyResult:
    """Verify all threads and shared logs. `repairs`: write those anew of which something can be
    computed; each is one transaction, and loses its events."""
    result = VerifyResult()
    secret = await store.secret()
    async for info in list_all(store):
        try:
            await _verify_thread(store, secret, info, result, repairs)
        except Conflict:  # a turn came between: it is in use, and another run looks at it
            result.busy_threads += 1
        except UnopenedText as exc:
            result.threads += info.key.thread != RESOURCE_THREAD
            result.faults.append(Fault(info.key, f"{exc}; forget it", "lasting"))
    return result


async def _verify_thread(
    store: MemoryMoving, secret: bytes, info: ThreadInfo, result: VerifyResult, repairs: bool
) -> None:
    key = info.key
    whole = await read_whole_thread(store, key, info.created_at)
    if whole is None:
        return
    lasting = await _find_lasting(store, whole, label_thread(secret, key))
    repairable = find_repairable_faults(whole, info)
    if repairable and key.thread != RESOURCE_THREAD:  # a turn may have come since it was listed
        repairable = find_repairable_faults(whole, await find_listed(store, key))
    if await store.version(key) != whole.memory.version:
        raise Conflict("the thread changed while it was verified")
    repairable += find_message_faults(whole)
    result.threads += key.thread != RESOURCE_THREAD
    result.messages += len(whole.messages)
    if repairable and repairs:
        await store.restore(repair_thread(whole), whole.memory.version, keeps_row=True)
    state: FaultState = "repaired" if repairs else "repairable"
    result.faults += [Fault(key, text, state) for text in repairable]
    result.faults += [Fault(key, text, "lasting") for text in lasting]


async def _find_lasting(store: StoredThreads, whole: WholeThread, label: str) -> list[str]:
    memory = whole.memory
    if memory.scope != "resource":
        return find_lasting_faults(whole)
    shared_log = await store.load(memory.key._replace(thread=RESOURCE_THREAD))
    return find_lasting_faults(whole, shared_log, label)


def find_repairable_faults(whole: WholeThread, info: ThreadInfo | None = None) -> list[str]:
    """Return what `repair_thread` can compute anew. `info`: the thread as lists show it."""
    memory = whole.memory
    live = _list_live(whole)
    covered = [stored.message for stored in live if stored.message.seq <= memory.coverage]
    faults = []
    # a shared log names the chains of its threads too, and is written with none of them
    if memory.scope == "thread" and _has_wrong_chain(live):
        faults.append(WRONG_CHAIN)
    if _has_own_log(memory) and _find_reach(memory) != memory.coverage:
        faults.append(_describe_reach(_find_reach(memory), memory.coverage))
    if [stored.parent for stored in live] != _parents(live):
        faults.append("a live message names another parent than the live message before it")
    if memory.covered_count != len(covered) or memory.covered_tokens != sum_framed_tokens(covered):
        faults.append("the counts of covered messages are not those of its messages")
    if memory.next_seq <= max((s.message.seq for s in whole.messages), default=0):
        faults.append("the next message would get a number that is in use")
    if memory.next_id <= max((o.entry.id for o in whole.observations), default=0):
        faults.append("the next note would get a number that is in use")
    faults += [
        f"its stored {name} is no value of a memory, and put aside" for name in memory.put_aside
    ]
    faults += _find_override_faults(memory)
    faults += _list_bad_fields(whole, mendable=True)
    is_listed = memory.key.thread != RESOURCE_THREAD and info is not None
    if is_listed and info and info.messages != len(live):
        faults.append("lists show another number of messages")
    if is_listed and info and info.pending_tokens != memory.pending_tokens:
        faults.append("lists show another number of tokens in its tail")
    return faults


def find_lasting_faults(
    whole: WholeThread, shared_log: Memory | None = None, label: str = ""
) -> list[str]:
    """Return what cannot be computed anew. `shared_log`: of a thread that shares one; `label`: the
    thread's in it."""
    memory = whole.memory
    faults = []
    if memory.scope == "resource" and memory.key.thread != RESOURCE_THREAD:
        reach = find_thread_coverage(shared_log.log.entries if shared_log else (), label)
        if reach != memory.coverage:
            faults.append(_describe_reach(reach, memory.coverage))
    if memory.scope == "resource" and _has_wrong_chain(_list_live(whole)):
        faults.append(WRONG_CHAIN)
    faults += _list_bad_fields(whole, mendable=False)
    seqs = {stored.message.seq for stored in whole.messages}
    if any(stored.parent and stored.parent not in seqs for stored in whole.messages):
        faults.append("a message names a parent that is not stored")
    ids = {stored.entry.id for stored in whole.observations}
    if any(id_ not in ids for generation in whole.generations for id_ in generation.entries):
        faults.append("a generation names a note that is not stored")
    return faults


def find_message_faults(whole: WholeThread) -> list[str]:
    """Return which messages are not what their JSON says. `repair_thread` mends them. An import
    finds these before it has a whole thread."""
    return [
        f"message {stored.message.seq} is not what its JSON says"
        for stored in whole.messages
        if _read_true_item(stored.message.item) != stored.message.item
    ]


def repair_thread(whole: WholeThread) -> WholeThread:
    """Return the thread with its chains, parents, counts and next numbers computed anew, and without
    settings of its own that break a rule. Notes and recorded requests name the new chains. Prompts
    show each message again that no note of the thread's own log covers."""
    whole = _mend_coverage(_mend_values(whole))
    key = whole.memory.key
    live = _list_live(whole)
    parents = dict(zip((stored.message.seq for stored in live), _parents(live), strict=True))
    whole = whole._replace(
        messages=tuple(
            stored._replace(parent=parents.get(stored.message.seq, stored.parent))
            for stored in whole.messages
        )
    )
    rekeying = ResourceRekeying(key.tenant, key.tenant, key.resource, [key.thread], str)
    whole = rekey_whole_thread(whole, key, rekeying, lambda *_: None)
    memory = whole.memory
    covered = [s.message for s in _list_live(whole) if s.message.seq <= memory.coverage]
    last_seq = max((stored.message.seq for stored in whole.messages), default=0)
    last_id = max((stored.entry.id for stored in whole.observations), default=0)
    counted = replace(
        memory,
        covered_count=len(covered),
        covered_tokens=sum_framed_tokens(covered),
        next_seq=max(memory.next_seq, last_seq + 1),
        next_id=max(memory.next_id, last_id + 1),
        put_aside=(),
        overrides=None if _find_override_faults(memory) else memory.overrides,
    )
    return load_rows(whole._replace(memory=counted))


def _has_own_log(memory: Memory) -> bool:
    return memory.scope == "thread" and memory.key.thread != RESOURCE_THREAD


def _find_reach(memory: Memory) -> int:
    entries = memory.log.entries
    return max((entry.last for entry in entries if not entry.is_rollback_note), default=0)


def _describe_reach(reach: int, coverage: int) -> str:
    return f"its notes reach message {reach}, and prompts leave out messages up to {coverage}"


def _read_true_item(item: Item) -> Item:
    """Return the item as its JSON says. What is no message of its API becomes the text of one of
    chat. The fingerprint stays: by it the client's message is known. What a newer release wrote by
    an API of its own stays."""
    if item.api not in API_NAMES:
        return item
    try:
        return replace(read_item(item.raw, _NO_KEY, item.api), fp=item.fp, origin=item.origin)
    except Unreadable:
        role = item.role if item.role == "assistant" else "user"
        text = item.raw.decode("utf-8", "replace")
        return Item(orjson.dumps({"role": role, "content": text}), role, item.fp)


def _find_override_faults(memory: Memory) -> list[str]:
    try:
        if memory.overrides is not None:
            parse_thread_overrides(memory.overrides)
    except ConfigError as exc:
        return [f"its own settings are ignored: {exc}"]
    return []


def _list_bad_fields(whole: WholeThread, *, mendable: bool) -> list[str]:
    rows = [
        *((f"message {stored.message.seq}", stored.message) for stored in whole.messages),
        *((f"note {stored.entry.id}", stored.entry) for stored in whole.observations),
    ]
    return [
        f"{name} of {place} is no value of a memory"
        for place, row in rows
        for name in find_bad_fields(row)
        if (name in MENDABLE_FIELDS) == mendable
    ]


def _mend_values(whole: WholeThread) -> WholeThread:
    return whole._replace(
        messages=tuple(
            stored._replace(message=_mend(_mend_item(stored.message), stored.message.item.raw))
            for stored in whole.messages
        ),
        observations=tuple(
            stored._replace(entry=_mend(stored.entry, stored.entry.text))
            for stored in whole.observations
        ),
    )


def _mend_coverage(whole: WholeThread) -> WholeThread:
    memory = whole.memory
    reach = _find_reach(memory)
    if not _has_own_log(memory) or reach == memory.coverage:
        return whole
    first = min((chunk.after for chunk in memory.chunks), default=reach)
    kept = [o for o in whole.observations if o.state != "chunk" or first == reach]
    covering = replace(memory, coverage=reach)
    return whole._replace(memory=covering, observations=tuple(kept))


def _mend_item(message: Message) -> Message:
    item = _read_true_item(message.item)
    return message if item == message.item else replace(message, item=item)


def _mend(value: _Row, text: str | bytes) -> _Row:
    """Return the row with tokens by an estimate, and other numbers at 0, where they are out of their
    bounds. Numbers that name other rows stay: it is not known which they should name."""
    bad = [name for name in find_bad_fields(value) if name in MENDABLE_FIELDS]
    changes = {name: len(text) // 4 if name == "tokens" else 0 for name in bad}
    return replace(value, **changes) if bad else value


def _list_live(whole: WholeThread) -> list[StoredMessage]:
    return [stored for stored in whole.messages if stored.state == "live"]


def _has_wrong_chain(live: list[StoredMessage]) -> bool:
    end = EMPTY_CHAIN
    for stored in live:
        end = extend_chain(end, stored.message.item.fp)
        if stored.message.chain != end:
            return True
    return False


def _parents(live: list[StoredMessage]) -> list[int]:
    return [0, *(stored.message.seq for stored in live)][: len(live)]


def check_message(stored: StoredMessage) -> None:
    """Raise UsageError for a message that is not what its JSON says: prompts hold the JSON as it
    is, and the rules go by the rest."""
    message = stored.message
    said, place = message.item, f"message {message.seq}"
    read = _read_message(said.raw, place, said.api)
    for name in ("role", "calls", "answers"):
        if getattr(read, name) != getattr(said, name):
            raise UsageError(f"{place}: {name} is not that of its JSON, `raw`; {WHAT_TO_REPAIR}")
    _check_tokens(message.tokens, said.raw, place)
    if message.look_ups is not None:
        rounds = message.look_ups.rounds + tuple(filter(None, (message.look_ups.beside,)))
        texts = [text for one in rounds for text in (one.assistant, *one.results)]
        for text in texts:
            _read_message(text, f"{place}.look_ups", "chat")
        # with framing
        _check_tokens(message.look_ups.tokens, b"".join(texts), f"{place}.look_ups")


def _read_message(raw: bytes, place: str, api: str) -> Item:
    if api not in API_NAMES:
        raise UsageError(
            f"{place}: this release cannot read messages of {api}; use a newer release"
        )
    try:
        return read_item(raw, _NO_KEY, api)
    except Unreadable as exc:
        raise UsageError(
            f"{place} is not the JSON of a {api} message; leave the thread out, or {WHAT_TO_REPAIR}"
        ) from exc


def _check_tokens(tokens: int, raw: bytes, place: str) -> None:
    """Raise UsageError for more tokens than the bytes can have."""
    has_parts = b'"type"' in raw
    most = len(raw) * (MAX_TOKENS_PER_ATTACHMENT_BYTE if has_parts else MAX_TOKENS_PER_TEXT_BYTE)
    if tokens > most + FRAMING_TOKENS:
        raise UsageError(
            f"{place}: tokens {tokens} are more than its {len(raw)} bytes can have; {WHAT_TO_REPAIR}"
        )


def check_notes(entry: Observation) -> None:
    """Raise UsageError for an entry with more tokens than its text has bytes, or an impossible
    range."""
    place = f"observation {entry.id}"
    _check_tokens(entry.tokens, entry.text.encode("utf-8", "surrogatepass"), place)
    for after, last in ((entry.after, entry.last), *((p.after, p.last) for p in entry.parts)):
        if last and after > last:
            raise UsageError(f"{place}: last {last} comes before after {after}; {WHAT_TO_REPAIR}")


def check_thread(whole: WholeThread) -> None:
    """Raise UsageError if the numbers of the thread contradict each other."""
    memory, log = whole.memory, whole.memory.log
    newest = max([g.number for g in whole.generations] + [*whole.beginnings, log.generation])
    if newest >= log.next_generation:
        raise UsageError(
            f"generation {newest} is not below log.next_generation {log.next_generation}; "
            f"{WHAT_TO_REPAIR}"
        )
    for name, numbers in (
        ("observation", [stored.entry.id for stored in whole.observations]),
        ("generation", [generation.number for generation in whole.generations]),
        ("pin", [pin.id for pin in log.pins]),
    ):
        if len(set(numbers)) < len(numbers):
            raise UsageError(f"two records of kind {name} have one number; export it again")
    pinned_tokens = sum(pin.tokens for pin in log.pins)
    if len(log.pins) > MAX_PINS or pinned_tokens > MAX_PINNED_TOKENS:
        raise UsageError(
            f"a log has at most {MAX_PINS} pins of {MAX_PINNED_TOKENS} tokens together: leave some out"
        )
    if len(memory.views) > MAX_VIEWS:
        raise UsageError(f"thread.views are more than {MAX_VIEWS}; {WHAT_TO_REPAIR}")
    end = memory.next_seq
    for view in memory.views:
        if max(view.seq, view.end, view.reply) >= end:
            raise UsageError(f"thread.views name a message beyond next_seq {end}; {WHAT_TO_REPAIR}")
    own_log = memory.scope == "thread" and memory.key.thread != RESOURCE_THREAD
    reach = max((stored.entry.last for stored in whole.observations), default=0)
    if own_log and reach >= end:
        raise UsageError(f"an observation reaches message {reach}, beyond next_seq {end}")
    if faults := find_repairable_faults(whole):
        raise UsageError(f"{faults[0]}; {WHAT_TO_REPAIR}")
