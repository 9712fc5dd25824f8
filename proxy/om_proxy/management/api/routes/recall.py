"""The route that looks up original messages as the actor model's tool does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from om_proxy.common.apis import ApiName
from om_proxy.common.errors import BadRequest, NotFound, StorageError
from om_proxy.common.off_loop import run_in_turn
from om_proxy.engine.recall.performing import LookUpResult, ReadingRights
from om_proxy.management.api.admin_call import AdminCall, AdminServices
from om_proxy.management.api.answers import HiddenText, UnixSeconds, repair_text
from om_proxy.management.api.requests import MAX_NUMBER, ThreadQuery
from om_proxy.management.api.route import AdminRoute
from om_proxy.memory.dates import find_zone
from om_proxy.memory.model import Key
from om_proxy.memory.recall.arguments import LookUp, LookUpFault, read_look_up
from om_proxy.memory.recall.clipping import cut_excerpt
from om_proxy.memory.recall.message_page import MessagePage, PartPiece
from om_proxy.memory.recall.quoted_message import QuotedMessage
from om_proxy.memory.recall.thread_list import ThreadListPage
from om_proxy.memory.recall.words import query_words
from om_proxy.settings.identity.callers import choose_reading_scope
from om_proxy.wire.server.capacity.work_queues import SEARCH

MAX_ANSWER_TOKENS = 2_000
TIMEOUT_S = 10.0
MAX_EXCERPT_CHARS = 300

FIRST_WORDS = Meta(description="Of a search: of the thread's first question, if it has no title.")

_Text = str | None
_Number = Annotated[int, Meta(ge=-MAX_NUMBER, le=MAX_NUMBER)] | str | None


class RecallBody(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The parameters of the actor model's tool (docs/contributing/recall.md#the-tool)."""

    mode: Literal["search", "messages", "threads"] | None = None
    query: _Text = None
    cursor: Annotated[_Number, Meta(description="One message id, such as `m12`.")] = None
    thread_id: Annotated[
        _Text, Meta(description="The label of another conversation of the resource, or `current`.")
    ] = msgspec.field(default=None, name="threadId")
    page: _Number = None
    limit: _Number = None
    detail: Literal["low", "high"] | None = None
    part_index: _Number = msgspec.field(default=None, name="partIndex")
    char_offset: _Number = msgspec.field(default=None, name="charOffset")
    before: _Text = None
    after: _Text = None
    anchor: Literal["start", "end"] | None = None
    part_type: _Text = msgspec.field(default=None, name="partType")
    tool_name: _Text = msgspec.field(default=None, name="toolName")
    superseded: Annotated[
        bool, Meta(description="Read what was taken back, and replies that broke off, too.")
    ] = False


class MarkedPlace(Struct, frozen=True, kw_only=True):
    """A word in a text, by characters (code points)."""

    start: int
    end: Annotated[int, Meta(description="Behind its last character.")]


class RecalledItem(Struct, frozen=True, kw_only=True):
    """One message or thread that an answer shows."""

    tenant: str
    resource: str
    thread: str
    label: Annotated[str, Meta(description="The thread's name in the log and in the notes.")]
    title: HiddenText
    first_words: Annotated[HiddenText, FIRST_WORDS] = None
    seq: Annotated[int | None, Meta(description="Of a message: its number in the thread.")]
    role: str | None
    api: Annotated[ApiName | None, Meta(description="Of a message: the API that it came by.")]
    at: UnixSeconds
    state: Annotated[
        str | None, Meta(description="Of a message: `live`, `superseded` or `interrupted`.")
    ]
    excerpt: Annotated[
        HiddenText,
        Meta(
            description=(
                "About 300 characters of its text: of a search, those around the words found; else "
                "the first."
            )
        ),
    ]
    marks: Annotated[
        list[MarkedPlace], Meta(description="Where `excerpt` has words of the search, in order.")
    ] = []
    score: Annotated[float | None, Meta(description="Of a search; higher fits better.")]
    messages: Annotated[int | None, Meta(description="Of a thread: its messages.")]


class RecallAnswer(Struct, frozen=True, kw_only=True):
    """The result of a look-up: as the model would read it, and as JSON."""

    mode: str
    messages: Annotated[HiddenText, Meta(description="The text, of the mode `messages`.")]
    results: Annotated[HiddenText, Meta(description="The text, of the mode `search`.")]
    threads: Annotated[HiddenText, Meta(description="The text, of the mode `threads`.")]
    count: Annotated[int, Meta(description="How many messages or threads the text shows.")]
    cursor: str | None
    page: int
    limit: int
    has_next_page: bool = msgspec.field(name="hasNextPage")
    has_prev_page: bool = msgspec.field(name="hasPrevPage")
    has_more: Annotated[bool, Meta(description="Whether there is more, in this direction.")] = (
        msgspec.field(name="hasMore")
    )
    truncated: Annotated[bool, Meta(description="Whether the text cuts a message or a part.")]
    char_offset: Annotated[
        int | None, Meta(description="Of one part: where to go on; `null` at its end.")
    ] = msgspec.field(name="charOffset")
    items: list[RecalledItem]


