"""The routes that preview what goes upstream, and compare it with what was received."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, NamedTuple

import msgspec
import orjson
from msgspec import Meta, Struct
from msgspec.structs import asdict

from om_proxy.common.errors import BadRequest, StorageError
from om_proxy.common.off_loop import MANY_BYTES, run_off_loop
from om_proxy.common.reasons import Reason, Status
from om_proxy.edge.exchange import is_sdk_retry, require_resource
from om_proxy.edge.rounds.recall_offers import RecallRecord, offer_additions
from om_proxy.engine.turns.preview import Preview, PromptPart, read_prepared
from om_proxy.engine.turns.turn import PreparedTurn, TakenForSideRequest
from om_proxy.management.api.admin_call import AdminCall, AnyCall
from om_proxy.management.api.answers import repair_text
from om_proxy.management.api.requests import ClientRequest, RequestQuery, ThreadQuery
from om_proxy.management.api.route import AdminRoute
from om_proxy.memory.lifecycle.decisions import Activate, Decision, Observe, Reflect, Swap
from om_proxy.memory.transcript.reconcile import Hints
from om_proxy.settings.identity.callers import HISTORY_CHOICES, SCOPE_CHOICES, Caller
from om_proxy.settings.identity.header_values import group_by_name, read_choice, read_timezone
from om_proxy.settings.identity.identity_rules import HISTORY_HEADER, SCOPE_HEADER, TIMEZONE_HEADER
from om_proxy.wire.apis.api import Api, Request, Unreadable, require_recall
from om_proxy.wire.apis.registry import get_api
from om_proxy.wire.server.capacity.work_queues import PREVIEW


class MessageDiff(NamedTuple):
    """The messages that only one of two prompts has, by index."""

    dropped: tuple[int, ...]  # in the prompt as received
    added: tuple[int, ...]  # in the prompt as sent


def diff_messages(received: Sequence[bytes], sent: Sequence[bytes]) -> MessageDiff:
    """Return the difference. A message that stays is the same byte for byte, and no message that
    stays changes its place among the others that stay.

    The prompts are compared from their ends: memory replaces the oldest messages, and of equal ones
    the newest stay.
    """
    places: dict[bytes, deque[int]] = defaultdict(deque)
    for index in range(len(received) - 1, -1, -1):
        places[received[index]].append(index)
    kept: set[int] = set()
    added: list[int] = []
    behind = len(received)  # where the newest message that stays and is compared already stood
    for index in range(len(sent) - 1, -1, -1):
        candidates = places.get(sent[index], deque())
        while candidates and candidates[0] >= behind:
            candidates.popleft()
        if candidates:
            behind = candidates.popleft()
            kept.add(behind)
        else:
            added.append(index)
    dropped = tuple(index for index in range(len(received)) if index not in kept)
    return MessageDiff(dropped, tuple(reversed(added)))


class TextQuery(ThreadQuery, frozen=True, kw_only=True):
    text: Annotated[
        str, Meta(min_length=1, description="The newest message, all that the client sends.")
    ]


class PreviewPart(Struct, frozen=True, kw_only=True):
    """A part of the prompt, in order."""

    kind: Annotated[
        str,
        Meta(
            description=(
                "`instructions` (the client's own), `notes` (how to read them), `pins` (notes that "
                "people wrote), `observations`, `others` (other conversations), `hints` (current "
                "task, suggestion), `hint` (how to go on), `tail` (messages)."
            )
        ),
    ]
    tokens: int
    is_stable: Annotated[
        bool, Meta(description="Stays the same until the next activation, for the prompt cache.")
    ]
    text: Annotated[str | None, Meta(description="What memory adds; `null` for the client's.")]


class DueWork(Struct, frozen=True, kw_only=True):
    """Work that is due before the request goes upstream."""

    kind: Annotated[
        str,
        Meta(
            description=(
                "`activate`: ready notes take their messages' place. `swap`: a ready reflection "
                "takes its notes' place. `observe`, `reflect`: the request would wait for a model."
            )
        ),
    ]
    count: Annotated[
        int | None, Meta(description="Notes that become active, or notes that are condensed.")
    ] = None
    tokens: Annotated[int | None, Meta(description="Tokens of the messages to observe.")] = None
    why: Annotated[
        str | None, Meta(description="Of `activate`: `threshold`, `idle` or `provider`.")
    ] = None


class ShadowPreview(Struct, frozen=True, kw_only=True):
    """The prompt that memory would send if it were not in shadow mode."""

    tokens: int
    dropped: Annotated[
        list[int],
        Meta(description="Messages of the request that it lacks, by place from 0 on."),
    ]
    added: Annotated[
        list[int], Meta(description="Its messages that the request lacks, by place from 0 on.")
    ]
    parts: list[PreviewPart]


class ContextAnswer(Struct, frozen=True, kw_only=True):
    """The prompt that would go upstream. Nothing was stored, and no model was called."""

    status: Annotated[str, Meta(description="As in `x-om-status`.")]
    reason: Annotated[str | None, Meta(description="As in `x-om-reason`.")]
    case: Annotated[
        str | None, Meta(description="How the request compares with what is stored.")
    ] = None
    cut: Annotated[
        int | None,
        Meta(description="Of a fork: the newest message that stays, by number."),
    ] = None
    decisions: list[DueWork] = []
    tokens_received: int | None = None
    tokens_sent: int | None = None
    dropped: Annotated[
        list[int],
        Meta(description="Messages of the request that do not go upstream, by place from 0 on."),
    ] = []
    added: Annotated[
        list[int], Meta(description="Of `messages`, those that the request lacks, by place.")
    ] = []
    parts: list[PreviewPart] = []
    shadow: Annotated[
        ShadowPreview | None,
        Meta(description="In shadow mode: the prompt that would be sent live; else `null`."),
    ] = None
    recall: Annotated[
        str | None,
        Meta(
            description=(
                "As in `x-om-recall`: `offered`, or why the tool for look-ups is not offered; `null`: "
                "it is not for this request."
            )
        ),
    ] = None
    tool: Annotated[
        Any,
        Meta(
            description=(
                "The tool for look-ups, exactly as it would stand behind the request's own tools; "
                "`null` if it is not offered. `tokens_sent` does not count it, as it counts no tool."
            )
        ),
    ] = None
    api: Annotated[str, Meta(description="The API whose words `messages` have.")]
    messages: Annotated[
        list[Any],
        Meta(
            description=(
                "Exactly the messages that would go upstream, in the words of their API: of "
                "`responses`, each is an array of items. Half characters, which no UTF-8 text can "
                "hold, are U+FFFD here."
            )
        ),
    ]


def read_caller(call: AnyCall) -> Caller:
    """Return the caller of the chat request that a preview is about: its thread, and what the
    headers say that a client would send with it. Raises BadRequest."""
    values = group_by_name(call.headers)
    key = call.named_key
    return Caller(
        key,
        key.tenant,
        history=read_choice(values, HISTORY_HEADER, HISTORY_CHOICES) or "auto",
        timezone=read_timezone(values, TIMEZONE_HEADER),
        scope=read_choice(values, SCOPE_HEADER, SCOPE_CHOICES),
        has_named_resource=getattr(call.query, "resource", None) is not None,
    )


async def read_request(call: AnyCall) -> Request:
    """Return the request in a call's body, by the API that its query names. Raise BadRequest if it
    or one of its messages cannot be read. A turn reads messages late, and could not say whether it
    was one of the body's."""
    query, body = call.query, call.body
    parse = partial(_parse_whole, get_api(query.api), body)
    try:
        return await run_off_loop(len(body), parse, MANY_BYTES)
    except (Unreadable, UnicodeDecodeError) as exc:
        field = "input" if query.api == "responses" else "messages"
        raise BadRequest(
            f"the body is not a request of {query.api} that can be read, in UTF-8: write it as "
            f'{{"{field}": [{{"role": …, "content": …}}]}}'
        ) from exc


