"""A key store in front of a real one. It is away, or its process ends, where a test says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from om_proxy.common.errors import StorageError
from om_proxy.storage.encryption.key_store import KeyStore


class ProcessEnded(BaseException):
    """Whatever was to come does not."""


class FaultyKeys:
    """`is_away`: nothing is answered. `ends_before`, `ends_after`: the method at which the process
    ends."""

    def __init__(self, keys: KeyStore) -> None:
        self.keys = keys
        self.is_away = False
        self.ends_before = self.ends_after = ""
        self.asked: list[str] = []
        self.before: dict[str, Callable[[], Awaitable[Any]]] = {}  # by method, and only once

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.keys, name)
        if name in ("expect", "close"):
            return method  # type: ignore[no-any-return] # a method of a name that was asked for

        async def ask(*arguments: Any) -> Any:
            self.asked.append(name)
            if happens := self.before.pop(name, None):
                await happens()
            if self.is_away:
                raise StorageError("nobody answers")
            if name == self.ends_before:
                raise ProcessEnded
            answer = await method(*arguments)
            if name == self.ends_after:
                raise ProcessEnded
            return answer

        return ask
