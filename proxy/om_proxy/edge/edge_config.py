"""The settings in the form that the edge needs for every request. It is made once for each
configuration."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from om_proxy.common.apis import API_NAMES, ApiName
from om_proxy.common.errors import BadRequest, Forbidden, Unauthorized
from om_proxy.edge.headers import (
    CREDENTIAL_HEADERS,
    NOT_FORWARDED,
    replace_credential,
    select_request_headers,
)
from om_proxy.engine.policy import Policy, list_open_keys, list_paid_models
from om_proxy.settings.config import Settings, UpstreamSettings
from om_proxy.settings.identity.callers import Caller
from om_proxy.settings.identity.identity_rules import GATEWAY_KEY_HEADERS, IdentityRules
from om_proxy.settings.identity.spending import (
    SPENDING_MESSAGE,
    is_preflight,
    may_spend_operator_key,
)
from om_proxy.settings.identity.tenants import find_own_token, has_provider_credential
from om_proxy.wire.apis.api import Api, Request
from om_proxy.wire.apis.titles import asks_for_title
from om_proxy.wire.server.headers import Header

NO_UPSTREAM = (
    "no upstream in the configuration is for this model and the API {api}; add one under `upstream`, "
    "or the API to `apis` of one"
)
# whether a message matches the side prompts is remembered up to this size
MAX_REMEMBERED_MESSAGE_BYTES = 4_096
MAX_REMEMBERED_MESSAGES = 2_048
MAX_REMEMBERED_MODELS = 1_024  # clients name models as they like


@dataclass(frozen=True, slots=True)
class EdgeConfig:
    """A configuration as the edge uses it. When the file changes, a new one replaces it."""

    settings: Settings
    policy: Policy
    identity: IdentityRules
    # never sent upstream: identity headers and their aliases; see `select_upstream_headers`
    own_headers: frozenset[bytes]
    # the same, without those that carry the caller's own credential
    own_headers_beside_key: frozenset[bytes]
    side_prompts: tuple[Callable[[str], object], ...]
    # of the admin token and the metrics token, which never go upstream
    own_tokens: tuple[bytes, ...] = field(default=(), repr=False)
    has_operator_key: bool = False  # of any upstream or memory model
    pays_memory: bool = False  # whether any memory work spends a key of the operator's
    open_keys: tuple[str, ...] = ()  # a warning for each key that others may spend
    # the first one for each API that any is for, whatever its models
    first_upstreams: Mapping[ApiName, UpstreamSettings] = field(default_factory=dict, repr=False)
    # of these no model decides about the upstream: one takes every request, or none does
    apis_without_choice: frozenset[ApiName] = frozenset()
    upstreams: dict[tuple[ApiName, str | None], UpstreamSettings | None] = field(
        default_factory=dict, compare=False, repr=False
    )
    # by a digest of the message; see `_is_side_message`
    side_messages: dict[int, bool] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def from_settings(
        cls,
        settings: Settings,
        policy: Policy | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> EdgeConfig:
        """Create the configuration. `policy`: the one made from these settings, if there is one
        already. `environ` may hold the keys of providers."""
        pays_memory = bool(list_paid_models(settings, environ or {}))
        headers = settings.identity
        keys = tuple((key.tenant, key.key.get_secret_value()) for key in settings.auth.keys)
        token_secret = settings.auth.token_secret
        identity_headers = (
            *headers.thread_headers,
            *headers.resource_headers,
            *GATEWAY_KEY_HEADERS,
        )
        first_upstreams = {
            api: servers[0] for api in API_NAMES if (servers := settings.list_upstreams(api))
        }
        own_headers = NOT_FORWARDED.union(name.encode() for name in identity_headers)
        if keys:  # then the caller's credential is for the proxy, not for the upstream
            own_headers |= CREDENTIAL_HEADERS
        return cls(
            settings=settings,
            policy=policy or Policy(settings),
            identity=IdentityRules(
                thread_headers=headers.thread_headers,
                resource_headers=headers.resource_headers,
                sessions=headers.sessions,
                keys=keys,
                loopback_only=settings.server.is_loopback,
                scope_override=headers.scope_override,
                token_secret=token_secret.get_secret_value().encode() if token_secret else None,
                token_audience=settings.auth.token_audience,
                token_required=settings.auth.token_required,
            ),
            own_headers=own_headers,
            own_headers_beside_key=own_headers - CREDENTIAL_HEADERS,
            own_tokens=tuple(
                token.get_secret_value().encode()
                for token in (settings.server.admin_token, settings.telemetry.metrics_token)
                if token is not None and token.get_secret_value() not in dict(keys).values()
            ),
            has_operator_key=pays_memory
            or any(upstream.api_key is not None for upstream in settings.upstream),
            pays_memory=pays_memory,
            open_keys=tuple(list_open_keys(settings, environ or {})),
            first_upstreams=first_upstreams,
            apis_without_choice=frozenset(
                api
                for api in API_NAMES
                if api not in first_upstreams or "*" in first_upstreams[api].match
            ),
            side_prompts=tuple(map(compile_search, settings.side_requests.prompts)),
        )

    def select_upstream_headers(
        self,
        headers: Sequence[Header],
        upstream: UpstreamSettings,
        caller: Caller | None = None,
        api: ApiName = "chat",
    ) -> list[Header]:
        """Return the headers that go upstream, with a credential for the upstream and none for this
        proxy. Raise Forbidden for a caller who may not spend the operator's key: the upstream's, or
        that of a memory model if the request has memory. `caller`: None on a route without memory.

        A browser's preflight names no model, so it is refused if there is any such key: the page's
        own request may spend it.
        """
        if self.own_tokens and (name := find_own_token(headers, self.own_tokens)):
            raise Unauthorized(
                f"{name} carries a token of om-proxy's own, which no model server may see: send "
                "server.admin_token as X-OM-Admin and below /om only, and a key for the model here"
            )
        if (
            upstream.api_key is not None
            or (self.pays_memory and caller is not None and caller.key is not None)
            or (caller is None and self.has_operator_key and is_preflight(headers))
        ):
            self._require_spender(headers, caller)
        return self.select_admitted_headers(headers, upstream, api)

    def check_own_memory(self, headers: Sequence[Header]) -> None:
        """Raise Forbidden for a caller who asks about its own memory, and may not spend a key of
        the operator's: searches and memory work spend one."""
        if self.has_operator_key:
            self._require_spender(headers)

    def _require_spender(self, headers: Sequence[Header], caller: Caller | None = None) -> None:
        may_spend = (
            may_spend_operator_key(headers, self.identity)
            if caller is None
            else caller.may_spend_operator_key
        )
        if not may_spend:
            raise Forbidden(SPENDING_MESSAGE)

    def select_admitted_headers(
        self, headers: Sequence[Header], upstream: UpstreamSettings, api: ApiName = "chat"
    ) -> list[Header]:
        """Return the headers as `select_upstream_headers` does, for a caller whose access another
        rule has decided.

        The credential is the caller's own if there are no `auth.keys`, or if it came together with
        one of them. Otherwise it is the upstream's `api_key`. (Without keys, `api_key` replaces the
        caller's credential.) Of several headers that carry one, `api_key` replaces all.
        """
        if has_provider_credential(headers, self.identity):
            return select_request_headers(headers, self.own_headers_beside_key)
        own_headers = select_request_headers(headers, self.own_headers)
        return replace_credential(own_headers, upstream.build_key_header(api))

    def find_upstream(self, model: str | None, api: ApiName = "chat") -> UpstreamSettings | None:
        """Return the upstream of this model and API, which is looked up once for each pair."""
        pair = (api, model)
        if pair not in self.upstreams:
            if len(self.upstreams) >= MAX_REMEMBERED_MODELS:
                self.upstreams.clear()
            self.upstreams[pair] = self.settings.upstream_for(model, api)
        return self.upstreams[pair]

    def require_upstream(self, model: str | None, api: ApiName = "chat") -> UpstreamSettings:
        """Return the upstream for this model and API. Raise BadRequest if there is none: a caller's
        key must not reach a server that is meant for others."""
        upstream = self.find_upstream(model, api)
        if upstream is None:
            raise BadRequest(NO_UPSTREAM.format(api=api), "om_no_upstream", "model")
        return upstream

    def find_turn_api(self, api: ApiName | None, method: str) -> ApiName | None:
        """Return the API by whose path a request with memory came; None: it has none. `api`: of the
        path."""
        return api if method == "POST" and api in self.settings.identity.apis else None

    def is_side_request(self, request: Request) -> bool:
        """Return whether a chat UI asks for a title, tags or a follow-up
        (docs/contributing/behaviour.md#side-requests).

        The model, the instructions or the newest message show that. The first message does not: it
        is sent again with every request of its conversation.
        """
        if request.model in self.settings.side_requests.models:
            return True
        candidates = (*request.instructions, *request.messages[-1:])
        return any(self._is_side_message(request.api, raw) for raw in candidates)

    def asks_for_title(self, request: Request) -> bool:
        asking = (*request.instructions, *request.messages[-1:])
        return asks_for_title([request.api.asking_text(raw) for raw in asking])

    def _is_side_message(self, api: Api, raw: bytes) -> bool:
        """Return whether a pattern matches the message. The result is remembered for a short
        message: instructions are sent again with every request."""
        if len(raw) > MAX_REMEMBERED_MESSAGE_BYTES:
            return self._matches_side_prompt(api, raw)
        # no words of a conversation stay here, which people may forget; each process has a key of
        # its own for hashes
        digest = hash(raw)
        is_side_message = self.side_messages.get(digest)
        if is_side_message is None:
            if len(self.side_messages) >= MAX_REMEMBERED_MESSAGES:
                self.side_messages.clear()
            is_side_message = self.side_messages[digest] = self._matches_side_prompt(api, raw)
        return is_side_message

    def _matches_side_prompt(self, api: Api, raw: bytes) -> bool:
        text = api.asking_text(raw)
        return any(search(text) for search in self.side_prompts)


def compile_search(pattern: str) -> Callable[[str], object]:
    """Return the search for a pattern of the settings. `re` tries a `^` at each place of a text."""
    compiled = re.compile(pattern)
    is_at_start = pattern.startswith("^") and "|" not in pattern
    return compiled.match if is_at_start else compiled.search
