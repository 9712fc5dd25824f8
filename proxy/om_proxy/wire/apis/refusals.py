"""Recognise a refusal that says the prompt is too long for the model, and one inside a 200.

There is no standard for such refusals. OpenAI sends the code `context_length_exceeded`, most others
write a sentence, some answer 413. The proxy reads only the members with the error's own words,
never the ones that quote: a validation error repeats the user's words, and they may be about
context windows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from om_proxy.common.late_patterns import compile_late
from om_proxy.wire.apis.sse import EventDecoder

UNNAMED_STATUS = 400  # of an error inside a 200 that names no status
MAX_ERROR_BODY_BYTES = 65_536  # a real error has a few hundred bytes
MAX_ERROR_TEXT_CHARS = 2_000  # the HTML page of a gateway names the error at its beginning
MAX_ERROR_NESTING = 6  # levels: a router wraps its provider's error, which wraps its server's
ERROR_TEXT_MEMBERS = (
    "error",
    "errors",
    "message",
    "msg",
    "detail",
    "details",
    "code",
    "type",
    "error_type",
    "metadata",
    "raw",
)

_TOO_LONG = compile_late(
    "|".join(
        (
            # OpenAI, Azure, Groq, DeepSeek and others by code; LiteLLM by the name of its exception
            r"context[ _-]?(?:length|window|size|limit)[ _-]?exceed",
            # OpenAI, Anthropic, llama.cpp (by type too), llama-cpp-python, SGLang, Cloudflare
            r"exceed.{0,80}context[ _]?(?:length|window|size|limit)",
            # MiniMax, LM Studio with MLX
            r"context[ _](?:length|window|size)\b.{0,40}(?:exceed|overflow)",
            r"maximum (?:context|prompt|input) length",  # OpenAI, vLLM, OpenRouter, Mistral, xAI
            r"(?:longer|greater|larger) than .{0,60}context length",  # SGLang, Together, LM Studio
            r"context the overflows|context overflows",  # LM Studio
            # Anthropic, Bedrock, Fireworks
            r"(?:prompt|input|conversation|messages)(?: \([^)]{0,60}\))? (?:is|are|was|were) too long",
            r"(?:input|prompt)[ _]tokens?\b.{0,80}exceed",  # Gemini, GitHub, SiliconFlow, watsonx
            r"input token count is \d+ but",  # Vertex
            # Kimi; GitHub, twice
            r"exceeded model token limit|model_max_prompt_tokens_exceeded|tokens_limit_reached",
            r"too many (?:input |prompt )?tokens",  # Cohere
            r"reduce (?:the|your) (?:length of|prompt|input|messages?\b)",  # Groq, Cerebras
            r"range of input length should be",  # DashScope
            r"(?:prompt|input)(?: length)?(?: \d+)? exceeds (?:the )?max",  # Zhipu, Ark, OpenVINO
            r"tokens\b.{0,40}exceed max message tokens",  # Ark
            r"prompt tokens too long|tokens_too_long",  # Qianfan
            # TGI, Together
            r"tokens \+ \W?max_new_tokens\W? must be <=|inputs\W? must have less than \d+ tokens",
            # OpenAI: too many messages or too long a string, whatever their tokens
            r"'(?:messages|input)(?:\[\d+\]\S{0,40})?': (?:array|string) too long",
        )
    ),
    re.IGNORECASE | re.DOTALL,
)

_STATUS_PATTERN = compile_late("[45][0-9][0-9]")


def is_prompt_too_long(status: int, body: bytes) -> bool:
    """Return whether the upstream refused the prompt as too long for the model. `body`: the
    error's, uncompressed, at most `MAX_ERROR_BODY_BYTES`."""
    return status == 413 or (status in (400, 422) and has_too_long_text(body))


def has_too_long_text(body: bytes) -> bool:
    """Return whether the error's text says that the prompt is too long. In that case the server has
    measured the prompt. A bare 413 may come from a gateway that has not checked the credential
    yet."""
    return any(map(is_too_long_text, _list_texts(body)))


def is_too_long_text(text: str) -> bool:
    """Return whether one text of an error says that the prompt is too long: its code, its type or
    its message."""
    return bool(_TOO_LONG.search(text))


class _Choice(msgspec.Struct):
    finish_reason: Any = None


class _Answer(msgspec.Struct):
    error: Any = None
    choices: list[_Choice] | None = None
    object: Any = None
    code: Any = None


_answer = msgspec.json.Decoder(_Answer)


def has_first_event(begun: bytes) -> bool:
    """Return whether a body has begun with more than blank lines and comments: with the first
    character of an object, or with a whole event."""
    return begun.lstrip().startswith(b"{") or next(EventDecoder().feed(begun), None) is not None


def read_wrapped_status(body: bytes) -> int | None:
    """Return the status of an error that was answered with 200; None: there is none. It is alone,
    or is the first event of a stream. `body`: uncompressed, at least that event."""
    if body.lstrip().startswith(b"{"):
        return _read_status(body, is_error=False)
    event = next(EventDecoder().feed(body + b"\n\n"), None)
    return event and _read_status(event.data, is_error=event.type == b"error")


def _read_status(data: bytes, *, is_error: bool) -> int | None:
    try:
        answer = _answer.decode(data)
    except (ValueError, RecursionError):
        return UNNAMED_STATUS if is_error else None
    says = any(choice.finish_reason != "error" for choice in answer.choices or ())
    if not is_error and (says or not (answer.error or answer.object == "error")):
        return None
    code = str(answer.error.get("code") if isinstance(answer.error, dict) else answer.code)
    return int(code) if _STATUS_PATTERN.fullmatch(code) else UNNAMED_STATUS


def _list_texts(body: bytes) -> Iterator[str]:
    stream = [] if body.lstrip().startswith(b"{") else EventDecoder().feed(body + b"\n\n")
    for data in [event.data for event in stream] or [body]:
        try:
            told = msgspec.json.decode(data)
        except (ValueError, RecursionError):
            text = data[: 4 * MAX_ERROR_TEXT_CHARS].decode("utf-8", "replace")
            yield text[:MAX_ERROR_TEXT_CHARS]
            continue
        # a response repeats the request
        response = told.get("response") if isinstance(told, dict) else None
        error = response.get("error") if isinstance(response, dict) else told
        yield from _walk_texts(error, MAX_ERROR_NESTING)


def _walk_texts(error: Any, levels: int) -> Iterator[str]:
    if isinstance(error, str):
        yield error
    elif levels and isinstance(error, dict):
        for name in ERROR_TEXT_MEMBERS:
            yield from _walk_texts(error.get(name), levels - 1)
    elif levels and isinstance(error, list):
        for part in error:
            yield from _walk_texts(part, levels - 1)
