"""Read a memory model's answer, streamed or not: its text and its cost. A refusal becomes an error:
try again, send less, or give up."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from email.utils import parsedate_to_datetime
from typing import Any

import orjson

from om_proxy.agents.model_access.llm import NO_USAGE, Answer
from om_proxy.common.apis import ApiName
from om_proxy.common.errors import BrokenAnswer, ModelBusy, ModelError, PromptTooLong
from om_proxy.memory.message_view import Part
from om_proxy.memory.notes.cut_off import Finish, read_finish
from om_proxy.wire.apis.json_text import replace_halves
from om_proxy.wire.apis.refusals import MAX_ERROR_TEXT_CHARS, is_too_long_text
from om_proxy.wire.apis.registry import CHAT, get_api, read_usage, view_message

BUSY_STATUSES = frozenset({408, 409, 425, 429})  # and every 5xx
# sent with 429, but waiting does not pay the bill
QUOTA_CODES = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
_CODE = re.compile(r"[\w.-]{1,64}")
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
    return Answer(
        text=replace_halves("".join(map(_read_text, view.parts())) if view else ""),
        model=model,
        usage=reply.usage or NO_USAGE,
        finish=read_finish(reply.finish_reason),
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
    choice = {"message": orjson.loads(reply.message or b"{}"), "finish_reason": reply.finish_reason}
    answer = read_completion({"choices": [choice]}, model)
    return replace(answer, usage=reply.usage or NO_USAGE)


def read_completion(completion: Mapping[str, Any], model: str) -> Answer:
    """Read the first choice of a parsed completion. litellm lets half characters through."""
    choices = completion.get("choices")
    if not isinstance(choices, list) or not choices:
        raise ModelBusy("the memory model's server answered without a choice")
    choice = _read_mapping(choices[0])
    message = _read_mapping(choice.get("message"))
    reported_model = completion.get("model")
    return Answer(
        text=replace_halves(
            _join_texts(message.get("content")) or _join_texts(message.get("refusal"))
        ),
        model=replace_halves(reported_model)
        if reported_model and isinstance(reported_model, str)
        else model,
        usage=read_usage(completion.get("usage")) or NO_USAGE,
        finish=_read_finish(choice),
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


# ── refusals ──────────────────────────────────────────────────────────────────────────────────────


def build_model_error(
    status: int, *, code: object, message: str, headers: Mapping[str, str], now: float
) -> ModelBusy | PromptTooLong | ModelError:
    """Build the error for an answer with this status.

    The server's `message` is read here and never passed on: it may quote the prompt. `now`: unix
    seconds, for a Retry-After date. Header names are in lower case.
    """
    error = _choose_error(status, code=code, message=message, headers=headers, now=now)
    error.server_status = status
    return error


def _choose_error(
    status: int, *, code: object, message: str, headers: Mapping[str, str], now: float
) -> ModelBusy | PromptTooLong | ModelError:
    has_clean_code = isinstance(code, str | int) and _CODE.fullmatch(str(code))
    clean_code = str(code) if has_clean_code else ""
    text = f"the memory model's server answered {status} {clean_code}".rstrip()
    is_busy = status in BUSY_STATUSES or status >= 500
    is_client_error = status >= 400 and not is_busy
    server_text = f"{clean_code} {message[:MAX_ERROR_TEXT_CHARS]}"
    if status == 413 or (is_client_error and is_too_long_text(server_text)):
        return PromptTooLong(f"{text}: the prompt is too long")
    if clean_code in QUOTA_CODES:
        return ModelError(text, "see to the account's quota, or choose another memory.model")
    if is_busy:
        return ModelBusy(text, read_retry_after(headers, now))
    if status in (401, 403):
        return ModelError(
            text, "check memory.api_key, or the credential the model is inherited with"
        )
    if status == 404:
        return ModelError(text, "check memory.model and memory.api_base")
    return ModelError(text)


def read_error_text(error: Any) -> tuple[str | None, str]:
    """Read code and message of an error's JSON, in any form. They are for matching, never for
    showing. Servers repeat prompts in errors, so only the beginning is read."""
    if isinstance(error, Mapping) and isinstance(error.get("message"), str):
        code = error.get("code") or error.get("type")
        code_text = str(code)[:MAX_ERROR_TEXT_CHARS] if isinstance(code, str | int) else None
        param = error.get("param")
        message = f"{param if isinstance(param, str) else ''} {error['message']}"
        return code_text, message[:MAX_ERROR_TEXT_CHARS]
    try:
        return None, orjson.dumps(error)[:MAX_ERROR_TEXT_CHARS].decode("utf-8", "replace")
    except orjson.JSONEncodeError:  # orjson reads more levels than it writes
        return None, ""


def read_retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds until the server wants to be asked again, or None if it names none that can
    be read."""
    milliseconds = _parse_number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    seconds = _parse_number(value)
    if seconds is not None or value is None:
        return seconds
    try:
        return max(parsedate_to_datetime(value).timestamp() - now, 0.0)
    except (ValueError, OverflowError):
        return None


def _parse_number(value: str | None) -> float | None:
    """Parse a finite number that is not negative."""
    try:
        number = float(value or "")
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None
