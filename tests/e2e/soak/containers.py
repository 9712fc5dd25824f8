"""How many things every container holds that can be reached from an object: what must not grow with the number of threads."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

GROWING = (dict, list, set, deque, bytearray)
PASSED = (*GROWING, tuple, frozenset)  # that say nothing of where a container is held
CLOSED = (type, ModuleType, CodeType, asyncio.AbstractEventLoop)  # they lead to the whole interpreter


@dataclass(frozen=True, slots=True)
class Held:
    """A container: by which objects it was reached, and what it holds."""

    container: Any  # kept, so that no other gets its id
    path: str
    size: int


Sizes = Mapping[int, Held]  # by id


def sizes(root: object) -> Sizes:
    """Of every container below `root`."""
    found: dict[int, Held] = {}
    seen, waiting = {id(root)}, [("", root)]
    while waiting:
        path, here = waiting.pop()
        if isinstance(here, GROWING):
            found[id(here)] = Held(here, f"{path}: {type(here).__name__}", len(here))
        named = path if isinstance(here, PASSED) else f"{path}/{type(here).__qualname__}"
        for below in _below(here):
            if id(below) not in seen and not isinstance(below, CLOSED):
                seen.add(id(below))
                waiting.append((named, below))
    return found


def _below(here: object) -> Iterator[Any]:
    if isinstance(here, FunctionType | BuiltinFunctionType):  # not its globals
        yield from (*(getattr(here, "__closure__", None) or ()), getattr(here, "__self__", None))
    else:
        yield from gc.get_referents(here)


def grown(before: Sizes, after: Sizes, most: int) -> list[str]:
    """The containers that hold more than `most` things more than before."""
    were = {at: held.size for at, held in before.items()}
    return sorted(f"{h.path} {were.get(at, 0)} → {h.size}" for at, h in after.items() if h.size - were.get(at, 0) > most)


def unbounded_caches(package: str, most: int) -> list[str]:
    """Functions of a package's modules that remember more than `most` things, and without a bound."""
    return [
        f"{name}.{attribute}"
        for name, module in list(sys.modules.items())
        if name.startswith(f"{package}.")
        for attribute, value in list(vars(module).items())
        if (info := getattr(value, "cache_info", None)) and info().maxsize is None and info().currsize > most
    ]
