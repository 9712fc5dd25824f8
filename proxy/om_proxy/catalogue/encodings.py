"""Token encodings of models, from ranks that are on this machine already: nothing is ever downloaded.

Ranks are looked for in the user's own `TIKTOKEN_CACHE_DIR`, then among litellm's files. Without any, tokens are estimated
from the text's length, and one line in the log says so.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from om_proxy.catalogue.packaged import litellm_file
from om_proxy.memory.tokens import estimate

if TYPE_CHECKING:
    from tiktoken import Encoding

log = structlog.get_logger("tokens")

DEFAULT = "o200k_base"  # of models nobody knows
ESTIMATE = "estimate"  # what is stored beside a count that was estimated
# characters from which counting leaves the event loop (docs/spec/behaviour.md#count); about 2 ms
OFF_LOOP = 50_000
PIECE = 100_000  # characters encoded at once: tiktoken 0.14 panics (a BaseException) on a run of 1 000 000 spaces

# sha256 of each rank file as tiktoken expects it. Checked here, because tiktoken deletes a file that fails it, and downloads.
_RANKS = {
    "o200k_base": "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    "cl100k_base": "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
}
_ADDRESS = "https://openaipublic.blob.core.windows.net/encodings/{}.tiktoken"  # its sha1 is the file's name in a cache
_loading = threading.Lock()


def encoder(model: str) -> Callable[[str], int]:
    """Counts the tokens of a text for this model. Cheap to get; its first call loads the ranks (0.3 s, 45 MB), so make that
    one in a thread (`load`). Special tokens in the text count as text."""

    def tokens(text: str) -> int:
        encoding = _encoding(_encoding_name(model))  # not before: a process without memory needs no tiktoken
        if encoding is None:
            return estimate(text)
        return sum(len(encoding.encode_ordinary(piece)) for piece in _pieces(text))

    return tokens


def encoder_name(model: str) -> str:
    """What counted: stored beside a count, so that another tokenizer recounts. Loads nothing."""
    name = _encoding_name(model)
    return name if _folder(name) else ESTIMATE


async def load(model: str = "") -> None:
    """Have the ranks of the model's encoding in memory, without holding up the event loop."""
    if not loaded(model):
        await asyncio.to_thread(_load, model)


def loaded(model: str) -> bool:
    # with nothing known, naming an encoding imports tiktoken: up to 0.5 s, and not on the event loop
    return bool(_known) and _encoding_name(model) in _known


def _load(model: str) -> None:
    _encoding(_encoding_name(model))


async def count(model: str, text: str) -> int:
    """Tokens of a text; long ones are counted off the event loop."""
    await load(model)
    if len(text) < OFF_LOOP:
        return encoder(model)(text)
    return await asyncio.to_thread(encoder(model), text)


_known: dict[str, Encoding | None] = {}  # by name; None: no ranks on this machine


def _encoding(name: str) -> Encoding | None:
    if name not in _known:
        with _loading:
            if name not in _known:
                _known[name] = _read(name)
    return _known[name]


def _read(name: str) -> Encoding | None:
    folder = _folder(name)
    if folder is None:
        log.warning(
            "tokens.estimated", encoding=name, reason="no ranks found; set TIKTOKEN_CACHE_DIR to a folder that has them"
        )
        return None
    import tiktoken  # noqa: PLC0415 - 30 ms nobody needs before the first count

    before = os.environ.get("TIKTOKEN_CACHE_DIR")
    os.environ["TIKTOKEN_CACHE_DIR"] = str(folder)  # tiktoken takes the folder from nowhere else
    try:
        return _lighter(tiktoken.get_encoding(name))
    finally:
        if before is None:
            del os.environ["TIKTOKEN_CACHE_DIR"]
        else:
            os.environ["TIKTOKEN_CACHE_DIR"] = before


def _lighter(encoding: Encoding) -> Encoding:
    """Without the ranks as Python objects, 27 MB: what encodes has its own copy of them, and they are kept for pickling only."""
    encoding._mergeable_ranks = {}
    _give_back()
    return encoding


def _give_back() -> None:
    """Give freed memory back to the system. glibc does so by itself, unless told to keep it (see the Dockerfile): 13 MB then."""
    import ctypes  # noqa: PLC0415 - once in a process's life

    trim = getattr(ctypes.CDLL(None) if os.name == "posix" else None, "malloc_trim", None)
    if trim:  # only glibc has it
        trim(0)


def _pieces(text: str) -> Iterator[str]:
    return (text[start : start + PIECE] for start in range(0, len(text), PIECE))


@lru_cache(maxsize=1024)  # models are named by whoever calls
def _encoding_name(model: str) -> str:
    """By the model's own name, whatever providers stand before it."""
    from tiktoken.model import encoding_name_for_model  # noqa: PLC0415 - see _read

    try:
        name = encoding_name_for_model(model.rpartition("/")[2])
    except KeyError:
        return DEFAULT
    return name if name in _RANKS else DEFAULT  # o200k_harmony adds special tokens only; the others are no chat models


@cache
def _folder(name: str) -> Path | None:
    """The first folder with this encoding's ranks, whole."""
    file = hashlib.sha1(_ADDRESS.format(name).encode(), usedforsecurity=False).hexdigest()
    own = os.environ.get("TIKTOKEN_CACHE_DIR")
    for folder in (Path(own) if own else None, litellm_file("litellm_core_utils/tokenizers")):
        if folder and _whole(folder / file, _RANKS[name]):
            return folder
    return None


def _whole(path: Path, digest: str) -> bool:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == digest
    except OSError:
        return False
