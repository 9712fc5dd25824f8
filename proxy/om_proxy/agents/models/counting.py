"""Count raw messages in the model's own tokens."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import structlog

from om_proxy.agents.models import encodings
from om_proxy.common.bounded_cache import BoundedCache
from om_proxy.memory import tokens
from om_proxy.memory.model import MESSAGE_FRAMING_TOKENS
from om_proxy.wire.apis.registry import view_message

logger = structlog.get_logger("tokens")

MIN_SLOT_BYTES = 1 << 20  # which take 0.2 s to count; a smaller count waits for no slot
# the counts are cached because every request of an application has the same instructions
MAX_CACHED_INSTRUCTIONS = 256


class TokenCounter:
    """The token counts for turns. The ranks load at the first use, and much text is counted in a
    thread."""

    def __init__(self) -> None:
        self._encode = encodings.create_encoder("")
        self._slots = asyncio.Semaphore(os.cpu_count() or 1)
        self._instructions: BoundedCache[tuple[str, int], int] = BoundedCache(
            max_items=MAX_CACHED_INSTRUCTIONS
        )

    async def warm_up(self) -> None:
        """Load the ranks that most models are counted with. Otherwise the first request with memory
        waits up to 1.5 s for them."""
        try:
            await encodings.load_ranks()
        except Exception as exc:  # the first count tries again, and its request reports the failure
            logger.warning("tokens.unloaded", error=type(exc).__name__)

    def tokens(self, text: str) -> int:
        """Count the tokens of one of the proxy's own texts, for any model. The first call blocks
        while the ranks load, so make it in a thread."""
        return self._encode(text)

    def encoding(self, model: str) -> str:
        """Return the name of the model's encoding, to store beside a count."""
        return encodings.find_encoding_name(model)

    async def count(self, raws: Mapping[int, bytes], model: str, api: str) -> dict[int, int]:
        """Return the payload tokens of each message by the message's key in `raws`. `api`: that they
        came by."""
        if not raws:
            return {}
        await encodings.load_ranks(model)
        size = sum(map(len, raws.values()))
        if size < encodings.OFF_LOOP_CHARS:
            return _count_messages(raws, encodings.create_encoder(model), model, api)
        work = partial(_count_messages, raws, encodings.create_encoder(model), model, api)
        if size < MIN_SLOT_BYTES:
            return await asyncio.to_thread(work)
        return await self._count_in_slot(work)

    async def _count_in_slot(self, work: Callable[[], dict[int, int]]) -> dict[int, int]:
        """Count in a thread, at most one for each core. All others wait here, where a cancelled
        count holds nothing."""
        await self._slots.acquire()
        counting = asyncio.get_running_loop().run_in_executor(None, work)
        counting.add_done_callback(self._end_slot)
        # if the caller is cancelled, the thread continues: its slot is free when the thread ends
        return await asyncio.shield(counting)

    def _end_slot(self, counting: asyncio.Future[dict[int, int]]) -> None:
        self._slots.release()
        if not counting.cancelled():
            counting.exception()  # a caller that still waits gets it

    async def count_instructions(self, raws: Sequence[bytes], model: str, api: str) -> int:
        """Return the tokens that the instructions cost in a prompt."""
        if not raws:
            return 0
        key = (model, hash(tuple(raws)))
        total = self._instructions.get(key)
        if total is None:
            payload_tokens = await self.count(dict(enumerate(raws)), model, api)
            total = sum(payload_tokens.values()) + MESSAGE_FRAMING_TOKENS * len(raws)
            self._instructions.put(key, total)
        return total


def _count_messages(
    raws: Mapping[int, bytes], encode: Callable[[str], int], model: str, api: str
) -> dict[int, int]:
    return {key: count_message(raw, encode, model, api) for key, raw in raws.items()}


def count_message(raw: bytes, encode: Callable[[str], int], model: str, api: str) -> int:
    """Count the tokens of a message's payload. An unreadable message counts as text."""
    with suppress(ValueError, RecursionError):  # a thousand nested brackets cannot be written again
        if (message := view_message(raw, api)) is not None:
            return tokens.count(message, encode, model)
    return encode(raw.decode("utf-8", "replace"))
