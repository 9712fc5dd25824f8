"""Asks a model over HTTP, on any server that speaks OpenAI's chat completions."""

from __future__ import annotations

import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import httpx
import orjson

from om_proxy.agents.completion import answer_of
from om_proxy.agents.dialect import Dialect
from om_proxy.agents.failures import complaint, failure
from om_proxy.agents.llm import Answer, Prompt, Target
from om_proxy.errors import BrokenAnswer, ModelBusy, ModelError
from om_proxy.wire.encoding import TooMuch, decoder
from om_proxy.wire.refusals import TEXT

CONNECT, READ = 5.0, 600.0  # seconds; a non-streaming answer of 100 000 tokens says nothing until it is complete
LARGEST = 16 << 20  # bytes of an answer; 100 000 tokens are half a megabyte
MENDS = 3  # refusals of one request that are mended: limit renamed, limit or temperature left out, images left out
LEARNT = 256  # models whose dialect is remembered


class Direct:
    """`transport`: the proxy's own road to the model servers, not closed here. `clock`: unix seconds, for Retry-After dates."""

    def __init__(self, transport: httpx.AsyncBaseTransport, *, clock: Callable[[], float] = time.time) -> None:
        self._transport = transport
        self._clock = clock
        self._dialects: OrderedDict[tuple[str, str], Dialect] = OrderedDict()

    async def complete(self, target: Target, prompt: Prompt) -> Answer:
        """One answer. A refusal of a parameter (dialect.py) is mended and remembered; that is no retry of a failed call."""
        if target.base_url is None:
            raise ModelError(f"no address for {target.model}", "set memory.api_base")
        place = (target.base_url, target.model)
        dialect = self._dialects.get(place) or Dialect.of(target.base_url)
        for _ in range(MENDS + 1):
            status, headers, body = await self._post(target, dialect.body(target.model, prompt))
            if status == 200:
                return answer_of(body, target.model, headers, self._clock())
            code, message = _complaint(body)
            mended = dialect.mended(prompt, f"{code} {message}") if _is_refusal(status) else None
            if mended is None:
                break
            dialect = mended
            self._learn(place, dialect)
        raise failure(status, code=code, message=message, headers=headers, now=self._clock())

    def _learn(self, place: tuple[str, str], dialect: Dialect) -> None:
        """All but the images: it may be one of them that was refused, not every one."""
        self._dialects[place] = replace(dialect, images=True)
        self._dialects.move_to_end(place)
        while len(self._dialects) > LEARNT:
            self._dialects.popitem(last=False)

    async def _post(self, target: Target, body: Mapping[str, Any]) -> tuple[int, dict[str, str], bytes]:
        """Status, headers (names in lower case) and the whole body."""
        try:
            request = httpx.Request(
                "POST",
                _address(target.base_url or ""),
                headers=_headers(target),
                content=orjson.dumps(body),
                extensions={"timeout": {"connect": CONNECT, "read": READ, "write": READ, "pool": CONNECT}},
            )
        except (httpx.InvalidURL, ValueError, TypeError) as exc:
            said = f"the request could not be written ({type(exc).__name__})"
            raise ModelError(said, "check memory.api_base and key") from exc
        try:
            response = await self._transport.handle_async_request(request)
            try:
                return response.status_code, dict(response.headers), await _read_whole(response)
            finally:
                await response.aclose()
        except (httpx.HTTPError, httpx.StreamError) as exc:
            raise ModelBusy(f"the memory model's server could not be reached or read ({type(exc).__name__})") from exc


def _headers(target: Target) -> list[tuple[str, str]]:
    key = [("authorization", f"Bearer {target.api_key}")] if target.api_key else []
    fixed = [("content-type", "application/json"), ("accept", "application/json"), ("accept-encoding", "identity")]
    return [*target.headers, *key, *fixed]


def _address(base_url: str) -> httpx.URL:
    """The base with the endpoint's path; a query in the base (Azure's api-version) stays."""
    base = httpx.URL(base_url)
    return base.copy_with(path=base.path.rstrip("/") + "/chat/completions")


async def _read_whole(response: httpx.Response) -> bytes:
    """The body. Of an answer that has begun, a connection that ends is no busy server: the answer was cut off."""
    try:
        return await _read(response)
    except (httpx.HTTPError, httpx.StreamError) as exc:
        if response.status_code != 200:
            raise
        raise BrokenAnswer(f"the memory model's answer broke off ({type(exc).__name__})") from exc


async def _read(response: httpx.Response) -> bytes:
    """The body, uncompressed if it came compressed all the same; httpx's own way has no bound, and a megabyte may hold many."""
    decode = decoder(response.headers.get("content-encoding", "").encode(), LARGEST)
    if decode is None:
        raise ModelBusy("the memory model's server answered in a compression it was not asked for")
    parts: list[bytes] = []
    size = 0
    try:
        async for part in response.aiter_raw():
            parts.append(decode(part))
            size += len(parts[-1])
            if size > LARGEST:
                raise TooMuch
    except TooMuch as exc:
        raise ModelError(f"the memory model's answer is larger than {LARGEST} bytes") from exc
    except zlib.error as exc:
        raise ModelBusy("the memory model's server answered in a compression that cannot be read") from exc
    return b"".join(parts)


def _is_refusal(status: int) -> bool:
    """Whether the request itself may be at fault. Some local servers answer 500 or 501 to an image."""
    return status in (400, 404, 415, 422, 500, 501)


def _complaint(body: bytes) -> tuple[str | None, str]:
    """Code and message of an error, in whatever form."""
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None, body[:TEXT].decode("utf-8", "replace")
    return complaint(parsed.get("error", parsed) if isinstance(parsed, dict) else parsed)
