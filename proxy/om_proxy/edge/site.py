"""What the edge needs of the settings at every request, made once per configuration."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from om_proxy.edge.headers import CREDENTIALS, Header, authorized, request_headers
from om_proxy.errors import BadRequest
from om_proxy.memory import identity
from om_proxy.observing import Call
from om_proxy.settings import Settings, UpstreamSettings
from om_proxy.wire.chat import ChatRequest, asking_text

NO_UPSTREAM = "no upstream in the configuration matches this model; add one under `upstream`"
SHORT = 4_096  # bytes of a message up to which it is remembered whether it tells a side request
MODELS = 1_024  # whose upstream is remembered; clients name them as they like
CALLS = 4_096  # remembered; their keys hold credentials, so they live in memory only and not for ever
LONGEST = 2_048  # bytes of such a key; signed tokens are as long, and making a call anew takes 50 µs


@lru_cache(maxsize=2_048)  # instructions come again with every request
def _searched(patterns: tuple[re.Pattern[str], ...], raw: bytes) -> bool:
    text = asking_text(raw)
    return any(pattern.search(text) for pattern in patterns)


@dataclass(frozen=True, slots=True)
class Site:
    """A configuration as the edge sees it; swapped whole when the file changes."""

    settings: Settings
    identity: identity.Rules
    own_headers: frozenset[bytes]  # never sent upstream: identity headers and their aliases; see `sent_on`
    side_prompts: tuple[re.Pattern[str], ...]
    upstreams: dict[str | None, UpstreamSettings | None] = field(default_factory=dict, compare=False, repr=False)
    calls: dict[tuple[object, ...], Call] = field(default_factory=dict, compare=False, repr=False)  # see `call`

    @classmethod
    def of(cls, settings: Settings) -> Site:
        headers = settings.identity
        keys = tuple((k.tenant, k.key.get_secret_value()) for k in settings.auth.keys)
        token_secret = settings.auth.token_secret
        return cls(
            settings=settings,
            identity=identity.Rules(
                thread_headers=headers.thread_headers,
                resource_headers=headers.resource_headers,
                sessions=headers.sessions,
                keys=keys,
                loopback=settings.server.loopback,
                scope_override=headers.scope_override,
                token_secret=token_secret.get_secret_value().encode() if token_secret else None,
                token_required=settings.auth.token_required,
            ),
            own_headers=frozenset(
                h.encode() for h in (*headers.thread_headers, *headers.resource_headers, *identity.GATEWAY_KEY_HEADERS)
            )
            | (
                CREDENTIALS if keys else frozenset()
            ),  # with keys of ours, the caller's credential is none of the upstream's
            side_prompts=tuple(re.compile(p) for p in settings.side_requests.prompts),
        )

    def sent_on(self, headers: Sequence[Header], upstream: UpstreamSettings) -> list[Header]:
        """What goes upstream of a request's headers: a credential for the upstream among them, and none of ours.

        The caller's own, where there are no `auth.keys` or it came beside one of them; else the upstream's `api_key`. (Without
        keys, that one takes the place of the caller's.)
        """
        own = identity.brings_own(headers, self.identity)
        ours = self.own_headers - CREDENTIALS if own else self.own_headers
        key = None if own or upstream.api_key is None else upstream.api_key.get_secret_value()
        return authorized(request_headers(headers, ours), key)

    def call(self, key: tuple[object, ...], make: Callable[[], Call]) -> Call:
        """What memory work needs of a request, made once for all requests that differ in nothing of `key`, unless that is long."""
        found = self.calls.get(key)
        return self._made(key, make) if found is None else found

    def _made(self, key: tuple[object, ...], make: Callable[[], Call]) -> Call:
        made = make()
        if _length(key) <= LONGEST:
            if len(self.calls) >= CALLS:
                self.calls.clear()
            self.calls[key] = made
        return made

    def upstream_for(self, model: str | None) -> UpstreamSettings | None:
        """Settings.upstream_for, told once per model."""
        if model not in self.upstreams:
            if len(self.upstreams) >= MODELS:
                self.upstreams.clear()
            self.upstreams[model] = self.settings.upstream_for(model)
        return self.upstreams[model]

    def server_for(self, model: str | None) -> UpstreamSettings:
        """The same; raises BadRequest where none is for it: a caller's key must not reach a server that is meant for others."""
        upstream = self.upstream_for(model)
        if upstream is None:
            raise BadRequest(NO_UPSTREAM, "om_no_upstream", "model")
        return upstream

    @property
    def meets_all(self) -> bool:
        """Whether one upstream takes every request, whatever its model."""
        return "*" in self.settings.upstream[0].match

    def is_side_request(self, request: ChatRequest) -> bool:
        """Title, tag and follow-up generation of chat UIs, told by model, or by the instructions or
        the newest message (docs/spec/behaviour.md#side-requests).

        Not by the first message: it comes again with every request of its conversation.
        """
        if request.model in self.settings.side_requests.models:
            return True
        told_by = (*request.instructions, *request.messages[-1:])
        return any(self._tells_a_side_request(raw) for raw in told_by)

    def _tells_a_side_request(self, raw: bytes) -> bool:
        searched = _searched if len(raw) <= SHORT else _searched.__wrapped__
        return searched(self.side_prompts, raw)


def _length(part: object) -> int:
    """Of all texts in a key, as a bound of what keeping it takes: others than credentials have bounds of their own."""
    if isinstance(part, tuple):
        return sum(map(_length, part))
    return len(part) if isinstance(part, str | bytes) else 0
