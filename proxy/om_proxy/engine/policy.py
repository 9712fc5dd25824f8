"""Read one configuration for one memory, as the context of its work: its thresholds and prices, and
when its work is due. Say which keys of the operator's that work spends, and which ones others may.

A memory model or an embedding model that is named spends its own `api_key`, `memory.api_key`, or the
provider's variable where the proxy runs. `auto` and `inherit` spend what the request brings, or the
model server's `api_key`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from urllib.parse import urlsplit

from om_proxy.agents.embedding import LOCAL_PREFIX
from om_proxy.agents.model_access.credentials import (
    is_subscription_key,
    may_find_credential,
)
from om_proxy.agents.model_access.llm import Target
from om_proxy.agents.model_access.targets import choose_model, finds_key, list_models
from om_proxy.agents.models import (
    choose_default_model,
    find_abilities,
    find_price,
    find_small_model,
)
from om_proxy.common.apis import API_NAMES, ApiName
from om_proxy.common.errors import ConfigError
from om_proxy.memory.lifecycle import decisions
from om_proxy.memory.lifecycle.thresholds import Prices
from om_proxy.memory.model import Key, Memory
from om_proxy.memory.prompt.context import ContextOptions, Layout, layout_for
from om_proxy.memory.token_prices import TokenPrices
from om_proxy.settings.config import (
    REQUEST_MODELS,
    Effective,
    Settings,
    UpstreamSettings,
    WatchedSettings,
    render_value,
)
from om_proxy.storage.values.changes import ResourceWakeup

MAX_PAIRS = 4_096  # of model, resource and API; Settings keeps as many
# Bounded, because their keys hold credentials; they are never stored.
MAX_REQUEST_CONTEXTS = 4_096
# Bytes of the key of a kept context. Signed tokens may be longer; making a context takes 50 µs.
MAX_CONTEXT_KEY_BYTES = 2_048
# the headers of a request that name its caller
Credential = Sequence[tuple[bytes, bytes]]
PICODOLLARS_PER_DOLLAR = 10**12


@dataclass(frozen=True, slots=True)
class Instructions:
    """The beginning of a request's instructions, and the thread of the request. Instructions say
    nothing about another thread. They are never stored."""

    key: Key
    beginning: tuple[bytes, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class MemoryContext:
    """The settings of a request, and the model and credential that memory work may inherit."""

    effective: Effective
    # the actor's model and credential; never stored
    inherited: Target | None = field(default=None, repr=False)
    layout: Layout = "merged"
    context_options: ContextOptions = field(default_factory=ContextOptions)
    # None: not known, as after a restart
    instructions: Instructions | None = field(default=None, repr=False)
    # this context without a thread's own settings, if it has any
    bare: MemoryContext | None = field(default=None, repr=False)
    # the model that observes first, for the log
    observer_name: str | None = None
    # whether the actor is known to call tools; False too where nobody asks
    calls_tools: bool = False
    # whether a memory model is inherited, and the request's credential is for no call of ours
    lacks_observer: bool = False
    server: str = ""  # the name of the model server that the request goes to

    def with_instructions(self, instructions: Instructions) -> MemoryContext:
        """Return the context for the work of one turn."""
        # `replace` takes twice as long, and most turns come here
        return MemoryContext(
            self.effective,
            self.inherited,
            self.layout,
            self.context_options,
            instructions,
            self.bare,
            self.observer_name,
            self.calls_tools,
            self.lacks_observer,
            self.server,
        )

    def with_layout(self, layout: Layout) -> MemoryContext:
        """Return the context for a server that takes memory's texts in this layout."""
        return self if layout == self.layout else replace(self, layout=layout)

    def with_overrides(self, overrides: bytes | None) -> MemoryContext:
        """Return the context with the settings that a person gave this thread (`Memory.overrides`),
        and without those of any other thread."""
        bare = self.bare or self
        if not overrides:
            return bare
        return replace(bare, effective=bare.effective.with_overrides(overrides), bare=bare)


