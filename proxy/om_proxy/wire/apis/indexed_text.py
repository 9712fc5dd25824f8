"""Read what is indexed of a message, of any API (docs/contributing/recall.md#what-is-indexed)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from om_proxy.memory.message_view import MessageView, Part
from om_proxy.memory.model import Message
from om_proxy.memory.recall.passages import MessageText
from om_proxy.wire.apis.json_text import parse_arguments
from om_proxy.wire.apis.registry import view_message

RESULT_ROLES = frozenset(("tool", "function"))
MAX_ARGUMENT_TEXTS = 1_000  # of one call; its index words are fewer


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