async def recall(call: AdminCall[ThreadQuery, RecallBody]) -> RecallAnswer:
    key, body = call.named_key, call.body
    memory = await call.services.look_ups.memories.load_known(key)
    zone = find_zone(
        memory.timezone, call.config.settings.effective(None, key.resource).memory.timezone
    )
    only = call.visitor.confined_to
    is_for_one_thread = only is not None and only.only_thread is not None
    scope = choose_reading_scope("resource", is_for_one_thread=is_for_one_thread)
    rights = ReadingRights(key, scope, zone, MAX_ANSWER_TOKENS, with_superseded=body.superseded)
    fields = {name: value for name, value in msgspec.to_builtins(body).items() if value is not None}
    try:
        look_up = read_look_up(fields, zone)
        async with asyncio.timeout(TIMEOUT_S):
            conversations = call.services.look_ups.open_conversations(rights)
            result = await call.services.look_ups.perform(look_up, rights, conversations)
    except LookUpFault as fault:
        raise (NotFound(fault.text) if fault.is_unknown else BadRequest(fault.text)) from fault
    except TimeoutError as exc:
        raise StorageError("the store took too long; try again, or ask for less") from exc
    # a long text takes milliseconds
    return await run_in_turn(partial(_describe_result, result, look_up, call.services, key))


def _describe_result(
    result: LookUpResult, look_up: LookUp, services: AdminServices, key: Key
) -> RecallAnswer:
    page, shown, text = look_up.page, result.shown, repair_text(result.text)
    words = query_words(look_up.query) if result.mode == "search" else []
    has_more = (isinstance(shown, MessagePage) and shown.has_more) or (
        isinstance(shown, ThreadListPage) and shown.next_at is not None
    )
    is_backward = page < 0
    offset = (
        shown.end if isinstance(shown, PartPiece) and shown.end < shown.readable_chars else None
    )
    items = (
        _describe_threads(shown, result)
        if isinstance(shown, ThreadListPage)
        else _describe_messages(result, services, key, words)
    )
    return RecallAnswer(
        mode=result.mode,
        messages=text if result.mode == "messages" else None,
        results=text if result.mode == "search" else None,
        threads=text if result.mode == "threads" else None,
        count=result.found,
        cursor=result.messages[-1].id if result.mode == "messages" and result.messages else None,
        page=page,
        limit=look_up.limit,
        has_next_page=has_more if not is_backward else page < -1,
        has_prev_page=has_more if is_backward else page > 1,
        has_more=has_more or offset is not None,
        truncated=offset is not None or "(cut; partIndex=" in result.text,
        char_offset=offset,
        items=items,
    )


def _describe_messages(
    result: LookUpResult, services: AdminServices, key: Key, words: Sequence[str]
) -> list[RecalledItem]:
    scores = result.scores or (None,) * len(result.messages)
    return [
        describe_message(
            message,
            result.keys.get(message.label, key),
            services.look_ups.memories.label,
            score,
            words,
        )
        for message, score in zip(result.messages, scores, strict=True)
    ]


def describe_message(
    message: QuotedMessage,
    key: Key,
    label: Callable[[Key], str],
    score: float | None,
    words: Sequence[str],
    first_words: str | None = None,
) -> RecalledItem:
    text = "\n".join(part.text or part.name for part in message.parts)
    excerpt = cut_excerpt(repair_text(text) or "", words, MAX_EXCERPT_CHARS)
    return RecalledItem(
        tenant=key.tenant,
        resource=key.resource,
        thread=key.thread,
        label=label(key),
        title=repair_text(message.title),
        first_words=repair_text(first_words),
        seq=message.seq,
        role=repair_text(message.role),
        api=message.api,
        at=message.at,
        state=message.state,
        excerpt=excerpt.text,
        marks=[MarkedPlace(start=start, end=end) for start, end in excerpt.marks],
        score=score,
        messages=None,
    )


def _describe_threads(listed: ThreadListPage, result: LookUpResult) -> list[RecalledItem]:
    return [
        RecalledItem(
            tenant=result.keys[thread.label].tenant,
            resource=result.keys[thread.label].resource,
            thread=result.keys[thread.label].thread,
            label=thread.label,
            title=repair_text(thread.title),
            seq=None,
            role=None,
            api=None,
            at=thread.active_at,
            state=None,
            excerpt=None,
            score=None,
            messages=thread.messages,
        )
        for thread in listed.threads
    ]


ROUTES = (
    AdminRoute(
        method="POST",
        path="/threads/{thread}/recall",
        summary=(
            "Look up original messages as the actor model does: search those of the thread's "
            "resource, read them in order, or list its threads."
        ),
        handler=recall,
        work=SEARCH,
        body=RecallBody,
        answer=RecallAnswer,
        is_change=False,
        is_text=True,
    ),
)
