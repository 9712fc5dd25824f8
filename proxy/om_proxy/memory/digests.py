"""What a list of messages is, told by digests: of all of them, and after as many as somebody has recorded.

A conversation is sent again and again and only grows, so its digests go on from where they stood: hashing costs what is new.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from hashlib import _Hash


class Digests(Struct, frozen=True):
    """The digests of a list's beginnings. Each message's length goes before it, so no two lists share one."""

    count: int  # messages hashed
    running: _Hash  # of all of them; never updated in place
    at: Mapping[int, bytes]  # by number of messages; `count` is among them

    def tells(self, counts: Set[int]) -> bool:
        """Whether none of these numbers of messages lies behind us without a digest."""
        return all(count > self.count or count in self.at for count in counts)

    def further(self, raws: Sequence[bytes], counts: Set[int]) -> Digests:
        """With these messages behind; of the digests, those after `counts` are kept, and the one of all."""
        running = self.running.copy()
        at = {count: digest for count, digest in self.at.items() if count in counts}
        for count, raw in enumerate(raws, self.count + 1):
            running.update(len(raw).to_bytes(8, "big"))
            running.update(raw)
            if count in counts:
                at[count] = running.digest()
        end = self.count + len(raws)
        at[end] = running.digest()
        return Digests(end, running, at)


NO_DIGESTS = Digests(0, hashlib.sha256(), {})


class Raws(Sequence[bytes]):
    """Messages of which the first ones have been hashed before."""

    __slots__ = ()

    @property
    @abstractmethod
    def digests(self) -> Digests:
        """Of a beginning."""
