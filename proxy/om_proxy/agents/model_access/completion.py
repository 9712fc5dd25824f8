"""Read a memory model's answer, streamed or not: its text and its cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson

from om_proxy.agents.model_access.failures import build_model_error, read_error_text
from om_proxy.agents.model_access.llm import Answer
from om_proxy.common.apis import ApiName
from om_proxy.common.errors import BrokenAnswer, ModelBusy
from om_proxy.memory.message_view import Part
from om_proxy.memory.notes.cut_off import Finish, read_finish
from om_proxy.memory.token_prices import Usage
from om_proxy.wire.apis.json_text import replace_halves
from om_proxy.wire.apis.registry import CHAT, get_api, read_usage, view_message

EVENT_STARTS = (b"data:", b"event:", b"id:", b"retry:", b":")


def read_answer(body: bytes, model: str, headers: Mapping[str, str], now: float) -> Answer:
    """Read the first choice of a completion, from its JSON or from a stream of events.

    Raises BrokenAnswer for half a body, ModelBusy for another body (a gateway's page), and the
    error that some routers wrap in a 200."""
    if body.lstrip().startswith(EVENT_STARTS):
        return _read_stream(body, model)
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        # the connection ended early, and no content-length showed it
        if body.lstrip().startswith(b"{"):
            raise BrokenAnswer("the memory model's answer broke off") from exc
        raise ModelBusy("the memory model's server answered something that is no JSON") from exc
    completion = _read_mapping(parsed)
    if error := _read_mapping(completion.get("error")):
        code = error.get("code")
        status = code if isinstance(code, int) and 400 <= code < 600 else 502
        raise build_model_error(
            status, code=code, message=read_error_text(error)[1], headers=headers, now=now
        )
    return read_completion(completion, model)


def read_reply(body: bytes, model: str, api: ApiName) -> Answer:
    """Read an answer of another API than chat. Raise as `read_answer` does."""
    reader = get_api(api).create_reply_reader(body.lstrip().startswith(EVENT_STARTS))
    reader.feed(body)
    reply = reader.finish()
    if reply.error:
        raise ModelBusy("the memory model's answer reports an error")
    if not reply.complete or reply.message is None:
        raise BrokenAnswer("the memory model's answer broke off")
    view = view_message(reply.message, api)
    usage = reply.usage or Usage()
    return Answer(
        text=replace_halves("".join(map(_read_text, view.parts())) if view else ""),
        model=model,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_tokens=usage.cached_tokens,
        finish=read_finish(reply.finish_reason),
        cache_write_tokens=usage.cache_write_tokens,
    )


def _read_text(part: str | Part) -> str:
    return part if isinstance(part, str) else part.text or ""


def _read_stream(body: bytes, model: str) -> Answer:
    """Read a whole stream. Raise BrokenAnswer if its end is missing, ModelBusy for an error in it."""
    reader = CHAT.create_reply_reader(True)
    reader.feed(body)
    reply = reader.finish()
    if reply.error:
        raise ModelBusy("the memory model's stream reports an error")
    if not reply.complete:
        raise BrokenAnswer("the memory model's answer broke off")
    usage = reply.usage
    choice = {"message": orjson.loads(reply.message or b"{}"), "finish_reason": reply.finish_reason}
    answer = read_completion({"choices": [choice]}, model)
    if usage is None:
        return answer
    return replace(
        answer,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_tokens=usage.cached_tokens,
        cache_write_tokens=usage.cache_write_tokens,
    )


def read_completion(completion: Mapping[str, Any], model: str) -> Answer:
    """Read the first choice of a parsed completion. litellm lets half characters through."""
    choices = completion.get("choices")
    if not isinstance(choices, list) or not choices:
        raise ModelBusy("the memory model's server answered without a choice")
    choice = _read_mapping(choices[0])
    message = _read_mapping(choice.get("message"))
    usage = read_usage(completion.get("usage")) or Usage()
    reported_model = completion.get("model")
    return Answer(
        text=replace_halves(
            _join_texts(message.get("content")) or _join_texts(message.get("refusal"))
        ),
        model=replace_halves(reported_model)
        if reported_model and isinstance(reported_model, str)
        else model,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_tokens=usage.cached_tokens,
        finish=_read_finish(choice),
        cache_write_tokens=usage.cache_write_tokens,
    )


def _read_finish(choice: Mapping[str, Any]) -> Finish:
    """Read how the choice ended. litellm reports every unknown word as `stop`, and keeps the word
    itself in another field."""
    reported = choice.get("finish_reason")
    native = _read_mapping(choice.get("provider_specific_fields")).get("native_finish_reason")
    if native and read_finish(reported) == "stop":
        return read_finish(native)
    return read_finish(reported)


def _join_texts(content: Any) -> str:
    """Return a string content, or the joined texts of its parts. Parts have no parts."""
    texts = (
        [_read_mapping(part).get("text") for part in content]
        if isinstance(content, list)
        else [content]
    )
    return "".join(text for text in texts if isinstance(text, str))


def _read_mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
