"""`om-proxy api`: send the request of the admin API that the arguments name, and print its answer."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import unquote, urlencode

from om_proxy.cli.answers import print_json, print_table
from om_proxy.cli.commands.exports import write_pieces
from om_proxy.cli.exit_status import DONE
from om_proxy.cli.store_command import LocalApi, match_route, read_file, run_with_api
from om_proxy.cli.thread_choice import choose_tenant, find_tenant, find_thread
from om_proxy.common.errors import BadRequest, NotFound, UsageError
from om_proxy.management.api.answers import StreamedAnswer
from om_proxy.management.api.requests import (
    LargeBody,
    Query,
    find_entry_id,
    find_key,
    parse_body,
    parse_query,
)
from om_proxy.management.api.route import AdminRoute, Answer
from om_proxy.management.api.route_table import ADMIN_ROUTES
from om_proxy.memory.model import Key

ROUTE_COLUMNS = ("method", "path", "what it does")


def run(options: argparse.Namespace) -> int:
    """Ask the route that METHOD and PATH name; without them, list the routes."""
    if options.method is None:
        rows = [(route.method, route.path, route.summary) for route in ADMIN_ROUTES]
        print_table(ROUTE_COLUMNS, rows, as_json=options.json)
        return DONE
    if options.path is None:
        raise UsageError("name the path too, as `om-proxy api` lists them")
    return run_with_api(options, ask)


async def ask(api: LocalApi, options: argparse.Namespace) -> int:
    """Ask the route that METHOD and PATH name, and print its answer."""
    path, _, query_string = options.path.partition("?")
    if options.resource is not None:
        query_string += "&" + urlencode({"resource": options.resource})
    route, names = match_route(options.method, path)
    options.id = find_entry_id(names)
    query = parse_query(route.query, query_string.encode())
    body = _read_body(route, options.data)

    async def send(tenant: str | None) -> Answer:
        return await api.ask(
            route.handler,
            options,
            key=await _find_key(api, names, query, tenant),
            tenant=tenant,
            query=query,
            body=body,
            path_names={name: unquote(word) for name, word in names.items()},
        )

    tenant = query.tenant
    if tenant is None and options.tenant is not None:
        tenant = await find_tenant(api.store, options.tenant)
    try:
        answer = await send(tenant)
    except BadRequest as exc:
        if exc.param != "tenant":
            raise
        # the route is about one tenant: the only one of the store is meant
        answer = await send(await choose_tenant(api.store, None))
    if isinstance(answer, StreamedAnswer):
        await write_pieces(answer.pieces, sys.stdout.buffer, is_shown=True)
    else:
        print_json(answer)
    return DONE


async def _find_key(
    api: LocalApi, names: Mapping[str, str], query: Query, tenant: str | None
) -> Key | None:
    """Return what the path names. A thread whose resource is not named is looked up by its name, as
    by other commands; one that is not there may be made by the request."""
    if "thread" in names and getattr(query, "resource", None) is None:
        named = find_key(names, tenant or "", query)
        assert named is not None  # the path names a thread
        choice = argparse.Namespace(thread=named.thread, resource=None, tenant=tenant)
        with suppress(NotFound):
            return await find_thread(api.store, choice)
    return find_key(names, tenant, query)


def _read_body(route: AdminRoute, data: str | None) -> Any:
    """Return the body. `data`: JSON, or @ and the name of a file that has it."""
    if route.body is None:
        if data is not None:
            raise UsageError(f"{route.method} {route.path} takes no body")
        return None
    body = read_file(data[1:]) if data and data.startswith("@") else (data or "").encode()
    content_type = getattr(route.body, "content_type", LargeBody.content_type)
    return parse_body(route.body, body, [(b"content-type", content_type.encode())])
