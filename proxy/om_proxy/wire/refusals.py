"""What a model server's refusal says: that the prompt is too long for the model.

There is no standard for it. OpenAI's `context_length_exceeded` is a code, most others say it in a sentence, some answer 413. Only
the places where an error speaks are read, never those where it quotes: a validation error repeats the user's words, and they may be
about context windows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

LARGEST = 65_536  # bytes of an error's body that are read; real ones have a few hundred
TEXT = 2_000  # characters read of a body that is no JSON: a proxy's page says it at its beginning
DEEPEST = 6  # levels: a router wraps its provider's error, which wraps its server's
SPEAKS = ("error", "errors", "message", "msg", "detail", "details", "code", "type", "error_type", "metadata", "raw")

_TOO_LONG = re.compile(
    "|".join(
        (
            # OpenAI, Azure, Groq, DeepSeek and others by code; LiteLLM by the name of its exception
            r"context[ _-]?(?:length|window|size|limit)[ _-]?exceed",
            # OpenAI, Anthropic, llama.cpp (by type too), llama-cpp-python, SGLang, Cloudflare
            r"exceed.{0,80}context[ _]?(?:length|window|size|limit)",
            r"context[ _](?:length|window|size)\b.{0,40}(?:exceed|overflow)",  # MiniMax, LM Studio with MLX
            r"maximum (?:context|prompt|input) length",  # OpenAI, vLLM, OpenRouter, Mistral, xAI
            r"(?:longer|greater|larger) than .{0,60}context length",  # SGLang, Together, LM Studio
            r"context the overflows|context overflows",  # LM Studio
            r"(?:prompt|input|conversation|messages)(?: \([^)]{0,60}\))? (?:is|are|was|were) too long",  # Anthropic, Bedrock, Fireworks
            r"(?:input|prompt)[ _]tokens?\b.{0,80}exceed",  # Gemini, GitHub, SiliconFlow, watsonx
            r"input token count is \d+ but",  # Vertex
            r"exceeded model token limit|model_max_prompt_tokens_exceeded|tokens_limit_reached",  # Kimi; GitHub, twice
            r"too many (?:input |prompt )?tokens",  # Cohere
            r"reduce (?:the|your) (?:length of|prompt|input|messages?\b)",  # Groq, Cerebras
            r"range of input length should be",  # DashScope
            r"(?:prompt|input)(?: length)?(?: \d+)? exceeds (?:the )?max",  # Zhipu, Ark, OpenVINO
            r"tokens\b.{0,40}exceed max message tokens",  # Ark
            r"prompt tokens too long|tokens_too_long",  # Qianfan
            r"tokens \+ \W?max_new_tokens\W? must be <=|inputs\W? must have less than \d+ tokens",  # TGI, Together
            r"'messages(?:\[\d+\]\S{0,40})?': (?:array|string) too long",  # OpenAI: more than it takes, tokens aside
        )
    ),
    re.IGNORECASE | re.DOTALL,
)


def too_long(status: int, body: bytes) -> bool:
    """Whether the prompt did not fit the model. `body`: of the error, uncompressed, at most `LARGEST` bytes of it."""
    return status == 413 or (status in (400, 422) and says_too_long(body))


def says_too_long(body: bytes) -> bool:
    """Whether the error itself says so. Whoever says it has measured the prompt; a bare 413 may come from a gateway that did not
    look at the credential yet."""
    return any(map(means_too_long, _said(body)))


def means_too_long(said: str) -> bool:
    """One of an error's texts: its code, its type or its message."""
    return bool(_TOO_LONG.search(said))


def _said(body: bytes) -> Iterator[str]:
    try:
        error = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        yield body[: 4 * TEXT].decode("utf-8", "replace")[:TEXT]
    else:
        yield from _spoken(error, DEEPEST)


def _spoken(error: Any, levels: int) -> Iterator[str]:
    if isinstance(error, str):
        yield error
    elif levels and isinstance(error, dict):
        for name in SPEAKS:
            yield from _spoken(error.get(name), levels - 1)
    elif levels and isinstance(error, list):
        for part in error:
            yield from _spoken(part, levels - 1)
