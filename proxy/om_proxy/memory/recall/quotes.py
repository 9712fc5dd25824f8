"""Which conversations kept look-ups quote.

The proxy names each conversation that an answer shows, but for the current one, by the beginning of
its label. So look-ups without it have no word of that conversation.
"""

from __future__ import annotations

import re

from om_proxy.memory.recall.message_ids import SHOWN_LABEL_DIGITS, shorten_label
from om_proxy.memory.rounds import LookedUp

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
