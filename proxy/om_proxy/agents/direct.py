"""Ask a model over HTTP, on any server that speaks OpenAI's chat completions."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import httpx
import orjson

from om_proxy.agents.completion import read_answer
from om_proxy.agents.dialect import Dialect
from om_proxy.agents.failures import build_model_error, read_error_text
from om_proxy.agents.llm import Answer, Prompt, Target
from om_proxy.apis.compression import DecompressedTooLarge, create_decoder
from om_proxy.apis.refusals import MAX_ERROR_TEXT_CHARS
from om_proxy.bounded_cache import BoundedCache
from om_proxy.errors import BrokenAnswer, ModelBusy, ModelError

CONNECT_TIMEOUT_S = 5.0
# an unstreamed answer of 100 000 tokens says nothing until it is complete
READ_TIMEOUT_S = 600.0
MAX_ANSWER_BYTES = 16 << 20  # 100 000 tokens are half a megabyte
# of one request: limit renamed, limit or temperature left out, images left out
MAX_ADAPTATIONS = 3
MAX_LEARNT_DIALECTS = 256


class Direct:
    """The way to models on servers that speak OpenAI's chat completions.

    `transport` leads to the memory models' servers; its owner closes it. `clock` returns unix
    seconds, for Retry-After dates."""

    def __init__(
        self, transport: httpx.AsyncBaseTransport, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._transport = transport
        self._clock = clock
        self._dialects: BoundedCache[tuple[str, str], Dialect] = BoundedCache(
            max_items=MAX_LEARNT_DIALECTS
        )

    async def complete(self, target: Target, prompt: Prompt) -> Answer:
        """Ask for one answer. If a parameter is refused, adapt and remember the dialect (dialect.py)
        and ask again. Such a call does not count as a retry."""
        if target.base_url is None:
            raise ModelError(f"no address for {target.model}", "set memory.api_base")
        dialect_key = (target.base_url, target.model)
        dialect = self._dialects.get(dialect_key) or Dialect.of(target.base_url)
        for _ in range(MAX_ADAPTATIONS + 1):
            status, headers, body = await self._post(
                target, dialect.write_body(target.model, prompt)
            )
            if status == 200:
                return read_answer(body, target.model, headers, self._clock())
            code, message = _read_error(body)
            next_dialect = (
                dialect.adapted_to(prompt, f"{code} {message}") if _is_refusal(status) else None
            )
            if next_dialect is None:
                break
            dialect = next_dialect
            # but not that images are refused: it may have been this one image
            self._dialects.put(dialect_key, replace(dialect, images=True))
        raise build_model_error(
            status, code=code, message=message, headers=headers, now=self._clock()
        )

    async def _post(
        self, target: Target, body: Mapping[str, Any]
    ) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers (names in lower case) and the whole body."""
        try:
            request = httpx.Request(
                "POST",
                _build_completions_url(target.base_url or ""),
                headers=_build_headers(target),
                content=orjson.dumps(body),
                extensions={
                    "timeout": {
                        "connect": CONNECT_TIMEOUT_S,
                        "read": READ_TIMEOUT_S,
                        "write": READ_TIMEOUT_S,
                        "pool": CONNECT_TIMEOUT_S,
                    }
                },
            )
        except (httpx.InvalidURL, ValueError, TypeError) as exc:
            raise ModelError(
                f"the request could not be written ({type(exc).__name__})",
                "check memory.api_base and key",
            ) from exc
        try:
            response = await self._transport.handle_async_request(request)
            try:
                return response.status_code, dict(response.headers), await _read_body(response)
            finally:
                await response.aclose()
        except (httpx.HTTPError, httpx.StreamError) as exc:
            raise ModelBusy(
                f"the memory model's server could not be reached or read ({type(exc).__name__})"
            ) from exc


def _build_headers(target: Target) -> list[tuple[str, str]]:
    key = [("authorization", f"Bearer {target.api_key}")] if target.api_key else []
    fixed = [
        ("content-type", "application/json"),
        ("accept", "application/json"),
        ("accept-encoding", "identity"),
    ]
    return [*target.headers, *key, *fixed]


def _build_completions_url(base_url: str) -> httpx.URL:
    """Append the endpoint's path to the base. A query in the base (Azure's api-version) stays."""
    base = httpx.URL(base_url)
    return base.copy_with(path=base.path.rstrip("/") + "/chat/completions")


async def _read_body(response: httpx.Response) -> bytes:
    """Read the body. If the connection ends within a 200 answer, the answer is cut off, and the
    server is not busy."""
    try:
        return await _read_decompressed(response)
    except (httpx.HTTPError, httpx.StreamError) as exc:
        if response.status_code != 200:
            raise
        raise BrokenAnswer(f"the memory model's answer broke off ({type(exc).__name__})") from exc


async def _read_decompressed(response: httpx.Response) -> bytes:
    """Read the body, and decompress it: some servers compress unasked. httpx decompresses without a
    bound, and a compressed megabyte may hold many."""
    decode = create_decoder(response.headers.get("content-encoding", "").encode(), MAX_ANSWER_BYTES)
    if decode is None:
        raise ModelBusy("the memory model's server answered in a compression it was not asked for")
    parts: list[bytes] = []
    size = 0
    try:
        async for part in response.aiter_raw():
            parts.append(decode(part))
            size += len(parts[-1])
            if size > MAX_ANSWER_BYTES:
                raise DecompressedTooLarge
    except DecompressedTooLarge as exc:
        raise ModelError(
            f"the memory model's answer is larger than {MAX_ANSWER_BYTES} bytes"
        ) from exc
    except zlib.error as exc:
        raise ModelBusy(
            "the memory model's server answered in a compression that cannot be read"
        ) from exc
    return b"".join(parts)


def _is_refusal(status: int) -> bool:
    """Return whether the request itself may be at fault. Some local servers answer 500 or 501 to an
    image."""
    return status in (400, 404, 415, 422, 500, 501)


def _read_error(body: bytes) -> tuple[str | None, str]:
    """Read code and message of an error, in any form."""
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None, body[:MAX_ERROR_TEXT_CHARS].decode("utf-8", "replace")
    return read_error_text(parsed.get("error", parsed) if isinstance(parsed, dict) else parsed)
