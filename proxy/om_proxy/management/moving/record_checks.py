"""Check what the records of an export say together. Types and bounds of single values are checked
where they are decoded (`value_decoding`)."""

from __future__ import annotations

from om_proxy.common.apis import API_NAMES
from om_proxy.common.errors import UsageError
from om_proxy.management.moving.faults import find_repairable_faults
from om_proxy.management.moving.value_decoding import WHAT_TO_REPAIR
from om_proxy.memory.lifecycle.pins import MAX_PINNED_TOKENS, MAX_PINS
from om_proxy.memory.model import MAX_VIEWS, RESOURCE_THREAD, Item, Observation
from om_proxy.storage.values.stored_rows import StoredMessage, WholeThread
from om_proxy.wire.apis.api import Unreadable
from om_proxy.wire.apis.registry import read_item

# a byte of text is a token at most, beside some for framing; an image of which nothing is seen takes
# a few dozen bytes
FRAMING_TOKENS = 100
MAX_TOKENS_PER_TEXT_BYTE = 1
MAX_TOKENS_PER_ATTACHMENT_BYTE = 1_000
_NO_KEY = bytes(32)  # fingerprints are not compared


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
