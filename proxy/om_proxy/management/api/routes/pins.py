"""The routes of the notes that people pin by hand."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from om_proxy.management.api.answers import HiddenText, UnixSeconds, repair_text
from om_proxy.management.api.requests import AdminCall, NoteText, ResourceQuery
from om_proxy.management.api.route import AdminRoute
from om_proxy.management.api.services import AdminServices
from om_proxy.management.steering.pin_board import PinsView
from om_proxy.memory.model import Pin


class PinnedNote(Struct, frozen=True, kw_only=True):
    """A note that a person wrote by hand."""

    id: int
    text: HiddenText
    tokens: int
    at: UnixSeconds
    by: Annotated[
        str,
        Meta(description="Who wrote it, in the words of the audit's `who`."),
    ]


class PinList(Struct, frozen=True, kw_only=True):
    """The pins of a thread, or of the log that it shares, in the order in which they are."""

    version: int
    items: list[PinnedNote]
    cursor: str | None = None


def describe_pin(pin: Pin) -> PinnedNote:
    return PinnedNote(
        id=pin.id, text=repair_text(pin.text) or "", tokens=pin.tokens, at=pin.at, by=pin.by
    )


def describe_pins(view: PinsView) -> PinList:
    return PinList(version=view.memory.revision, items=[describe_pin(pin) for pin in view.pins])


async def list_pins(services: AdminServices, call: AdminCall) -> PinList:
    return describe_pins(await services.pin_board.list_pins(call.named_key))


async def add_pin(services: AdminServices, call: AdminCall) -> PinList:
    assert isinstance(call.body, NoteText)
    view = await services.pin_board.add(
        call.named_key,
        call.body.text,
        call.visitor.who,
        expected_version=call.expected_version,
    )
    return describe_pins(view)


async def edit_pin(services: AdminServices, call: AdminCall) -> PinList:
    assert isinstance(call.body, NoteText)
    view = await services.pin_board.edit(
        call.named_key,
        call.named_entry_id,
        call.body.text,
        call.visitor.who,
        expected_version=call.expected_version,
    )
    return describe_pins(view)


async def remove_pin(services: AdminServices, call: AdminCall) -> PinList:
    view = await services.pin_board.remove(
        call.named_key, call.named_entry_id, expected_version=call.expected_version
    )
    return describe_pins(view)


async def list_resource_pins(services: AdminServices, call: AdminCall) -> PinList:
    return await list_pins(services, call)


async def add_resource_pin(services: AdminServices, call: AdminCall) -> PinList:
    return await add_pin(services, call)


async def edit_resource_pin(services: AdminServices, call: AdminCall) -> PinList:
    return await edit_pin(services, call)


async def remove_resource_pin(services: AdminServices, call: AdminCall) -> PinList:
    return await remove_pin(services, call)


ROUTES = (
    AdminRoute(
        method="GET",
        path="/threads/{thread}/pins",
        summary="List the notes that people pinned to a thread, or to the log that it shares.",
        handler=list_pins,
        answer=PinList,
    ),
    AdminRoute(
        method="POST",
        path="/threads/{thread}/pins",
        summary=(
            "Pin a note: it stands before all other notes, is never condensed, and stays when the "
            "conversation goes back. At most 50, and 4 000 tokens together."
        ),
        handler=add_pin,
        body=NoteText,
        answer=PinList,
        codes=("om_bad_text", "om_too_many_pins"),
    ),
    AdminRoute(
        method="PATCH",
        path="/threads/{thread}/pins/{id}",
        summary="Give a pinned note other words.",
        handler=edit_pin,
        body=NoteText,
        answer=PinList,
        codes=("om_bad_text", "om_too_many_pins"),
    ),
    AdminRoute(
        method="DELETE",
        path="/threads/{thread}/pins/{id}",
        summary="Take a pinned note away.",
        handler=remove_pin,
        answer=PinList,
    ),
    AdminRoute(
        method="GET",
        path="/resources/{resource}/pins",
        summary="List the notes that people pinned to the log that threads of a resource share.",
        handler=list_resource_pins,
        query=ResourceQuery,
        answer=PinList,
    ),
    AdminRoute(
        method="POST",
        path="/resources/{resource}/pins",
        summary="Pin a note to the log that threads of a resource share.",
        handler=add_resource_pin,
        query=ResourceQuery,
        body=NoteText,
        answer=PinList,
        codes=("om_bad_text", "om_too_many_pins"),
    ),
    AdminRoute(
        method="PATCH",
        path="/resources/{resource}/pins/{id}",
        summary="Give a note pinned to a resource other words.",
        handler=edit_resource_pin,
        query=ResourceQuery,
        body=NoteText,
        answer=PinList,
        codes=("om_bad_text", "om_too_many_pins"),
    ),
    AdminRoute(
        method="DELETE",
        path="/resources/{resource}/pins/{id}",
        summary="Take a note pinned to a resource away.",
        handler=remove_resource_pin,
        query=ResourceQuery,
        answer=PinList,
    ),
)
