"""Read what a message of any API says: its parts as a look-up shows them, its texts as they are indexed
(docs/contributing/recall.md#what-is-indexed), or in short with its speaker.

A look-up shows texts, tool calls and results, and what stands for images and files. A model's
reasoning is no part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import UNSET

from om_proxy.memory.message_view import MessageView, Part, ToolCall
from om_proxy.memory.model import Item, Message
from om_proxy.memory.recall.passages import MessageText
from om_proxy.memory.recall.quoted_message import PartKind, QuotedPart, clean_text
from om_proxy.wire.apis.json_text import parse_arguments, replace_lone_surrogates, show_arguments
from om_proxy.wire.apis.registry import view_message

RESULT_ROLES = ("tool", "function")
MAX_SHOWN_URL_CHARS = 80
MAX_ARGUMENT_TEXTS = 1_000  # of one call; its index words are fewer
MAX_SPEAKER_CHARS = 40


def read_message_parts(item: Item) -> tuple[QuotedPart, ...]:
    """Return the parts in order. An unreadable message is one text: its bytes."""
    raw = replace_lone_surrogates(item.raw) or item.raw
    view = view_message(raw, item.api)
    if view is None:
        return (QuotedPart("text", clean_text(raw.decode("utf-8", "replace"))),)
    return tuple(_list_parts(view, "tool-result" if item.role in RESULT_ROLES else "text"))


def _list_parts(view: MessageView, kind: PartKind) -> Iterator[QuotedPart]:
    # a result seldom names its tool: only the older form has it
    name = view.name if kind == "tool-result" and isinstance(view.name, str) else ""
    for part in view.parts():
        if isinstance(part, str):
            if part:
                yield QuotedPart(kind, clean_text(part), name)
            continue
        if part.text is None and part.payload() == ():
            continue  # reasoning
        shown = part.render()
        if not isinstance(shown, str):
            attached: PartKind = "image" if shown.is_image else "file"
            yield QuotedPart(attached, "", shown.name or _shorten_url(shown.url) or shown.type_name)
        elif shown:
            yield QuotedPart(kind, clean_text(shown), name)
    if isinstance(view.refusal, str) and view.refusal and not view.has_list:
        yield QuotedPart(kind, clean_text(view.refusal), name)
    for call in view.calls():
        if call.kind != "empty":
            yield _read_call(call)


def _read_call(call: ToolCall) -> QuotedPart:
    name = "" if call.name is UNSET or call.name is None else str(call.name)
    return QuotedPart("tool-call", clean_text(show_arguments(call.arguments)), name)


def _shorten_url(url: str) -> str:
    """Return the last word of an address; of a `data:` URL nothing, for it holds the data."""
    return "" if url.startswith("data:") else url.rpartition("/")[2][:MAX_SHOWN_URL_CHARS]


def read_call_names(item: Item) -> dict[str, str]:
    """Return the tool's name of each call that the message makes, by the call's id."""
    view = view_message(replace_lone_surrogates(item.raw) or item.raw, item.api)
    calls = view.calls() if view is not None else ()
    return {
        call.id: call.name
        for call in calls
        if isinstance(call.id, str) and isinstance(call.name, str)
    }


def summarize_message(raw: bytes, api: str) -> tuple[str, tuple[str, ...]]:
    """Return the speaker and the texts. A part that is no text is named by its type. An unreadable
    message has no parts."""
    message = view_message(raw, api)
    if message is None:
        return "Unknown", ()
    role = "" if message.role is None else str(message.role)
    speaker = role.capitalize()[:MAX_SPEAKER_CHARS]
    return speaker, tuple(part for part in _list_short_texts(message) if part.strip())


def _list_short_texts(message: MessageView) -> Iterator[str]:
    for part in message.parts():
        if isinstance(part, str):
            yield part
        else:
            yield f"[{part.type_name}]" if part.text is None else part.text
    for call in message.calls():
        if call.kind in ("function", "empty"):
            yield f"[calls {'a tool' if call.name is UNSET else call.name}]"


def read_indexed_text(message: Message) -> MessageText:
    """Return the texts of a message that are indexed. An unreadable message has none."""
    read = MessageText(message.seq, message.item.role, message.at)
    view = view_message(message.item.raw, message.item.api)
    if view is None:
        return read
    texts = tuple(_list_texts(view.parts()))
    if message.item.role in RESULT_ROLES:
        return read._replace(result=texts)
    return read._replace(
        speaker=view.name if isinstance(view.name, str) else "",
        spoken=texts,
        called=tuple(_list_call_texts(view)),
    )


def _list_texts(parts: Iterable[str | Part]) -> Iterator[str]:
    for part in parts:
        if isinstance(part, str):
            yield part
        elif part.payload() != ():  # reasoning
            shown = part.render()
            yield shown if isinstance(shown, str) else shown.name


def _list_call_texts(view: MessageView) -> Iterator[str]:
    for call in view.calls():
        if isinstance(call.name, str):
            yield call.name
        for texts in (call.arguments, call.other_input):
            yield from _list_strings(parse_arguments(texts))


def _list_strings(value: object) -> Iterator[str]:
    """Yield the texts inside a JSON value, without its names, in order."""
    waiting = [value]
    left = MAX_ARGUMENT_TEXTS
    while waiting and left:
        value = waiting.pop()
        if isinstance(value, str):
            left -= 1
            yield value
        elif isinstance(value, dict):
            waiting += reversed(value.values())
        elif isinstance(value, list):
            waiting += reversed(value)
