"""Send each request to the handler of its path: memory, a page of the proxy, or a model server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
from starlette.types import Receive, Scope, Send

from om_proxy.app.own_pages import ADMIN_PATH, OwnPages, find_own_page
from om_proxy.common.apis import ApiName, find_api
from om_proxy.common.errors import OmError, Overloaded, raise_site
from om_proxy.common.off_loop import FirstUse
from om_proxy.edge.chat import TurnRoute
from om_proxy.edge.edge_config import EdgeConfig
from om_proxy.edge.passthrough import (
    CLIENT_LEFT,
    RequestEnd,
    UnreachedRequests,
    relay_unchanged,
    send_refusal,
)
from om_proxy.edge.routing import (
    choose_upstream,
    find_protocol_fault,
    needs_body_to_route,
    take_names_from_path,
)
from om_proxy.observability.facts import Facts
from om_proxy.settings.identity.tenants import check_access, check_one_credential
from om_proxy.wire.apis.registry import get_api
from om_proxy.wire.server import responses
from om_proxy.wire.server.capacity.admission import (
    Admission,
    BufferedBodyPermit,
    StreamedBodyPermit,
)
from om_proxy.wire.server.disconnect import ClientDisconnected, read_body
from om_proxy.wire.server.headers import Header, find_head_ambiguity
from om_proxy.wire.upstream import Upstream

if TYPE_CHECKING:
    from om_proxy.app.management import Management

logger = structlog.get_logger()

# of the requests that have memory
TURN_PATHS: Mapping[bytes, ApiName] = {
    b"/v1/chat/completions": "chat",
    b"/chat/completions": "chat",
    b"/v1/responses": "responses",
    b"/responses": "responses",
    b"/v1/messages": "messages",
    b"/messages": "messages",
}


@dataclass(frozen=True, slots=True, eq=False)
class Router:
    """The routes of the app. `own_pages`: the proxy's own pages, without those below `/om`."""

    turns: TurnRoute
    management: FirstUse[Management]
    own_pages: OwnPages
    unreached: UnreachedRequests
    upstream: Upstream
    admission: Admission
    facts: Facts
    current_config: Callable[[], EdgeConfig]

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        api: ApiName = "chat"  # until it is known
        turn_api: ApiName | None = None  # of a request that has memory
        config = self.current_config()
        try:
            scope = take_names_from_path(scope)
            turn_api = config.find_turn_api(TURN_PATHS.get(scope["raw_path"]), scope["method"])
            api = turn_api or find_api(scope["raw_path"], scope["headers"])
            if fault := find_head_ambiguity(scope["headers"], scope["http_version"]):
                raise fault
            refusal = find_protocol_fault(scope)
            # the raw path: an escaped path (`/v1/chat%2fcompletions`) is none of these routes, and
            # `_forward` refuses it
            page = None if turn_api or refusal else find_own_page(scope)
        except OmError as exc:
            await responses.send_error(send, exc, api=api)
            return
        if turn_api and not refusal:
            route = get_api(turn_api)
            with BufferedBodyPermit(self.admission, scope, receive) as permit:
                await self.turns(scope, permit.receive, send, config, route, permit.set_copies)
        elif page == ADMIN_PATH:
            await self._manage(scope, receive, send, config)
        elif page is not None:
            await self.own_pages.send(page, scope, send)
        else:
            await self._forward(scope, receive, send, config, refusal, api)

    async def _manage(self, scope: Scope, receive: Receive, send: Send, config: EdgeConfig) -> None:
        try:
            management = await self.management.get()
        except Exception as exc:  # of an import: chat goes on, and the next request tries again
            logger.error("management.unloaded", error=type(exc).__name__, at=raise_site(exc))
            await responses.send_error(
                send, Overloaded("what is below /om cannot be loaded; the log says why")
            )
            return
        await management.serve(scope, receive, send, config)

    async def _forward(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        config: EdgeConfig,
        refusal: OmError | None,
        api: ApiName,
    ) -> None:
        unreached = self.unreached.find(scope, config, api)
        receipt = unreached.base_receipt if unreached else ()
        end = await self._route_and_relay(scope, receive, send, config, refusal, receipt, api)
        if unreached:
            self.unreached.log_request(unreached, end)

    async def _route_and_relay(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        config: EdgeConfig,
        refusal: OmError | None,
        receipt: Sequence[Header],
        api: ApiName,
    ) -> RequestEnd:
        needs_body = needs_body_to_route(scope, config, api)
        try:
            if refusal:
                raise refusal
            check_access(scope["headers"], config.identity)
            if len(config.settings.upstream) > 1:
                check_one_credential(scope["headers"])
            permit = (
                BufferedBodyPermit(self.admission, scope, receive)
                if needs_body
                else StreamedBodyPermit(self.admission, receive)
            )
        except OmError as exc:
            self.facts.emit_refusal(exc)
            return await send_refusal(send, exc, receipt, api)
        with permit:
            try:
                body = (
                    await read_body(permit.receive, config.settings.limits.body)
                    if needs_body
                    else None
                )
                upstream = choose_upstream(scope, config, body, api)
                headers = config.select_upstream_headers(scope["headers"], upstream, api=api)
            except OmError as exc:
                return await send_refusal(send, exc, receipt, api)
            except ClientDisconnected:
                return CLIENT_LEFT
            return await relay_unchanged(
                scope,
                permit.receive,
                send,
                upstream=self.upstream,
                settings=upstream,
                headers=headers,
                body=body,
                receipt=receipt,
                api=api,
            )
