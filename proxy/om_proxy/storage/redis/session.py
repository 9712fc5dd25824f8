"""Run commands on one connection to Redis, and Lua scripts: each is one step that nothing
interrupts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import NoScriptError, ResponseError

from om_proxy.storage.encryption.keyring import Keyring
from om_proxy.storage.redis.keys import KeyNames

COMMON_PART = "rows"  # every script begins with it


class Script(NamedTuple):
    """The text of a script, and the name by which the server knows it."""

    text: str
    sha: str


@cache
def read_script(name: str) -> Script:
    folder = files("om_proxy.storage.redis") / "lua"
    text = "\n".join((folder / f"{part}.lua").read_text("utf-8") for part in (COMMON_PART, name))
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


Argument = str | bytes | int | float
Command = Sequence[Argument]
# of one round trip
MAX_COMMANDS = 500


class Session:
    """One connection, for one piece of work, with the names of the store's keys and its data keys."""

    def __init__(self, connection: AbstractConnection, keys: KeyNames, keyring: Keyring) -> None:
        self._connection = connection
        self.keys = keys
        self.keyring = keyring

    async def call(self, *command: Argument) -> Any:
        """Run one command and return its reply: integers, bytes, None, and lists of them."""
        await self._connection.send_command(*map(_encode_argument, command))
        return await self._connection.read_response()

    async def call_many(self, commands: Sequence[Command]) -> list[Any]:
        """Run commands, many to a round trip. Others may run in between."""
        replies: list[Any] = []
        for first in range(0, len(commands), MAX_COMMANDS):
            replies += await self._call_some(commands[first : first + MAX_COMMANDS])
        return replies

    async def _call_some(self, commands: Sequence[Command]) -> list[Any]:
        encoded = [tuple(map(_encode_argument, command)) for command in commands]
        await self._connection.send_packed_command(self._connection.pack_commands(encoded))
        replies: list[Any] = []
        error: ResponseError | None = None
        for _ in commands:  # all are read, so that none is left for the next work
            try:
                replies.append(await self._connection.read_response())
            except ResponseError as exc:
                error = exc
        if error is not None:
            raise error
        return replies

    async def run(self, name: str, *arguments: Argument) -> Any:
        """Run a script. A server that does not know it, a new one, is sent its text."""
        script = read_script(name)
        try:
            return await self.call("EVALSHA", script.sha, 0, self.keys.prefix, *arguments)
        except NoScriptError:
            return await self.call("EVAL", script.text, 0, self.keys.prefix, *arguments)


def _encode_argument(argument: Argument) -> str | bytes:
    """Encode what our own texts and numbers are. A name from outside may hold a lone surrogate."""
    if isinstance(argument, bytes):
        return argument
    text = repr(argument) if isinstance(argument, float) else str(argument)
    return text.encode("utf-8", "surrogatepass")


def pair_fields(reply: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the fields of a hash with their values, as HGETALL and HSCAN reply."""
    return zip(reply[::2], reply[1::2], strict=True)
