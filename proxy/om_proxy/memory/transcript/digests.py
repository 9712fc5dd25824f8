"""Identify a list of messages by digests: of the whole list, and of its beginnings that are
recorded as views.

A client sends its conversation again and again, and it only grows. So digests continue where the
last request's ended: hashing costs what is new.
"""

from __future__ import annotations

import hashlib
import struct
from abc import abstractmethod
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from hashlib import _Hash

pack_length = struct.Struct(">Q").pack


class Digests(Struct, frozen=True):
    """The digests of a list's beginnings. Each message's length goes before it, so no two lists
    share one."""

    count: int  # messages hashed
    running: _Hash  # of all of them; never updated in place
    at: Mapping[int, bytes]  # by number of messages; `count` is among them

    def has_digests_at(self, counts: Set[int]) -> bool:
        """Return whether every one of these numbers of messages has a digest or is still ahead."""
        return all(count > self.count or count in self.at for count in counts)

    def extend(self, raws: Sequence[bytes], counts: Set[int]) -> Digests:
        """Return the digests of a list that goes on with these messages. Those at `counts` are
        kept, and the one of all."""
        running = self.running.copy()
        at = {count: digest for count, digest in self.at.items() if count in counts}
        update = running.update
        for count, raw in enumerate(raws, self.count + 1):
            update(pack_length(len(raw)) + raw)  # one call: copying takes less time than a second
            if count in counts:
                at[count] = running.digest()
        end = self.count + len(raws)
        at[end] = running.digest()
        return Digests(end, running, at)


NO_DIGESTS = Digests(0, hashlib.sha256(), {})


class HashedMessages(Sequence[bytes]):
    """Messages of which the first ones are hashed already."""

    __slots__ = ()

    @property
    @abstractmethod
    def digests(self) -> Digests:
        """The digests of the messages that are hashed."""
