"""What can be reached from an object: how many things its containers hold, which must not grow with
the number of threads, and bytes."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

GROWING = (dict, list, set, deque, bytearray)
PASSED = (*GROWING, tuple, frozenset)  # that say nothing of where a container is held
WHOLE = (
    type,
    ModuleType,
    CodeType,
    asyncio.AbstractEventLoop,
)  # they lead to the whole interpreter
CACHES = type(lru_cache(int))  # `unbounded_caches` looks at them
CLOSED = (
    *WHOLE,
    CACHES,
    sqlite3.Connection,
)  # which lists its cursors, the dead among them for up to 200 new ones


@dataclass(frozen=True, slots=True)
class Held:
    """A container: by which objects it was reached, and what it holds."""

    container: Any  # kept, so that no other gets its id
    path: str
    size: int


Sizes = Mapping[int, Held]  # by id


def measure_sizes(root: object) -> Sizes:
    """Measure every container below `root`."""
    return {
        id(here): Held(here, f"{path}: {type(here).__name__}", len(here))
        for path, here in _reached(root)
        if isinstance(here, GROWING)
    }


def count_bytes(root: object) -> int:
    """Count the bytes of `root` and of everything below it, each once."""
    return sum(sys.getsizeof(here) for _, here in _reached(root))


def _reached(root: object) -> Iterator[tuple[str, Any]]:
    """Walk everything below `root`, with the objects that hold it."""
    seen, waiting = {id(root)}, [("", root)]
    while waiting:
        path, here = waiting.pop()
        yield path, here
        named = path if isinstance(here, PASSED) else f"{path}/{type(here).__qualname__}"
        for below in _below(here):
            if id(below) not in seen and not isinstance(below, CLOSED):
                seen.add(id(below))
                waiting.append((named, below))


def _below(here: object) -> Iterator[Any]:
    if isinstance(here, FunctionType | BuiltinFunctionType):  # not its globals
        yield from (*(getattr(here, "__closure__", None) or ()), getattr(here, "__self__", None))
    else:
        yield from gc.get_referents(here)


def list_grown(before: Sizes, after: Sizes, most: int) -> list[str]:
    """List the containers that hold over `most` more things than before."""
    were = {at: held.size for at, held in before.items()}
    return sorted(
        f"{h.path} {were.get(at, 0)} → {h.size}"
        for at, h in after.items()
        if h.size - were.get(at, 0) > most
    )


def unbounded_caches(package: str, most: int) -> list[str]:
    """List the package's functions that cache more than `most` things without a bound."""
    return [
        f"{name}.{attribute}"
        for name, module in list(sys.modules.items())
        if name.startswith(f"{package}.")
        for attribute, value in list(vars(module).items())
        if (info := getattr(value, "cache_info", None))
        and info().maxsize is None
        and info().currsize > most
    ]
