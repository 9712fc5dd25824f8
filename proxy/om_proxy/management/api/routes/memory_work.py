"""The routes by which people ask for memory work."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

from om_proxy.edge.exchange import CALLER_CREDENTIAL_HEADERS
from om_proxy.engine.policy import MemoryContext
from om_proxy.management.api.access import drop_admin_token
from om_proxy.management.api.admin_call import AdminCall, AnyCall
from om_proxy.management.api.requests import NoChange, ThreadQuery
from om_proxy.management.api.route import AdminRoute
from om_proxy.management.api.routes.notes import Entry, describe_entry
from om_proxy.management.api.routes.threads import ThreadStatus, describe_thread
from om_proxy.management.work_requests import BegunWork, FindContext
from om_proxy.memory.model import Memory
from om_proxy.wire.server.capacity.work_queues import MEMORY_WORK

MAX_WAIT_S = 60
MAX_INSTRUCTION_CHARS = 4_000

WaitSeconds = Annotated[
    float, Meta(ge=0, le=MAX_WAIT_S, description="Seconds to wait for the end: 0 to 60.")
]


class ObserveRequest(Struct, forbid_unknown_fields=True, frozen=True):
    """The request to observe messages."""

    wait: WaitSeconds = 0
    all: Annotated[bool, Meta(description="The whole backlog, batch by batch; else one batch.")] = (
        False
    )


class ReflectRequest(Struct, forbid_unknown_fields=True, frozen=True):
    """How the notes are to be condensed."""

    wait: WaitSeconds = 0
    instruction: Annotated[
        Annotated[str, Meta(max_length=MAX_INSTRUCTION_CHARS)] | None,
        Meta(description="For the reflector, beside the configured instruction."),
    ] = None


class WorkAnswer(Struct, frozen=True, kw_only=True):
    """Work that has ended, or has begun (202)."""

    version: int
    cycle_id: Annotated[str, Meta(description="Names the work in the events.")] = field(
        name="cycleId"
    )
    is_done: bool
    generation: int
    notes: Annotated[
        list[Entry], Meta(description="The chunks or the reflection that the work has made.")
    ]


class ActivationAnswer(Struct, frozen=True, kw_only=True):
    """The chunks that became active."""

    version: int
    generation: int
    activated: Annotated[list[int], Meta(description="Ids of the chunks, as they were.")]
    log_tokens: int
    pending_tokens: int


def describe_work(work: BegunWork) -> WorkAnswer:
    return WorkAnswer(
        version=work.memory.revision,
        cycle_id=work.cycle_id,
        is_done=work.has_ended,
        generation=work.memory.log.generation,
        notes=[describe_entry(entry) for entry in work.made],
    )


def bring_context(call: AnyCall) -> FindContext:
    """Return the function that finds what an inherited model needs in this request: the credential
    that a client's request with the same headers would send. The admin token is none."""

    def find_context(memory: Memory) -> MemoryContext | None:
        apis = (memory.newest_api,) if memory.newest_api else call.config.settings.identity.apis
        servers = ((api, call.config.find_upstream(memory.model, api)) for api in apis)
        api, upstream = next((pair for pair in servers if pair[1]), ("chat", None))
        if memory.model is None or upstream is None:
            return None
        own = drop_admin_token(call.headers, call.config)
        credential = tuple(
            (name, value)
            for name, value in call.config.select_admitted_headers(own, upstream, api)
            if name in CALLER_CREDENTIAL_HEADERS
        )
        if call.visitor.is_admin and not credential:
            return None
        return call.config.policy.context_of_request(
            memory.model, memory.key.resource, upstream, credential, api=api
        )

    return find_context


async def observe(call: AdminCall[ThreadQuery, ObserveRequest]) -> WorkAnswer:
    work = await call.services.work_requests.observe(
        call.named_key,
        bring_context(call),
        everything=call.body.all,
        wait_s=call.body.wait,
        expected_version=call.expected_version,
    )
    return describe_work(work)


async def reflect(call: AdminCall[ThreadQuery, ReflectRequest]) -> WorkAnswer:
    work = await call.services.work_requests.reflect(
        call.named_key,
        bring_context(call),
        instruction=call.body.instruction,
        wait_s=call.body.wait,
        expected_version=call.expected_version,
    )
    return describe_work(work)


async def activate(call: AdminCall[ThreadQuery, NoChange]) -> ActivationAnswer:
    work = await call.services.work_requests.activate(
        call.named_key, expected_version=call.expected_version
    )
    memory = work.memory
    return ActivationAnswer(
        version=memory.revision,
        generation=memory.log.generation,
        activated=[chunk.id for chunk in work.made],
        log_tokens=memory.log.tokens,
        pending_tokens=memory.pending_tokens,
    )


async def park(call: AdminCall[ThreadQuery, NoChange]) -> ThreadStatus:
    return await _set_parked(call, parked=True)


async def revive(call: AdminCall[ThreadQuery, NoChange]) -> ThreadStatus:
    return await _set_parked(call, parked=False)


async def _set_parked(call: AnyCall, *, parked: bool) -> ThreadStatus:
    memory = await call.services.work_requests.park(
        call.named_key, parked=parked, expected_version=call.expected_version
    )
    return await describe_thread(call.services, memory)


ROUTES = (
    AdminRoute(
        method="POST",
        path="/threads/{thread}/observe",
        summary=(
            "Have messages observed now, below the thresholds too. The work goes on if nobody waits "
            "for it."
        ),
        handler=observe,
        work=MEMORY_WORK,
        body=ObserveRequest,
        answer=WorkAnswer,
        codes=("om_nothing_to_observe", "om_no_model"),
        may_go_on=True,
    ),
    AdminRoute(
        method="POST",
        path="/threads/{thread}/reflect",
        summary=(
            "Have all notes of the log condensed now. The result takes their place if it is shorter."
        ),
        handler=reflect,
        work=MEMORY_WORK,
        body=ReflectRequest,
        answer=WorkAnswer,
        codes=("om_unproductive", "om_no_model"),
        may_go_on=True,
    ),
    AdminRoute(
        method="POST",
        path="/threads/{thread}/activate",
        summary="Make all chunks active that may be: the next prompt shows them for messages.",
        handler=activate,
        work=MEMORY_WORK,
        body=NoChange,
        answer=ActivationAnswer,
    ),
    AdminRoute(
        method="POST",
        path="/threads/{thread}/park",
        summary="Give a thread up: nothing of it is observed by itself.",
        handler=park,
        body=NoChange,
        answer=ThreadStatus,
    ),
    AdminRoute(
        method="POST",
        path="/threads/{thread}/revive",
        summary="Take a thread up again that was given up, with no failure on record.",
        handler=revive,
        body=NoChange,
        answer=ThreadStatus,
    ),
)