@dataclass(frozen=True, slots=True, eq=False)
class Policy:
    """The policy of one configuration, which is replaced together with it. Only the kept contexts
    depend on requests: a later request finds its context ready.

    `model_timeout_s`, if given, replaces `background.call_timeout`.
    """

    settings: Settings
    model_timeout_s: float | None = None
    _by_pair: dict[tuple[str | None, str | None, ApiName | None], Effective] = field(
        default_factory=dict, init=False, repr=False
    )
    _contexts: dict[tuple[object, ...], MemoryContext] = field(
        default_factory=dict, init=False, repr=False
    )

    @property
    def call_timeout_s(self) -> float:
        """The seconds that one call of a memory model may take, retries included."""
        return self.model_timeout_s or self.settings.background.call_timeout

    # ── one memory ────────────────────────────────────────────────────────────────────────────────

    def base_settings(self, memory: Memory) -> Effective:
        """Return the settings for the memory's model and resource. Raise ConfigError if overrides
        that match both contradict each other."""
        return self._effective(memory.model, memory.key.resource, memory.newest_api)

    def thread_settings(self, memory: Memory) -> Effective:
        """Return `base_settings` with the thread's own thresholds."""
        return self.base_settings(memory).with_overrides(memory.overrides)

    def due_at(self, memory: Memory, now: float) -> float | None:
        """Return when the background should look at this memory; None: not before the next
        request."""
        try:
            limits = self.thread_settings(memory).limits
        except ConfigError:
            return None  # each request of the thread reports it, and goes upstream unchanged
        return decisions.due_at(memory, limits, now)

    def needs_caller(self, memory: Memory) -> bool:
        """Return whether the work on this memory needs a credential that only a request brings: its
        model is the request's own, and the upstream has no key of its own."""
        try:
            effective = self.base_settings(memory)
        except ConfigError:
            return False  # nothing is due either
        return _is_inherited(effective) and self._target_of_upstream(memory) is None

    @property
    def may_need_caller(self) -> bool:
        """Whether the work on any memory may need such a credential."""
        return self.settings.may_need_caller

    def resource_wakeup(self, memory: Memory, now: float) -> ResourceWakeup | None:
        """Return the number of unobserved tokens that makes the shared log of this thread's
        resource due, or None."""
        try:
            limits = self.base_settings(memory).limits
        except ConfigError:
            return None
        return ResourceWakeup(now, limits.interval_tokens or limits.observe_from_tokens)

    # ── contexts of memory work ───────────────────────────────────────────────────────────────────

    def context_without_request(self, memory: Memory) -> MemoryContext | None:
        """Return the context for work that is found after a restart: with a configured memory
        model, or with the upstream's own key. None: only a request brings the credential."""
        try:
            effective = self.base_settings(memory)
        except ConfigError:
            return None
        inherited = self._target_of_upstream(memory)
        if inherited is None and _is_inherited(effective):
            return None
        return MemoryContext(effective, inherited)

    def _target_of_upstream(self, memory: Memory) -> Target | None:
        """Return the way to the memory's model by the key of its server: by the API of its newest
        message or, where none is known, the first that has a server with a key."""
        model, api = memory.model, memory.newest_api
        for name in (api,) if api else API_NAMES:
            upstream = self.settings.upstream_for(model, name) if model else None
            header = upstream.build_key_header(name) if upstream else None
            if upstream and header and model and not is_subscription_key(header[1]):
                return Target(model, base_url=upstream.base_url, headers=(header,), api=name)
        return None

    def context_of_request(
        self,
        model: str | None,
        resource: str,
        upstream: UpstreamSettings,
        credential: tuple[tuple[bytes, bytes], ...],
        query: bytes = b"",
        members: tuple[tuple[str, bytes], ...] = (),
        api: ApiName = "chat",
    ) -> MemoryContext:
        """Return the context of a request: the same one for the same arguments, unless they are too
        long to keep. The credential is never stored; nor are the query of the request's address and
        the members of its body that say where its words may go, which an inherited call has too."""
        key = (model, resource, upstream.name, credential, query, members, api)
        context = self._contexts.get(key)
        if context is None:
            context = self._make_context(model, resource, upstream, credential, api)
            if context.inherited and (query or members or api != "chat"):
                inherited = replace(context.inherited, query=query, members=members, api=api)
                context = replace(context, inherited=inherited)
            if _key_bytes(key) <= MAX_CONTEXT_KEY_BYTES:
                if len(self._contexts) >= MAX_REQUEST_CONTEXTS:
                    self._contexts.clear()
                self._contexts[key] = context
        return context

    def _make_context(
        self,
        model: str | None,
        resource: str,
        upstream: UpstreamSettings,
        credential: Credential,
        api: ApiName,
    ) -> MemoryContext:
        effective = self._effective(model, resource, api)
        headers = tuple(
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in credential
        )
        context, retrieval = effective.context, effective.memory.retrieval
        may_ask = not any(is_subscription_key(value) for _, value in headers)
        base_url = upstream.base_url
        inherited = Target(model, base_url=base_url, headers=headers) if model and may_ask else None
        lacks_observer = not may_ask and _is_inherited(effective)
        layout = upstream.layout if context.layout == "auto" else context.layout
        return MemoryContext(
            effective=effective,
            inherited=inherited,
            layout=layout_for(urlsplit(base_url).hostname or "", layout),
            context_options=ContextOptions(context.relative_time, context.priorities),
            calls_tools=retrieval.enabled == "auto"
            and bool(model and find_abilities(model).calls_tools),
            observer_name=name_observer(effective, model, base_url)
            if model and not lacks_observer
            else None,
            lacks_observer=lacks_observer,
            server=upstream.name,
        )

    # ── prices ────────────────────────────────────────────────────────────────────────────────────

    def _effective(self, actor: str | None, resource: str | None, api: ApiName | None) -> Effective:
        """Return the settings of this model, resource and API (`Settings.effective`). Add list prices if `memory.economy` is
        `auto` and both models' prices are known."""
        effective = self._by_pair.get((actor, resource, api))
        if effective is None:
            effective = self.settings.effective(actor, resource, api)
            if effective.memory.economy == "auto" and actor is not None:
                upstream = self.settings.find_server(actor, api)
                base_url = upstream.base_url if upstream else None
                effective = add_prices(effective, actor, base_url)
            if len(self._by_pair) >= MAX_PAIRS:
                self._by_pair.clear()
            self._by_pair[actor, resource, api] = effective
        return effective


