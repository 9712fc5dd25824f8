"""Compare the messages of two prompts."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import NamedTuple


class MessageDiff(NamedTuple):
    """The messages that only one of two prompts has, by index."""

    dropped: tuple[int, ...]  # in the prompt as received
    added: tuple[int, ...]  # in the prompt as sent


def diff_messages(received: Sequence[bytes], sent: Sequence[bytes]) -> MessageDiff:
    """Return the difference. A message that stays is the same byte for byte, and no message that
    stays changes its place among the others that stay.

    The prompts are compared from their ends: memory replaces the oldest messages, and of equal ones
    the newest stay.
    """
    places: dict[bytes, deque[int]] = defaultdict(deque)
    for index in range(len(received) - 1, -1, -1):
        places[received[index]].append(index)
    kept: set[int] = set()
    added: list[int] = []
    behind = len(received)  # where the newest message that stays and is compared already stood
    for index in range(len(sent) - 1, -1, -1):
        candidates = places.get(sent[index], deque())
        while candidates and candidates[0] >= behind:
            candidates.popleft()
        if candidates:
            behind = candidates.popleft()
            kept.add(behind)
        else:
            added.append(index)
    dropped = tuple(index for index in range(len(received)) if index not in kept)
    return MessageDiff(dropped, tuple(reversed(added)))
