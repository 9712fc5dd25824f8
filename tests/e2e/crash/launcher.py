"""om-proxy as it is, with traps: a process that SIGKILLs itself at the passage a file names.

    python launcher.py TRAP serve --config om-proxy.yaml

TRAP holds `<count> <passage>`: death comes at the count-th time the program passes there. Without
the file nothing happens. The passages, and the functions they lie in:

    upstream asked, upstream answered       before the chat request goes out; when the head of its answer is there
    reply piece, reply ended                after a piece of the reply, or its last bytes, went to the client
    observer|reflector asked|answered       before the memory model is asked; when it has answered and nothing is written
    <kind> due|begun|written|committed      around and in the transaction that writes a change (see `kinds`)
    migration begun|statement|written       in the transaction that makes the schema
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import Any

from om_proxy import cli
from om_proxy.agents.observer import Observer
from om_proxy.agents.reflector import Reflector
from om_proxy.edge.relay import _ReplyRelay
from om_proxy.memory.model import Memory
from om_proxy.storage.sqlite import schema
from om_proxy.storage.sqlite.commit import Commit
from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.wire.upstream import Upstream

Names = Callable[..., Iterable[str]]  # of the passages that a call is, given its arguments


class Trap:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._set = ""
        self._left = 0

    def passing(self, names: Iterable[str]) -> None:
        try:
            found = self._file.read_text()
        except FileNotFoundError:
            return
        count, _, passage = found.partition(" ")
        if found != self._set:
            self._set, self._left = found, int(count)
        if passage in names:
            self._left -= 1
            if not self._left:
                os.kill(os.getpid(), signal.SIGKILL)


def kinds(before: Memory, after: Memory) -> list[str]:
    """What a commit changes; a rollback is a turn as well."""
    told = {
        "turn": after.turns > before.turns,
        "chunk": len(after.chunks) > len(before.chunks),
        "activation": after.coverage > before.coverage,
        "reflection": after.log.reflection is not None
        and after.log.reflection != before.log.reflection,
        "swap": after.log.generation != before.log.generation and after.coverage == before.coverage,
        "rollback": after.coverage < before.coverage,
    }
    return [kind for kind, so in told.items() if so]


def trap(file: Path) -> None:
    """Lay the trap into every passage."""
    passing = Trap(file).passing

    def around(owner: Any, name: str, before: Names | None, after: Names | None) -> None:
        real: Callable[..., Awaitable[Any]] = getattr(owner, name)

        @wraps(real)
        async def wrapped(*arguments: Any, **named: Any) -> Any:
            if before:
                passing(before(*arguments))
            result = await real(*arguments, **named)
            if after:
                passing(after(*arguments))
            return result

        setattr(owner, name, wrapped)

    def behind(owner: Any, name: str, after: Names, before: Names | None = None) -> None:
        """The same of a function that runs in the connection's thread."""
        real: Callable[..., Any] = getattr(owner, name)

        @wraps(real)
        def wrapped(*arguments: Any) -> Any:
            if before:
                passing(before(*arguments))
            result = real(*arguments)
            passing(after(*arguments))
            return result

        setattr(owner, name, wrapped)

    def named(*names: str) -> Names:
        return lambda *_: names

    def of_commit(stage: str) -> Names:
        return lambda _, before, after, *rest: [f"{kind} {stage}" for kind in kinds(before, after)]

    def of_rows(stage: str) -> Names:
        return lambda commit, *_: [f"{kind} {stage}" for kind in commit.kinds]

    around(Upstream, "send", named("upstream asked"), named("upstream answered"))
    around(
        _ReplyRelay, "_send_chunk", None, lambda copying, chunk: [_piece(copying)] if chunk else []
    )
    around(Observer, "observe", named("observer asked"), named("observer answered"))
    around(Reflector, "reflect", named("reflector asked"), named("reflector answered"))
    around(SqliteStore, "commit", of_commit("due"), of_commit("committed"))
    behind(Commit, "_write_thread", of_rows("begun"))
    behind(Commit, "write", of_rows("written"))
    behind(schema, "_apply_step", named("migration written"), before=named("migration begun"))
    _kinds_kept()
    _statements_trapped(passing)


def _piece(copying: Any) -> str:
    """The last bytes are those that were held back for the commit."""
    return "reply ended" if copying._held_bytes else "reply piece"


def _kinds_kept() -> None:
    made = Commit.__init__

    def keeping(self: Any, before: Memory, after: Memory, *rest: Any, **named: Any) -> None:
        made(self, before, after, *rest, **named)
        self.kinds = kinds(before, after)

    Commit.__init__ = keeping  # type: ignore[method-assign] - the trap


def _statements_trapped(passing: Callable[[Iterable[str]], None]) -> None:
    real = schema.split_statements

    def trapped(script: str) -> Iterable[str]:
        for statement in real(script):
            yield statement  # executed by who asked, before it asks for the next
            passing(["migration statement"])

    schema.split_statements = trapped  # type: ignore[assignment] - the trap


if __name__ == "__main__":
    trap(Path(sys.argv[1]))
    sys.exit(cli.main(sys.argv[2:]))