def _parse_whole(api: Api, body: bytes) -> Request:
    request = api.parse_request(body)
    request.readable.decode()
    for raw in request.messages:
        api.read_item(raw, key=b"")
    return request


def describe_preview(preview: Preview, offer: RecallRecord | None = None) -> ContextAnswer:
    """Describe a preview. `offer`: of the tool for look-ups; None: it is not for this request."""
    turn = preview.turn
    verdict = turn.opened.reconciled.verdict
    difference = _compare_requests(turn.opened.request, preview.request)
    return ContextAnswer(
        status=turn.status.value,
        reason=turn.reason.value if turn.reason else None,
        case=turn.opened.case,
        cut=verdict.cut_seq,
        decisions=[_describe_decision(decision) for decision in preview.decisions],
        tokens_received=turn.receipt["tokens-received"],
        tokens_sent=turn.receipt["tokens-sent"],
        dropped=list(difference.dropped),
        added=list(difference.added),
        parts=_describe_parts(preview.parts),
        shadow=_describe_shadow(preview, preview.shadow) if preview.shadow else None,
        recall=offer.word.value if offer else None,
        tool=_write_tool(turn, offer.tool) if offer and offer.tool else None,
        api=preview.request.api.name,
        messages=_list_messages(preview.request),
    )


def _write_tool(turn: PreparedTurn, name: str) -> msgspec.Raw:
    opened = turn.opened
    has_threads = opened.look_up_scope == "resource"
    return msgspec.Raw(require_recall(opened.request).write_tool(name, has_threads=has_threads))