def name_observer(effective: Effective, actor: str, base_url: str | None) -> str:
    """Return the name of the model that observes first for an actor on this server."""
    limits = effective.limits
    size = limits.interval_tokens or limits.observe_from_tokens
    return resolve_model(choose_model(effective.observer_model, size), actor, base_url)


def resolve_model(name: str, actor: str, base_url: str | None) -> str:
    """Return the model that a name of the settings means for an actor on this server."""
    if name == "auto":
        return find_small_model(actor, base_url) or actor
    return {"inherit": actor, "default": choose_default_model()}.get(name, name)


def add_prices(effective: Effective, actor: str, base_url: str | None) -> Effective:
    """Return the settings with the list prices of actor and observer, if both are known."""
    observer = name_observer(effective, actor, base_url)
    actor_prices = find_price(actor, base_url)
    observer_prices = find_price(observer, base_url)
    if actor_prices is None or observer_prices is None:
        return effective
    prices = Prices(
        actor_cached=actor_prices.cached_input,
        actor_fresh=actor_prices.cache_write,
        observer_input=observer_prices.input,
        observer_output=observer_prices.output,
    )
    # a cache of its own: settings of threads with overrides hold the prices of this pair only
    return replace(effective, limits=replace(effective.limits, prices=prices), _by_overrides={})


