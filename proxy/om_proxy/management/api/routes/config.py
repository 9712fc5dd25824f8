"""The routes that show the settings in force, as `om-proxy check --all` prints them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from om_proxy import __version__
from om_proxy.management.api.admin_call import AdminCall
from om_proxy.management.api.requests import Query, ThreadQuery
from om_proxy.management.api.route import AdminRoute
from om_proxy.settings.config import (
    THREAD_ORIGIN,
    SettingLine,
    Settings,
    list_effective_settings,
    list_settings,
    list_warnings,
)
from om_proxy.settings.config.annotations import find_words
from om_proxy.storage.contract.status import StoreStatus
from om_proxy.storage.promises import limit_search, list_promises, try_describe

# a caller sees how its own memory works; the rest is the operator's
_CALLERS_SECTIONS = ("memory.", "context.")
# any part of a setting's name
_OPERATORS_NAMES = {"instruction", "prompt", "api_base", "api_key", "model_settings"}


class ConfigQuery(Query, frozen=True, kw_only=True):
    model: Annotated[
        str | None, Meta(description="The actor's model, as clients name it: settings by model.")
    ] = None
    resource: Annotated[
        str | None, Meta(description="The resource, as clients name it: settings by resource.")
    ] = None


class Setting(Struct, frozen=True, kw_only=True):
    """A setting in force."""

    name: str
    value: Annotated[str, Meta(description="As the file writes it; a secret is `(set)`.")]
    origin: Annotated[
        str | None,
        Meta(description="Where it was set, or `default`. `null` without the admin token."),
    ]
    words: Annotated[
        str | None,
        Meta(description="What it means, as the shipped configuration file says it."),
    ]


class StoreAnswer(Struct, frozen=True, kw_only=True):
    """The promises of the store."""

    kind: str
    durable: Annotated[
        str,
        Meta(description="What a stored turn survives: `fsync`, a power cut; `process`, nothing."),
    ]
    encrypted: Annotated[bool, Meta(description="Whether texts are.")]
    separate_keys: Annotated[
        bool, Meta(description="Whether their keys live in a key store (`storage.keys_url`).")
    ]
    has_index: Annotated[
        bool,
        Meta(
            description="Whether it can keep an index of messages; else searches read the newest."
        ),
    ]
    erases: Annotated[
        str,
        Meta(
            description="When forgotten bytes leave the database: `now`, unless a reader holds them."
        ),
    ]
    schema_version: int
    promises: Annotated[
        list[str], Meta(description="The same in sentences, what is not promised last.")
    ]


class ConfigAnswer(Struct, frozen=True, kw_only=True):
    """The settings in force for a model and a resource."""

    program_version: str
    is_complete: Annotated[
        bool,
        Meta(description="Without the admin token, only the settings of memory are shown."),
    ]
    items: list[Setting]
    store: Annotated[
        StoreAnswer | None,
        Meta(description="`null` without the admin token, or while the store cannot be asked."),
    ]
    warnings: Annotated[
        list[str],
        Meta(description="Settings that work badly or do nothing; with the admin token only."),
    ]


class ThreadSettings(Struct, frozen=True, kw_only=True):
    """The settings of memory in force for one thread."""

    version: int
    items: list[Setting]


def is_for_callers(line: SettingLine) -> bool:
    """Return whether a caller without the admin token may see the setting."""
    is_about_memory = line.name.startswith(_CALLERS_SECTIONS)
    return is_about_memory and _OPERATORS_NAMES.isdisjoint(line.name.split("."))


async def show_config(call: AdminCall[ConfigQuery, None]) -> ConfigAnswer:
    query = call.query
    settings = call.config.settings
    is_admin = call.visitor.is_admin
    lines = list_settings(settings, query.model, query.resource)
    return ConfigAnswer(
        program_version=__version__,
        is_complete=is_admin,
        items=_describe_settings(lines, is_admin=is_admin),
        store=await _describe_store(call.services.store, settings) if is_admin else None,
        warnings=(
            [*call.config.open_keys, *list_warnings(settings, query.model, query.resource)]
            if is_admin
            else []
        ),
    )


async def _describe_store(store: StoreStatus, settings: Settings) -> StoreAnswer | None:
    promise = await try_describe(store)
    promise = promise and limit_search(promise, settings.storage.search)
    return promise and StoreAnswer(**promise._asdict(), promises=[*list_promises(promise)])


async def show_thread_settings(call: AdminCall[ThreadQuery, None]) -> ThreadSettings:
    memory = await call.services.memories.load_known(call.named_key)
    effective = call.services.policies.current.thread_settings(memory)
    lines = list_effective_settings(call.config.settings, effective)
    return ThreadSettings(
        version=memory.revision,
        items=_describe_settings(
            [line for line in lines if line.name.startswith(_CALLERS_SECTIONS)],
            is_admin=call.visitor.is_admin,
        ),
    )


def _describe_settings(lines: list[SettingLine], *, is_admin: bool) -> list[Setting]:
    """Describe the settings that the visitor may see. Without the admin token, an origin is shown
    only if it is the thread's own: others name the operator's files."""
    return [
        Setting(
            name=line.name,
            value=line.value,
            origin=line.origin if is_admin or line.origin == THREAD_ORIGIN else None,
            words=find_words(line.name),
        )
        for line in lines
        if is_admin or is_for_callers(line)
    ]


ROUTES = (
    AdminRoute(
        method="GET",
        path="/config",
        summary="Show the settings in force for a model and a resource.",
        handler=show_config,
        query=ConfigQuery,
        answer=ConfigAnswer,
        is_for_one_resource=True,
    ),
    AdminRoute(
        method="GET",
        path="/threads/{thread}/settings",
        summary="Show the settings of memory in force for a thread, and which are its own.",
        handler=show_thread_settings,
        answer=ThreadSettings,
    ),
)
