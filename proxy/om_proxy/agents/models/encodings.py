"""Count texts and messages in a model's own tokens, by ranks on this machine. Nothing is ever
downloaded.

The ranks come from the user's own `TIKTOKEN_CACHE_DIR`, else from litellm's files. Without ranks,
tokens are estimated from the length of the text, and one line in the log says so.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from om_proxy.agents.models.price_list import find_litellm_file
from om_proxy.common.bounded_cache import BoundedCache
from om_proxy.memory import tokens
from om_proxy.memory.model import MESSAGE_FRAMING_TOKENS
from om_proxy.memory.tokens import estimate_tokens
from om_proxy.wire.apis.registry import view_message

if TYPE_CHECKING:
    from tiktoken import Encoding

logger = structlog.get_logger("tokens")

DEFAULT_ENCODING = "o200k_base"  # for unknown models
ESTIMATE_NAME = "estimate"  # stored beside an estimated count
# characters from which counting leaves the event loop (docs/contributing/behaviour.md#count); about
# 2 ms
OFF_LOOP_CHARS = 50_000
# encoded at once: tiktoken 0.14 panics (a BaseException) on a run of 1 000 000 spaces
MAX_ENCODED_CHARS = 100_000
MIN_SLOT_BYTES = 1 << 20  # which take 0.2 s to count; a smaller count waits for no slot
# the counts are cached because every request of an application has the same instructions
MAX_CACHED_INSTRUCTIONS = 256

# the sha256 that tiktoken expects of each rank file; checked here too, because tiktoken deletes a
# file with another one, and downloads the file again
_RANK_FILE_SHA256 = {
    "o200k_base": "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    "cl100k_base": "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
}
# the sha1 of this URL is the file's name in a cache
_RANK_FILE_URL = "https://openaipublic.blob.core.windows.net/encodings/{}.tiktoken"
_loading_lock = threading.Lock()


def create_encoder(model: str) -> Callable[[str], int]:
    """Create the function that counts the tokens of a text for this model. Special tokens count as
    text. The function's first call loads the ranks (0.3 s, 45 MB), so make that call in a thread
    (`load_ranks`)."""

    def tokens(text: str) -> int:
        # loaded here and not before, because a process without memory needs no tiktoken
        encoding = _load_encoding(_choose_encoding(model))
        if encoding is None:
            return estimate_tokens(text)
        return sum(len(encoding.encode_ordinary(piece)) for piece in _split_text(text))

    return tokens


def find_encoding_name(model: str) -> str:
    """Return the name that is stored beside a count. With another name, messages are counted again.
    Nothing is loaded."""
    name = _choose_encoding(model)
    return name if _find_ranks_folder(name) else ESTIMATE_NAME


async def load_ranks(model: str = "") -> None:
    """Load the ranks of the model's encoding in a thread."""
    if not is_loaded(model):
        await asyncio.to_thread(_load_ranks_now, model)


def is_loaded(model: str) -> bool:
    # while no encoding is loaded, choosing one imports tiktoken, which takes up to 0.5 s: too long
    # for the event loop
    return bool(_encodings) and _choose_encoding(model) in _encodings


def _load_ranks_now(model: str) -> None:
    _load_encoding(_choose_encoding(model))


async def count_tokens(model: str, text: str) -> int:
    """Count the tokens of a text; a long text is counted in a thread."""
    await load_ranks(model)
    if len(text) < OFF_LOOP_CHARS:
        return create_encoder(model)(text)
    return await asyncio.to_thread(create_encoder(model), text)


_encodings: dict[str, Encoding | None] = {}  # by name; None: no ranks on this machine


def _load_encoding(name: str) -> Encoding | None:
    if name not in _encodings:
        with _loading_lock:
            if name not in _encodings:
                _encodings[name] = _read_encoding(name)
    return _encodings[name]


