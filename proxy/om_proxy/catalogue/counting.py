"""Counts messages off the wire, in the model's own tokens."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
import structlog

from om_proxy.catalogue import encodings
from om_proxy.memory import tokens
from om_proxy.memory.model import MESSAGE_FRAMING_TOKENS

log = structlog.get_logger("tokens")

_message = msgspec.json.Decoder(dict[str, Any])

LARGE = 1 << 20  # bytes that take 0.2 s to count; what is less waits for none of them
REMEMBERED = 256  # instructions whose count is kept: they come again with every request of an application


class Catalogue:
    """Counting as a turn needs it: ranks are loaded at the first use, and much text is counted off the event loop."""

    def __init__(self) -> None:
        self._encode = encodings.encoder("")
        self._slots = asyncio.Semaphore(os.cpu_count() or 1)
        self._instructions: OrderedDict[tuple[str, bytes], int] = OrderedDict()

    async def warm_up(self) -> None:
        """Load the ranks that most models are counted with. Without it the first request with memory waits up to 1.5 s for them."""
        try:
            await encodings.load()
        except Exception as exc:  # the first count tries again, and its request says what failed
            log.warning("tokens.unloaded", error=type(exc).__name__)

    def tokens(self, text: str) -> int:
        """Of a text of ours, whoever will read it. Blocks while the ranks load: the first call is best made in a thread."""
        return self._encode(text)

    def encoding(self, model: str) -> str:
        """What counts for this model: the name to keep beside a count."""
        return encodings.encoder_name(model)

    async def count(self, raws: Mapping[int, bytes], model: str) -> dict[int, int]:
        """Payload tokens of each message, by the key it was given under."""
        if not raws:
            return {}
        await encodings.load(model)
        size = sum(map(len, raws.values()))
        if size < encodings.OFF_LOOP:
            return _counted(raws, encodings.encoder(model), model)
        if size < LARGE:
            return await asyncio.to_thread(_counted, raws, encodings.encoder(model), model)
        return await self._counted_in_turn(raws, model)

    async def _counted_in_turn(self, raws: Mapping[int, bytes], model: str) -> dict[int, int]:
        """In a thread, as many together as there are cores: others wait here, where one that is given up holds nothing any more."""
        await self._slots.acquire()
        work = partial(_counted, raws, encodings.encoder(model), model)
        counting = asyncio.get_running_loop().run_in_executor(None, work)
        counting.add_done_callback(self._end_slot)
        return await asyncio.shield(counting)  # given up, its thread counts on: the slot is free when that ends

    def _end_slot(self, counting: asyncio.Future[dict[int, int]]) -> None:
        self._slots.release()
        if not counting.cancelled():
            counting.exception()  # whoever still waits gets it

    async def count_instructions(self, raws: Sequence[bytes], model: str) -> int:
        """Tokens the instructions cost in a prompt."""
        if not raws:
            return 0
        key = (model, hashlib.sha256(b"\0".join(raws)).digest())
        if key not in self._instructions:
            counted = await self.count(dict(enumerate(raws)), model)
            self._instructions[key] = sum(counted.values()) + MESSAGE_FRAMING_TOKENS * len(raws)
        self._instructions.move_to_end(key)
        while len(self._instructions) > REMEMBERED:
            self._instructions.popitem(last=False)
        return self._instructions[key]


def _counted(raws: Mapping[int, bytes], encode: Callable[[str], int], model: str) -> dict[int, int]:
    return {at: _tokens(raw, encode, model) for at, raw in raws.items()}


def _tokens(raw: bytes, encode: Callable[[str], int], model: str) -> int:
    """Of a message's payload; one that cannot be read counts as what it is, text."""
    with suppress(
        ValueError, RecursionError
    ):  # nested brackets: a few thousand to read them, one thousand to write them
        return tokens.count(_message.decode(raw), encode, model)
    return encode(raw.decode("utf-8", "replace"))
