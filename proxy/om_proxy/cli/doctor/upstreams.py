"""Examine the servers that the proxy sends to: ask each model server whether it answers, and read
how each webhook does from what its sender has stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from om_proxy.agents.model_access.direct import QUESTION_PATHS
from om_proxy.common.errors import Overloaded, UpstreamError
from om_proxy.engine.event_feed.envelope import name_hook, name_receiver
from om_proxy.engine.event_feed.webhooks import REQUEST_TIMEOUT_S
from om_proxy.settings.config import Settings, render_value
from om_proxy.settings.config.sections.service import UpstreamSettings
from om_proxy.storage.contract.records import EventLog
from om_proxy.storage.values.records import MAX_EVENTS, WebhookState
from om_proxy.wire.upstream import Upstream

ANSWER_TIMEOUT_S = 5.0  # for the connection, and again for the head of the answer
CREDENTIAL_STATUSES = frozenset({401, 403, 407})
REDIRECT_STATUSES = range(300, 400)


UNKNOWN_ADDRESS_STATUSES = frozenset({404, 405, 410})
COMMON_PATHS = ("/v1", "/api/v1", "/openai/v1", "/api")  # where servers have their API


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `works` is False if something needs attention."""

    works: bool
    text: str


class ServerAnswer(NamedTuple):
    """The part of a server's answer that is examined."""

    status: int
    is_of_an_api: bool  # and neither a web page nor "Unexpected endpoint"


async def examine_upstreams(settings: Settings) -> list[Finding]:
    """Return one finding for each upstream, in the order of the settings. This makes no chat call,
    and follows no redirect."""
    client = Upstream(connections=1)
    try:
        return [await _examine_upstream(client, upstream) for upstream in settings.upstream]
    finally:
        await client.aclose()


async def _examine_upstream(client: Upstream, upstream: UpstreamSettings) -> Finding:
    """Send `GET /models`, which every server of these APIs should know, by the first of its APIs."""
    try:
        answer = await _ask(client, upstream, "GET", f"{upstream.base_url}/models")
        if answer.is_of_an_api:
            return judge_answer(upstream, answer)
        return await _examine_address(client, upstream, answer)
    except (UpstreamError, Overloaded) as exc:
        return Finding(False, f"{_describe_upstream(upstream)}: {exc}")


async def _examine_address(
    client: Upstream, upstream: UpstreamSettings, answer: ServerAnswer
) -> Finding:
    """Look for a server's API: where requests go, then at other paths of the same server. The empty
    object that is posted is no request of any model."""
    answers = f"{_describe_upstream(upstream)} answers ({answer.status})"
    path = QUESTION_PATHS[upstream.apis[0]]
    posted = await _ask(client, upstream, "POST", f"{upstream.base_url}{path}", b"{}")
    if posted.is_of_an_api:
        return judge_answer(upstream, posted)
    setting = f"{upstream.path_in_settings}.base_url"
    for address in list_other_addresses(upstream.base_url):
        found = await _ask(client, upstream, "GET", f"{address}/models")
        if found.is_of_an_api and found.status in {200, *CREDENTIAL_STATUSES}:
            return Finding(
                False,
                f"{answers}: its API is not there. It answers ({found.status}) at {address}: set {setting} to that",
            )
    return Finding(False, f"{answers} to {path} too: no API is there; check {setting}")


def list_other_addresses(base_url: str) -> list[str]:
    """List the addresses of the same server where its API may be."""
    origin = "/".join(base_url.split("/")[:3])
    others = [f"{base_url}/v1", *(f"{origin}{path}" for path in COMMON_PATHS)]
    return [address for address in dict.fromkeys(others) if address != base_url]