def _read_encoding(name: str) -> Encoding | None:
    folder = _find_ranks_folder(name)
    if folder is None:
        logger.warning(
            "tokens.estimated",
            encoding=name,
            reason="no ranks found; set TIKTOKEN_CACHE_DIR to a folder that has them",
        )
        return None
    import tiktoken  # noqa: PLC0415 - 30 ms that only the first count needs

    own_folder = os.environ.get("TIKTOKEN_CACHE_DIR")
    os.environ["TIKTOKEN_CACHE_DIR"] = str(folder)  # tiktoken takes the folder only from there
    try:
        return _drop_rank_objects(tiktoken.get_encoding(name))
    finally:
        if own_folder is None:
            del os.environ["TIKTOKEN_CACHE_DIR"]
        else:
            os.environ["TIKTOKEN_CACHE_DIR"] = own_folder


def _drop_rank_objects(encoding: Encoding) -> Encoding:
    """Delete the ranks as Python objects, which take 27 MB: the encoder has its own copy, and the
    objects are only needed for pickling."""
    encoding._mergeable_ranks = {}
    _trim_heap()
    return encoding


def _trim_heap() -> None:
    """Return freed memory, 13 MB, to the system. glibc does this by itself, unless it is set to
    keep memory (see the Dockerfile)."""
    import ctypes  # noqa: PLC0415 - once in a process's life

    trim = getattr(ctypes.CDLL(None) if os.name == "posix" else None, "malloc_trim", None)
    if trim:  # only glibc has it
        trim(0)


def _split_text(text: str) -> Iterator[str]:
    return (
        text[start : start + MAX_ENCODED_CHARS] for start in range(0, len(text), MAX_ENCODED_CHARS)
    )


@lru_cache(maxsize=1024)  # bounded, because clients name the models
def _choose_encoding(model: str) -> str:
    """Choose an encoding by the model's own name, without the prefixes of providers."""
    from tiktoken.model import encoding_name_for_model  # noqa: PLC0415 - see _read_encoding

    try:
        name = encoding_name_for_model(model.rpartition("/")[2])
    except KeyError:
        return DEFAULT_ENCODING
    # o200k_harmony only adds special tokens; the other encodings are not of chat models
    return name if name in _RANK_FILE_SHA256 else DEFAULT_ENCODING


@cache
def _find_ranks_folder(name: str) -> Path | None:
    """Find the first folder with the complete ranks of this encoding."""
    url = _RANK_FILE_URL.format(name)
    file_name = hashlib.sha1(url.encode(), usedforsecurity=False).hexdigest()
    own_folder = os.environ.get("TIKTOKEN_CACHE_DIR")
    litellm_folder = find_litellm_file("litellm_core_utils/tokenizers")
    for folder in (Path(own_folder) if own_folder else None, litellm_folder):
        if folder and _has_digest(folder / file_name, _RANK_FILE_SHA256[name]):
            return folder
    return None


def _has_digest(path: Path, digest: str) -> bool:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == digest
    except OSError:
        return False


# ── messages ──────────────────────────────────────────────────────────────────────────────────────


class TokenCounter:
    """The token counts for turns. The ranks load at the first use, and much text is counted in a
    thread."""

    def __init__(self) -> None:
        self._encode = create_encoder("")
        self._slots = asyncio.Semaphore(os.cpu_count() or 1)
        self._instructions: BoundedCache[tuple[str, int], int] = BoundedCache(
            max_items=MAX_CACHED_INSTRUCTIONS
        )

    async def warm_up(self) -> None:
        """Load the ranks that most models are counted with. Otherwise the first request with memory
        waits up to 1.5 s for them."""
        try:
            await load_ranks()
        except Exception as exc:  # the first count tries again, and its request reports the failure
            logger.warning("tokens.unloaded", error=type(exc).__name__)

    def tokens(self, text: str) -> int:
        """Count the tokens of one of the proxy's own texts, for any model. The first call blocks
        while the ranks load, so make it in a thread."""
        return self._encode(text)

    def encoding(self, model: str) -> str:
        """Return the name of the model's encoding, to store beside a count."""
        return find_encoding_name(model)

    async def count(self, raws: Mapping[int, bytes], model: str, api: str) -> dict[int, int]:
        """Return the payload tokens of each message by the message's key in `raws`. `api`: that they
        came by."""
        if not raws:
            return {}
        await load_ranks(model)
        size = sum(map(len, raws.values()))
        if size < OFF_LOOP_CHARS:
            return _count_messages(raws, create_encoder(model), model, api)
        work = partial(_count_messages, raws, create_encoder(model), model, api)
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