def _is_inherited(effective: Effective) -> bool:
    """Return whether a memory model is asked on the request's own server, and no other one is."""
    choices = (effective.observer_model, effective.reflector_model)
    return any(choice in ("auto", "inherit") for choice in choices)


def _key_bytes(part: object) -> int:
    """Return the length of all texts in a key, which bounds the memory that it takes. Parts other
    than credentials have bounds of their own."""
    if isinstance(part, tuple):
        return sum(map(_key_bytes, part))
    return len(part) if isinstance(part, str | bytes) else 0


class PolicyInForce:
    """The policy of the current settings. It is made once for each configuration."""

    def __init__(self, watched: WatchedSettings, *, model_timeout_s: float | None = None) -> None:
        self._watched = watched
        self._model_timeout_s = model_timeout_s
        self._policy = Policy(watched.current, model_timeout_s)

    @property
    def current(self) -> Policy:
        if self._policy.settings is not self._watched.current:
            self._policy = Policy(self._watched.current, self._model_timeout_s)
        return self._policy


# pure, as the price table does not change while the process runs; a look-up takes 4 µs, and every
# turn needs one
@lru_cache(maxsize=1024)
def find_token_prices(model: str) -> TokenPrices | None:
    """Return the list prices of a model; None if they are not known."""
    price = find_price(model)
    if price is None:
        return None
    dollars = (price.input, price.cached_input, price.cache_write, price.output)
    return TokenPrices(*(round(amount * PICODOLLARS_PER_DOLLAR) for amount in dollars))


# ── keys of the operator's ────────────────────────────────────────────────────────────────────────


def list_paid_models(settings: Settings, environ: Mapping[str, str]) -> tuple[str, ...]:
    """List the memory models and the embedding models that spend a key of the operator's, for any
    model or resource. `environ` may hold the keys of providers."""
    levels = settings.list_effective()
    if not any(level.memory.enabled for level in levels):
        return ()
    return tuple(
        dict.fromkeys(
            [*_list_paid_memory_models(levels, environ)]
            + [
                model
                for model in settings.embedding_models
                if not model.startswith(LOCAL_PREFIX) and may_find_credential(model, environ)
            ]
        )
    )


def _list_paid_memory_models(
    levels: Sequence[Effective], environ: Mapping[str, str]
) -> Iterator[str]:
    # an override may give the key, and another one the model
    has_shared_key = any(level.memory.api_key for level in levels)
    for level in levels:
        shared_base = level.memory.api_base
        for choice in (level.observer_model, level.reflector_model):
            for model in list_models(choice):
                if model.name in REQUEST_MODELS:
                    continue
                shares_key = has_shared_key and model.base in (None, shared_base)
                name = choose_default_model() if model.name == "default" else model.name
                named = replace(model, name=name, base=model.base or shared_base)
                if shares_key or finds_key(named, environ):
                    yield model.name


def list_open_keys(settings: Settings, environ: Mapping[str, str]) -> list[str]:
    """List a warning for each key of the operator's that anybody may spend who reaches the server.
    On loopback these are the programs of the machine, which may be what its only user wants."""
    if settings.auth.keys:
        return []
    upstreams = [one.name for one in settings.upstream if one.api_key is not None]
    owners = [f"upstream {render_value(('name',), name)}" for name in upstreams]
    owners += [
        f"memory model {render_value(('model',), name)}"
        for name in list_paid_models(settings, environ)
    ]
    return [_describe_open_key(owner, settings) for owner in owners]


def _describe_open_key(owner: str, settings: Settings) -> str:
    if settings.server.is_loopback:
        return (
            f"{owner} has an api_key, and auth.keys is not set: every program of this "
            "machine, of any of its users, can spend that key; set auth.keys to say who may"
        )
    return (
        f"ANYBODY WHO REACHES {settings.server.host} CAN SPEND the api_key of {owner}: "
        "auth.keys is not set, so any made-up key is accepted; set auth.keys, and give each client "
        "one of them"
    )