async def _ask(
    client: Upstream, upstream: UpstreamSettings, method: str, url: str, body: bytes = b""
) -> ServerAnswer:
    headers = [(b"accept", b"application/json")]
    if body:
        headers.append((b"content-type", b"application/json"))
    if upstream.apis[0] == "messages":
        headers.append((b"anthropic-version", b"2023-06-01"))  # without it, 400
    if key_header := upstream.build_key_header(upstream.apis[0]):
        name, value = key_header
        headers.append((name.encode(), value.encode()))
    answer = await client.send(
        method,
        url,
        headers,
        body,
        connect_timeout_s=min(upstream.connect_timeout, ANSWER_TIMEOUT_S),
        read_timeout_s=min(upstream.read_timeout, ANSWER_TIMEOUT_S),
        path_in_settings=upstream.path_in_settings,
    )
    try:
        types = [value for name, value in answer.headers if name.lower() == b"content-type"]
        is_page = answer.status == 200 and any(one.startswith(b"text/html") for one in types)
        # LM Studio answers 200 and `Unexpected endpoint` to a path that it does not know
        beginning = await anext(answer.chunks(), b"") if answer.status == 200 else b""
    finally:
        await answer.aclose()
    is_unknown = answer.status in UNKNOWN_ADDRESS_STATUSES or b"Unexpected endpoint" in beginning
    return ServerAnswer(answer.status, not (is_unknown or is_page))


def judge_answer(upstream: UpstreamSettings, answer: ServerAnswer) -> Finding:
    """Judge from the status whether the server and its settings work."""
    status = answer.status
    answers = f"{_describe_upstream(upstream)} answers ({status})"
    if status in CREDENTIAL_STATUSES and upstream.api_key:
        return Finding(
            False, f"{answers}, but refuses the key: check {upstream.path_in_settings}.api_key"
        )
    if status in CREDENTIAL_STATUSES:
        return Finding(True, f"{answers}; it wants a credential, which clients send")
    if status in REDIRECT_STATUSES:
        return Finding(
            False,
            f"{answers} with a redirect, which requests do not follow: check {upstream.path_in_settings}.base_url",
        )
    if status >= 500:
        return Finding(
            False,
            f"{answers}: it is failing, or {upstream.path_in_settings}.base_url names another server",
        )
    return Finding(True, answers)


def _describe_upstream(upstream: UpstreamSettings) -> str:
    name = render_value(("name",), upstream.name)
    address = render_value(("base_url",), upstream.base_url)
    apis = ", ".join(upstream.apis)
    return f"{upstream.path_in_settings} {name} at {address} ({apis})"


async def examine_webhooks(store: EventLog, settings: Settings) -> list[Finding]:
    """Return a finding for each hook of the settings. It names the hook by its place there, since
    several may be on one host, and no more of the address than host and port: it may hold a key."""
    findings = []
    for index, hook in enumerate(settings.telemetry.webhooks):
        state = await store.webhook_state(name_hook(hook.url))
        waiting = await count_waiting(store, state.cursor) if state else 0
        path = f"telemetry.webhooks[{index}]"
        findings.append(describe_webhook(path, name_receiver(hook.url), state, waiting))
    return findings


async def count_waiting(store: EventLog, cursor: int) -> int:
    """Return how many of the events that are kept come after this one."""
    return len((await store.events(None, None, cursor, MAX_EVENTS)).events)


def describe_webhook(path: str, receiver: str, state: WebhookState | None, waiting: int) -> Finding:
    """Describe how a hook does. `path`: its place in the settings; `receiver`: host and port."""
    hook = f"webhook {path} ({receiver})"
    if state is None:
        return Finding(True, f"{hook}: no server has run with it yet")
    if state.failures:
        return Finding(
            False,
            f"{hook}: {state.failures} failures in a row, the last one {state.cause}; "
            f"up to {waiting} events wait: {advise(path, state.cause)}",
        )
    return Finding(True, f"{hook}: its receiver takes events, up to {waiting} wait")


def advise(path: str, cause: str) -> str:
    """Say what to do about the cause that the sender has stored of a hook's last failure."""
    kind, _, status = cause.partition(" ")
    if kind == "status":
        return _advise_on_status(path, int(status))
    if cause in ("timeout", "ReadTimeout", "WriteTimeout"):
        return (
            f"no answer came within {REQUEST_TIMEOUT_S:.0f} s: check that the receiver is reached, "
            "and answers before it works on the event"
        )
    return f"no answer came: check that the receiver runs, and {path}.url"


def _advise_on_status(path: str, status: int) -> str:
    if status in CREDENTIAL_STATUSES:
        return f"the receiver refuses: check that it knows the secret of {path}"
    if status in REDIRECT_STATUSES:
        return f"a redirect is not followed: check {path}.url"
    if status in UNKNOWN_ADDRESS_STATUSES:
        return f"the receiver has no such address: check {path}.url"
    return "the receiver must answer 2xx: its own log may say why it does not"
