"""Choose the kept look-ups that a prompt shows: the rules.

- Only a message that is raw in the tail shows its look-ups, so that a prompt is the beginning of the
  next one.
- They leave where the notes change: then the prompt's beginning changes anyway. `look_ups_after`
  says up to which message they have left, and `look_ups_log_state` for which notes that holds.
- Those of a tool loop that is running stay: the client's next calls go on with them.
- All look-ups of a prompt have at most `MAX_SHOWN_TOKENS`. Older ones come first: a new one that
  does not fit is shown in its own request only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec.structs import replace

from om_proxy.memory.message_list import MessageList
from om_proxy.memory.model import Memory
from om_proxy.memory.recall.message_ids import SHOWN_LABEL_DIGITS, shorten_label
from om_proxy.memory.rounds import LookedUp

MAX_SHOWN_TOKENS = 8_000

# roles of messages inside a tool loop; any other one ends it
_LOOP_ROLES = ("assistant", "tool", "function")


def drop_left_look_ups(memory: Memory, log_state: tuple[int, int]) -> Memory:
    """Return the memory for a prompt that is built from a log of this generation and length. If the
    log was another one before, only the look-ups of a running tool loop stay."""
    if memory.look_ups_log_state == log_state:
        return memory
    return replace(
        memory,
        look_ups_after=max(memory.look_ups_after, _find_loop_start(memory)),
        look_ups_log_state=log_state,
    )


def _find_loop_start(memory: Memory) -> int:
    """Return the seq of the message before the running tool loop; without one, of the newest
    message."""
    tail = memory.tail
    if not tail or tail[-1].item.answers is None:
        return memory.end
    return next((m.seq for m in reversed(tail) if m.item.role not in _LOOP_ROLES), memory.coverage)


def choose_shown_look_ups(memory: Memory) -> Mapping[int, LookedUp]:
    """Return the look-ups that a prompt shows, by the seq of their message. `memory`: after
    `drop_left_look_ups`."""
    if not (with_look_ups := MessageList.of(memory.tail).with_look_ups):
        return {}
    shown: dict[int, LookedUp] = {}
    free_tokens = MAX_SHOWN_TOKENS
    for message in with_look_ups:
        look_ups = message.look_ups
        if look_ups and message.seq > memory.look_ups_after and look_ups.tokens <= free_tokens:
            shown[message.seq] = look_ups
            free_tokens -= look_ups.tokens
    return shown


# Which conversations kept look-ups quote.
#
# The proxy names each conversation that an answer shows, but for the current one, by the beginning of
# its label. So look-ups without it have no word of that conversation.


_SHOWN_LABEL = re.compile(rb"(?<![0-9a-f])[0-9a-f]{%d}(?![0-9a-f])" % SHOWN_LABEL_DIGITS)


def list_named_labels(look_ups: LookedUp) -> frozenset[str]:
    """Return what may be the beginning of a label in the answers of the look-ups."""
    rounds = (*look_ups.rounds, *([look_ups.beside] if look_ups.beside else ()))
    return frozenset(
        found.decode()
        for one in rounds
        for result in one.results
        for found in _SHOWN_LABEL.findall(result)
    )


def quotes_thread(look_ups: LookedUp, label: str) -> bool:
    """Return whether the look-ups may quote the thread with this label."""
    return shorten_label(label) in list_named_labels(look_ups)
