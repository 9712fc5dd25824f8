"""What a model server would refuse of a request of the Responses API or the Messages API: first what
the types of the vendor's SDK rule out, then rules of order by hand. For chat, see
tests/e2e/differential/published.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it has no types of its own
from pydantic import TypeAdapter

from tests.e2e.differential import published
from tests.support.three_apis import Api

MAX_MARKS = 4

Json = Mapping[str, Any]


def find_refusal(api: Api, request: Json) -> str | None:
    """Return why a server would answer 400; None for a request that it takes."""
    return find_misfit(api, request) or find_disorder(api, request)


def find_misfit(api: Api, request: Json) -> str | None:
    """Return what does not fit the vendor's types; of chat, the schema and its order."""
    if api == "chat":
        return published.refused(request)
    error = jsonschema.exceptions.best_match(_of_sdk(api).iter_errors(request))
    return f"{error.json_path}: {error.message[:200]}" if error else None


def find_disorder(api: Api, request: Json) -> str | None:
    """Return what is wrong with the order of a request that is not chat's; it is quick."""
    if api == "chat":
        return None
    rules = _break_responses if api == "responses" else _break_messages
    return next(rules(request), None)


@cache
def _of_sdk(api: Api) -> Any:
    if api == "responses":  # imported here: it takes seconds
        from openai.types.responses.response_create_params import ResponseCreateParams

        return _build_validator(ResponseCreateParams)
    from anthropic.types.message_create_params import MessageCreateParams

    return _build_validator(MessageCreateParams)


def _build_validator(params: Any) -> Any:
    return jsonschema.Draft202012Validator(TypeAdapter(params).json_schema())


def _break_responses(request: Json) -> Iterator[str]:
    """Yield what is wrong with the order of items: each result stands behind its call, each call has
    one, and behind reasoning stands what came of it."""
    items = request["input"]
    if isinstance(items, str):
        return
    open_calls: set[str] = set()
    for place, item in enumerate(items):
        kind = item.get("type", "message")
        if kind.endswith("_call"):
            open_calls.add(item["call_id"])
        elif kind.endswith("_output"):
            if item["call_id"] not in open_calls:
                yield f"$.input[{place}]: a result for a call that was not made"
            open_calls.discard(item["call_id"])
        elif kind == "reasoning" and not _is_of_model(items[place + 1 : place + 2]):
            yield f"$.input[{place}]: reasoning without what followed it"
    if open_calls:
        yield f"at the end: no result for {', '.join(sorted(open_calls))}"


def _is_of_model(items: Sequence[Json]) -> bool:
    return any(i.get("role") == "assistant" or i.get("type", "").endswith("_call") for i in items)


def _break_messages(request: Json) -> Iterator[str]:
    """Yield what is wrong with the order of messages and blocks: the user begins, all results of a
    message's calls come first in the next one, no text is empty, and marks are few."""
    messages = request["messages"]
    if messages[0]["role"] != "user":
        yield "$.messages[0]: the user does not begin"
    calls: list[str] = []
    for place, message in enumerate(messages):
        blocks = _list_blocks(message["content"])
        kinds = [block["type"] for block in blocks]
        answered = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        if sorted(answered) != sorted(calls):
            yield f"$.messages[{place}]: calls {calls}, results {answered}"
        if "tool_result" in kinds[len(answered) :]:
            yield f"$.messages[{place}]: a result behind other blocks"
        calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
        if not blocks or any(b["type"] == "text" and not b["text"].strip() for b in blocks):
            yield f"$.messages[{place}]: nothing is said"
    if calls:
        yield f"at the end: no result for {calls}"
    if str(request).count("'cache_control': {") > MAX_MARKS:
        yield "too many marks"


def _list_blocks(content: Any) -> list[Json]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
