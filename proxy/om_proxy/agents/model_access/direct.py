"""Ask a model over HTTP, by the API of its target."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx
import orjson

from om_proxy.agents.model_access.completion import (
    build_model_error,
    read_answer,
    read_error_text,
    read_reply,
)
from om_proxy.agents.model_access.dialect import list_additions, write_body
from om_proxy.agents.model_access.llm import Answer, Prompt, Target
from om_proxy.common.apis import ApiName
from om_proxy.common.errors import BrokenAnswer, ModelBusy, ModelError
from om_proxy.wire.apis.additions import REQUEST_FAULT_STATUSES, Addition, LessonBook, Trial
from om_proxy.wire.apis.compression import DecompressedTooLarge, create_decoder
from om_proxy.wire.apis.refusals import (
    MAX_ERROR_TEXT_CHARS,
    is_too_long_text,
    read_wrapped_status,
)
from om_proxy.wire.apis.registry import get_api

CONNECT_TIMEOUT_S = 5.0
# an unstreamed answer of 100 000 tokens says nothing until it is complete
READ_TIMEOUT_S = 600.0
QUESTION_PATHS: Mapping[ApiName, str] = {
    "chat": "/chat/completions",
    "responses": "/responses",
    "messages": "/messages",
}
VERSION_HEADER, BETA_HEADER = "anthropic-version", "anthropic-beta"
OLDEST_VERSION = (VERSION_HEADER, "2023-06-01")  # the only one since then
MAX_ANSWER_BYTES = 16 << 20  # 100 000 tokens are half a megabyte


class Direct:
    """The way to models on servers that speak one of the APIs with memory.

    `transport` leads to the memory models' servers; its owner closes it. `clock` returns unix
    seconds, for Retry-After dates."""

    def __init__(
        self, transport: httpx.AsyncBaseTransport, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._transport = transport
        self._clock = clock
        self._lessons = LessonBook()

    async def complete(self, target: Target, prompt: Prompt) -> Answer:
        """Ask for one answer. If the server refuses the request, ask again with less of what it may
        do without, and remember what was refused (wire/apis/additions.py). Such a call does not
        count as a retry."""
        if target.base_url is None:
            raise ModelError(f"no address for {target.model}", "set memory.api_base")
        lessons = self._lessons.find((target.base_url, target.model))
        trial = Trial(lessons, list_additions(prompt), self._clock)
        while True:
            question = write_body(target.model, prompt, trial.sent, base_url=target.base_url)
            members = {name: orjson.loads(raw) for name, raw in target.members}
            body = members | get_api(target.api).write_question(question)
            status, headers, answer = await self._post(target, body)
            is_answered = status == 200
            if is_answered:
                told_status = read_wrapped_status(answer)
                if told_status is None:
                    completion = self._read_answer(target, answer, headers)
                    trial.end(status)
                    return completion
                status = told_status
            code, message = _read_error(answer)
            is_too_long = is_too_long_text(f"{code} {message}")
            # a server that does not know a model that was guessed has nothing against its parameters
            is_about_request = not target.is_guess or status in REQUEST_FAULT_STATUSES
            if not is_about_request or not trial.take_back(
                status, is_too_long=is_too_long, has_retry_after="retry-after" in headers
            ):
                trial.end(status)
                if is_answered and not is_too_long:
                    return self._read_answer(target, answer, headers)
                raise build_model_error(
                    status, code=code, message=message, headers=headers, now=self._clock()
                )

    def _read_answer(self, target: Target, answer: bytes, headers: Mapping[str, str]) -> Answer:
        if target.api != "chat":
            return read_reply(answer, target.model, target.api)
        return read_answer(answer, target.model, headers, self._clock())

    def list_left_out(self, target: Target) -> Addition:
        """Return what the target's server refused lately."""
        lessons = self._lessons.find((target.base_url, target.model))
        return lessons.list_left_out(self._clock())

    async def _post(
        self, target: Target, body: Mapping[str, Any]
    ) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers (names in lower case) and the whole body."""
        try:
            request = httpx.Request(
                "POST",
                _build_url(target),
                headers=build_headers(target),
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


def build_headers(target: Target) -> list[tuple[str, str]]:
    """Return the headers of a request to the target, with its credential."""
    key = [("authorization", f"Bearer {target.api_key}")] if target.api_key else []
    fixed = [
        ("content-type", "application/json"),
        ("accept", "application/json, text/event-stream"),
        ("accept-encoding", "identity"),
    ]
    return [*_select_own_headers(target), *key, *fixed]


def _select_own_headers(target: Target) -> Sequence[tuple[str, str]]:
    """Return the target's headers. The Messages API demands its version; a beta that the client
    tries may change the answer."""
    if target.api != "messages":
        return target.headers
    version = () if any(name == VERSION_HEADER for name, _ in target.headers) else (OLDEST_VERSION,)
    return [*(one for one in target.headers if one[0] != BETA_HEADER), *version]


def _build_url(target: Target) -> str:
    """Append the endpoint's path to the base, and the inherited query to the base's own (Azure's
    api-version)."""
    parts = urlsplit(target.base_url or "")
    query = "&".join(filter(None, (parts.query, target.query.decode("latin-1"))))
    return urlunsplit(
        parts._replace(path=parts.path.rstrip("/") + QUESTION_PATHS[target.api], query=query)
    )


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


def _read_error(body: bytes) -> tuple[str | None, str]:
    """Read code and message of an error, in any form."""
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None, body[:MAX_ERROR_TEXT_CHARS].decode("utf-8", "replace")
    return read_error_text(parsed.get("error", parsed) if isinstance(parsed, dict) else parsed)
