"""Find the memory that holds the log of a thread: its own, or that of its resource."""

from __future__ import annotations

from typing import NamedTuple

from om_proxy.common.errors import StaleVersion
from om_proxy.memory.model import Key, Memory, resource_key


class LogPlace(NamedTuple):
    """The row of a log, as it was when its thread was read."""

    key: Key
    row_id: int
    version: int

    def check_version(self, log: Memory, expected: int | None) -> None:
        """Raise StaleVersion if the log has changed since. `expected`: the version that the person
        named, which `check_version` has compared already; None expects none."""
        if expected is not None and log.version != self.version:
            raise StaleVersion


def find_log_place(memory: Memory) -> LogPlace:
    ref = memory.shared_log_ref
    if ref is None:
        return LogPlace(memory.key, memory.row_id, memory.version)
    return LogPlace(resource_key(memory.key), ref.row_id, ref.version)