def _describe_parts(parts: Sequence[PromptPart]) -> list[PreviewPart]:
    return [PreviewPart(**asdict(part) | {"text": repair_text(part.text)}) for part in parts]


def _describe_shadow(preview: Preview, shadow: PreparedTurn) -> ShadowPreview:
    difference = _compare_requests(preview.turn.opened.request, read_prepared(shadow))
    return ShadowPreview(
        tokens=shadow.receipt["tokens-sent"],
        dropped=list(difference.dropped),
        added=list(difference.added),
        parts=_describe_parts(preview.shadow_parts),
    )


def _compare_requests(received: Request, sent: Request) -> MessageDiff:
    return diff_messages(
        [*received.instructions, *received.messages], [*sent.instructions, *sent.messages]
    )


def describe_unchanged(request: Request, reason: Reason) -> ContextAnswer:
    """Describe a request that goes upstream as it came."""
    return ContextAnswer(
        status=Status.OFF.value,
        reason=reason.value,
        api=request.api.name,
        messages=_list_messages(request),
    )


def _describe_decision(decision: Decision) -> DueWork:
    match decision:
        case Activate(count=count, why=why):
            return DueWork(kind="activate", count=count, why=why)
        case Swap():
            return DueWork(kind="swap")
        case Observe(tokens=tokens):
            return DueWork(kind="observe", tokens=tokens)
        case Reflect(entries=entries):
            return DueWork(kind="reflect", count=entries)


def _list_messages(request: Request) -> list[msgspec.Raw]:
    """Return all messages of a request, each with its JSON as it is written there."""
    return [msgspec.Raw(raw) for raw in (*request.instructions, *request.messages)]


async def preview_text(call: AdminCall[TextQuery, None]) -> ContextAnswer:
    """Preview the request of a client that sends nothing but its newest message."""
    query = call.query
    memory = await call.services.memories.load_known(call.named_key)
    api = get_api(memory.newest_api or "chat")
    messages = [{"role": "user", "content": query.text}]
    body = api.write_question({"model": memory.model, "messages": messages})
    caller = replace(read_caller(call), history="new")
    return await _preview(call, api.parse_request(orjson.dumps(body)), caller)


async def preview_request(call: AdminCall[RequestQuery, bytes]) -> ContextAnswer:
    """Preview a whole request."""
    return await _preview(call, await read_request(call), read_caller(call))


async def _preview(call: AnyCall, request: Request, caller: Caller) -> ContextAnswer:
    config = call.config
    if config.is_side_request(request):
        return describe_unchanged(request, Reason.SIDE_REQUEST)
    if not request.messages:
        return describe_unchanged(request, Reason.NO_MESSAGES)
    api = request.api.name
    upstream = config.require_upstream(request.model, api)
    context = config.policy.context_of_request(
        request.model, call.named_key.resource, upstream, (), api=api
    )
    if not context.effective.memory.enabled:
        return describe_unchanged(request, Reason.DISABLED)
    require_resource(caller, context)
    hints = Hints(history=caller.history, sdk_retry=is_sdk_retry(call.headers))
    offer, _, context = offer_additions(
        call.services.recall_offers, request, call.named_key.tenant, upstream.name, context
    )
    try:
        found = await call.services.previewer.preview(
            caller, request, context, hints, offer.tool if offer else None
        )
    except TakenForSideRequest as exc:
        return describe_unchanged(request, exc.reason)
    except msgspec.DecodeError as exc:  # the request was read before
        raise StorageError(
            "a stored message of the thread is no message of a chat: `om-proxy store verify` names it, "
            "and `om-proxy store verify --repair` keeps its text as one"
        ) from exc
    if offer is not None and not await call.services.recall_offers.can_look_up(found.turn):
        offer = None
    return describe_preview(found, offer)


ROUTES = (
    AdminRoute(
        method="GET",
        path="/threads/{thread}/context",
        summary=(
            "Preview what goes upstream for a client that sends one new message and nothing else. "
            "Nothing is stored, and no model is called."
        ),
        handler=preview_text,
        work=PREVIEW,
        query=TextQuery,
        answer=ContextAnswer,
        is_text=True,
    ),
    AdminRoute(
        method="POST",
        path="/threads/{thread}/context",
        summary=(
            "Preview what goes upstream for a request of a client, and why. The headers X-OM-History, "
            "X-OM-Scope and X-OM-Timezone count as they do there. Nothing is stored, and no model "
            "is called."
        ),
        handler=preview_request,
        work=PREVIEW,
        query=RequestQuery,
        body=ClientRequest,
        answer=ContextAnswer,
        is_text=True,
        is_change=False,
    ),
)
