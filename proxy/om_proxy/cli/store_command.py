"""Run the commands that read or change stored memories. They ask the handlers of the admin API, on
the store itself. A server may run at the same time: it sees every change."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from msgspec import Struct, ValidationError, convert
from msgspec.structs import fields

from om_proxy.agents.embedding import EmbeddingModels
from om_proxy.agents.model_access.direct import Direct
from om_proxy.agents.model_access.litellm_adapter import LiteLLM
from om_proxy.agents.model_access.llm import Routed
from om_proxy.agents.models import TokenCounter
from om_proxy.app.composition import create_background, create_committer, create_message_vectors
from om_proxy.app.management import create_admin_services
from om_proxy.app.store_opening import open_store
from om_proxy.cli.answers import print_json
from om_proxy.cli.doctor.store import find_database
from om_proxy.cli.exit_status import DONE
from om_proxy.cli.thread_choice import find_tenant, find_thread
from om_proxy.common.errors import UsageError
from om_proxy.edge.edge_config import EdgeConfig
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.engine.policy import PolicyInForce
from om_proxy.management.api.access import Visitor
from om_proxy.management.api.admin_call import AdminCall, AdminServices, AnyCall
from om_proxy.management.api.answers import StreamedAnswer
from om_proxy.management.api.requests import Query, describe_fault
from om_proxy.management.api.route import ADMIN_ROOT, AdminRoute, Handler, answer_route
from om_proxy.management.api.route_table import ADMIN_ROUTES, find_route
from om_proxy.management.audit_log import AuditLog
from om_proxy.memory.model import Key
from om_proxy.observability.facts import Facts
from om_proxy.observability.ledger_writer import LedgerWriter
from om_proxy.observability.logs import configure_log
from om_proxy.settings.config import Settings, WatchedSettings, load
from om_proxy.settings.identity.keyed_hashes import label_thread
from om_proxy.storage.base import Store
from om_proxy.storage.contract.status import StoreStatus
from om_proxy.wire.upstream import AiohttpTransport

COMMAND_CALLER = "cli"  # in the audit
_Answer = TypeVar("_Answer")
_Struct = TypeVar("_Struct", bound=Struct)


@dataclass(frozen=True, slots=True, eq=False)
class LocalApi:
    """The admin API's handlers, on a store that this process has opened. Who can open the store can
    read all of it, so `server.admin_reads` hides nothing here."""

    store: Store
    services: AdminServices
    config: EdgeConfig

    async def ask(
        self,
        handler: Callable[[Any], Awaitable[_Answer]],
        options: argparse.Namespace,
        *,
        key: Key | None = None,
        tenant: str | None = None,
        query: Query | None = None,
        body: Any = None,
        path_names: Mapping[str, str] = {},
    ) -> _Answer:
        """Ask a handler. A query and a body that are not given are read from the options, and so
        are the id of an entry and the version that the thread must have. `key`: what the route's
        path names; `tenant`: whose threads, where it names nothing; None: those of all tenants."""
        route = find_route(cast(Handler, handler))
        if body is None and route.body is not None:
            body = read_options(route.body, options)
        call: AnyCall = AdminCall(
            services=self.services,
            visitor=Visitor(key.tenant if key else tenant, is_admin=True, who=COMMAND_CALLER),
            query=query or read_options(route.query, options),
            body=body,
            key=key,
            path_names=path_names,
            entry_id=getattr(options, "id", None),
            expected_version=getattr(options, "if_version", None),
            config=self.config,
        )
        return cast(_Answer, await answer_route(route, call))


def read_options(struct_type: type[_Struct], options: argparse.Namespace) -> _Struct:
    """Return a query or a body. An option has the name of its field. Raise BadRequest."""
    values = {
        field.encode_name: value
        for field in fields(struct_type)
        if (value := getattr(options, field.name, None)) is not None
    }
    try:
        return convert(values, struct_type)
    except ValidationError as exc:
        raise describe_fault(exc, "the request", struct_type) from exc


async def ask_and_print(
    asks: str, print_answer: Callable[[Any], None], api: LocalApi, options: argparse.Namespace
) -> int:
    """Ask a route, as in `GET /threads`, about the thread or the tenant that the options name, and
    print its answer."""
    route, _ = match_route(*asks.split(" "))
    key = tenant = None
    if route.names_thread:
        key = await find_thread(api.store, options)
    elif options.tenant is not None:
        tenant = await find_tenant(api.store, options.tenant)
    answer = await api.ask(route.handler, options, key=key, tenant=tenant)
    assert not isinstance(answer, StreamedAnswer)  # no command but `api` asks such a route
    print_json(answer) if options.json else print_answer(answer)
    return DONE


def match_route(method: str, path: str) -> tuple[AdminRoute, Mapping[str, str]]:
    """Return the route, and the names in the path as they stand there. Raise UsageError if there is
    none."""
    words = path.removeprefix(ADMIN_ROOT).split("/")
    for route in ADMIN_ROUTES:
        pattern = route.path.split("/")
        pairs = list(zip(pattern, words, strict=False))
        is_match = len(pattern) == len(words) and all(
            name == word or (name.startswith("{") and word) for name, word in pairs
        )
        if is_match and route.method == method:
            return route, {name[1:-1]: word for name, word in pairs if name.startswith("{")}
    raise UsageError(f"there is no route {method} {path}: `om-proxy api` lists those there are")


def run_with_api(
    options: argparse.Namespace,
    work: Callable[[LocalApi, argparse.Namespace], Coroutine[Any, Any, int]],
    *,
    create: bool = False,
    finds_due_work: bool = True,
) -> int:
    """Run `work` on the store that the configuration names, and return its exit status. `create`: as
    in `run_with_store`; `finds_due_work`: as in `Memories`."""

    async def compose_and_work(
        options: argparse.Namespace, settings: Settings, store: Store
    ) -> int:
        async with compose_api(settings, store, finds_due_work) as api:
            return await work(api, options)

    return run_with_store(options, compose_and_work, create=create)


@asynccontextmanager
async def compose_api(
    settings: Settings, store: Store, finds_due_work: bool = True
) -> AsyncIterator[LocalApi]:
    """Compose the performers on this store, and close them at the end. Work that was asked for and
    has not ended is given up."""
    secret = await store.secret()
    policies = PolicyInForce(WatchedSettings(settings))
    token_counter, ledger_writer, facts = TokenCounter(), LedgerWriter(store), Facts()
    ledger_writer.subscribe_to(facts)
    memories = Memories(
        store,
        policies,
        label=partial(label_thread, secret),
        facts=facts,
        count_tokens=token_counter.tokens,
        finds_due_work=finds_due_work,
    )
    transport, litellm = AiohttpTransport(), LiteLLM()
    embedding_models = EmbeddingModels(litellm)
    background = create_background(
        memories,
        policies,
        Routed(Direct(transport), litellm),
        token_counter,
        concurrency=settings.background.concurrency,
    )
    committer = create_committer(memories, background, token_counter, secret)
    services = create_admin_services(
        memories,
        policies,
        background,
        token_counter,
        secret,
        committer,
        AuditLog(store, partial(label_thread, secret)),
        ledger_writer=ledger_writer,
        vectors=create_message_vectors(memories, embedding_models, committer),
    )
    try:
        yield LocalApi(
            store, services, EdgeConfig.from_settings(settings, policies.current, os.environ)
        )
    finally:
        await background.close()
        await ledger_writer.close()
        await services.audit_log.close()
        await transport.aclose()
        embedding_models.close()
        litellm.close()


def run_with_store(
    options: argparse.Namespace,
    work: Callable[[argparse.Namespace, Settings, Store], Coroutine[Any, Any, int]],
    *,
    create: bool = False,
    moves_keys: bool = False,
) -> int:
    """Run `work` on the store that the configuration names, close the store, and return the exit
    status of the work. `create`: make a store that is missing; `moves_keys`: as in `open_store`."""

    async def open_and_work() -> int:
        settings = load(options.config)
        if not create:
            find_database(settings)
        store = await open_store(
            settings.storage, settings.retention.generations, create=create, moves_keys=moves_keys
        )
        try:
            return await work(options, settings, store)
        finally:
            await store.close()

    return run_quietly(open_and_work())


def run_quietly(work: Coroutine[Any, Any, int]) -> int:
    """Run the work of a command without a log, and return its exit status."""
    configure_log("off")  # the command prints what matters
    return asyncio.run(work)


async def is_erased_within(store: StoreStatus, timeout_s: float) -> bool:
    """Wait at most so long. Return whether the bytes of removed rows are gone from the database."""
    try:
        async with asyncio.timeout(timeout_s):
            await store.wait_erased()
    except TimeoutError:
        return False
    return True


def print_error(text: str) -> None:
    print(f"om-proxy: {text}", file=sys.stderr)


def read_file(name: str, max_bytes: int = -1) -> bytes:
    """Read a file, or standard input for `-`. Raise UsageError if it cannot be read."""
    if name == "-":
        return sys.stdin.buffer.read(max_bytes)
    try:
        with Path(name).open("rb") as file:
            return file.read(max_bytes)
    except OSError as exc:
        raise UsageError(f"{name} cannot be read: {exc.strerror}") from exc
