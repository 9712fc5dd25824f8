"""Make quotes of stored messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from om_proxy.engine.recall.conversations import Conversation
from om_proxy.memory.recall.arguments import LookUp
from om_proxy.memory.recall.quoted_message import QuotedMessage, QuotedPart
from om_proxy.storage.values.stored_rows import StoredMessage
from om_proxy.wire.apis.message_parts import read_call_names, read_message_parts


def quote_message(stored: StoredMessage, conversation: Conversation) -> QuotedMessage:
    """Return the message with its parts. This takes time where the message is long."""
    message = stored.message
    return QuotedMessage(
        message.seq,
        message.item.role,
        message.at,
        read_message_parts(message.item.raw, message.item.role),
        stored.state,
        is_dated=message.seq > conversation.memory.undated_to,
        label=conversation.shown_label,
        title=None if conversation.is_current else conversation.memory.title,
    )


def quote_page(
    page: Sequence[StoredMessage],
    before: Iterable[StoredMessage],
    conversation: Conversation,
    look_up: LookUp,
) -> tuple[QuotedMessage, ...]:
    """Return the messages of a page that have a part which the look-up asks for; all, if it asks
    for every kind. `before`: messages that may hold the calls of the page's first results."""
    names: dict[str, str] = {}
    for stored in before:
        names.update(_read_names(stored))
    quoted = []
    for stored in page:
        names.update(_read_names(stored))
        message = _name_results(quote_message(stored, conversation), stored, names)
        parts = tuple(
            part if _is_asked_for(part, look_up) else part._replace(is_hidden=True)
            for part in message.parts
        )
        if not message.parts or not all(part.is_hidden for part in parts):
            quoted.append(message._replace(parts=parts))
    if look_up.is_about_parts:
        quoted = [message for message in quoted if message.parts]
    return tuple(quoted)


def has_unnamed_result(page: Sequence[StoredMessage]) -> bool:
    """Return whether the page begins with results whose calls are before it."""
    return bool(page) and page[0].message.item.answers is not None


def _read_names(stored: StoredMessage) -> Mapping[str, str]:
    item = stored.message.item
    return read_call_names(item.raw) if item.calls else {}


def _name_results(
    message: QuotedMessage, stored: StoredMessage, names: Mapping[str, str]
) -> QuotedMessage:
    """Give a result the name of its tool: the message itself holds its call's id alone."""
    name = names.get(stored.message.item.answers or "", "")
    if not name:
        return message
    return message._replace(
        parts=tuple(
            part._replace(name=part.name or name) if part.kind == "tool-result" else part
            for part in message.parts
        )
    )


def _is_asked_for(part: QuotedPart, look_up: LookUp) -> bool:
    if part.kind not in look_up.part_kinds:
        return False
    return look_up.tool_name is None or (
        part.kind in ("tool-call", "tool-result") and part.name == look_up.tool_name
    )
