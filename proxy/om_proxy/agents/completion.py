"""Reads a chat completion: its text, and what it cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from om_proxy.agents.failures import complaint, failure
from om_proxy.agents.llm import Answer
from om_proxy.errors import BrokenAnswer, ModelBusy
from om_proxy.memory.cut_off import Finish, read_finish


def answer_of(body: bytes, model: str, headers: Mapping[str, str], now: float) -> Answer:
    """The first choice of a completion's JSON. Raises ModelBusy for what is none (a gateway's page, half a body), and the
    error that some routers wrap in a 200."""
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        if body.lstrip().startswith(b"{"):  # a connection that ends without a length to tell it by
            raise BrokenAnswer("the memory model's answer broke off") from exc
        raise ModelBusy("the memory model's server answered something that is no JSON") from exc
    completion = _mapping(parsed)
    if error := _mapping(completion.get("error")):
        code = error.get("code")
        status = code if isinstance(code, int) and 400 <= code < 600 else 502
        raise failure(status, code=code, message=complaint(error)[1], headers=headers, now=now)
    return answer_from(completion, model)


def answer_from(completion: Mapping[str, Any], model: str) -> Answer:
    """The first choice of a parsed completion."""
    choices = completion.get("choices")
    if not isinstance(choices, list) or not choices:
        raise ModelBusy("the memory model's server answered without a choice")
    choice = _mapping(choices[0])
    message = _mapping(choice.get("message"))
    usage = _mapping(completion.get("usage"))
    details = _mapping(usage.get("prompt_tokens_details"))
    named = completion.get("model")
    return Answer(
        text=_text(message.get("content")) or _text(message.get("refusal")),
        model=named if isinstance(named, str) and named else model,
        input_tokens=_count(usage.get("prompt_tokens")),
        output_tokens=_count(usage.get("completion_tokens")),
        cached_tokens=_count(
            details.get("cached_tokens") or usage.get("prompt_cache_hit_tokens")
        ),  # the latter: DeepSeek
        finish=_finish(choice),
    )


def _finish(choice: Mapping[str, Any]) -> Finish:
    """How the choice ended. litellm calls every word that it does not know `stop`, and keeps the word itself beside it."""
    told = choice.get("finish_reason")
    native = _mapping(choice.get("provider_specific_fields")).get("native_finish_reason")
    if native and read_finish(told) == "stop":
        return read_finish(native)
    return read_finish(told)


def _text(content: Any) -> str:
    """A string, or the texts of its parts; parts have no parts."""
    texts = [_mapping(part).get("text") for part in content] if isinstance(content, list) else [content]
    return "".join(text for text in texts if isinstance(text, str))


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
