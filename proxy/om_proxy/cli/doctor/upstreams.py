"""Ask each model server whether it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from om_proxy.common.errors import Overloaded, UpstreamError
from om_proxy.settings.config import Settings, render_value
from om_proxy.settings.config.sections.service import UpstreamSettings
from om_proxy.wire.upstream import Upstream

ANSWER_TIMEOUT_S = 5.0  # for the connection, and again for the head of the answer
CREDENTIAL_STATUSES = frozenset({401, 403, 407})
REDIRECT_STATUSES = range(300, 400)


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `works` is False if something needs attention."""

    works: bool
    text: str


class HasStatus(Protocol):
    """The only part of a server's answer that is examined."""

    @property
    def status(self) -> int: ...


async def examine_upstreams(settings: Settings) -> list[Finding]:
    """Return one finding for each upstream, in the order of the settings. This makes no chat call,
    follows no redirect and reads no body."""
    client = Upstream(connections=1)
    try:
        return [await _examine_upstream(client, upstream) for upstream in settings.upstream]
    finally:
        await client.aclose()


async def _examine_upstream(client: Upstream, upstream: UpstreamSettings) -> Finding:
    """Send `GET /models`, which every server of this API should know. A server that does not know
    the path answers too."""
    key = upstream.api_key.get_secret_value() if upstream.api_key else None
    headers = [(b"accept", b"application/json")]
    if key:
        headers.append((b"authorization", f"Bearer {key}".encode()))
    try:
        answer = await client.send(
            "GET",
            f"{upstream.base_url}/models",
            headers,
            b"",
            connect_timeout_s=min(upstream.connect_timeout, ANSWER_TIMEOUT_S),
            read_timeout_s=min(upstream.read_timeout, ANSWER_TIMEOUT_S),
            path_in_settings=upstream.path_in_settings,
        )
    except (UpstreamError, Overloaded) as exc:
        return Finding(False, f"{_describe_upstream(upstream)}: {exc}")
    await answer.aclose()
    return judge_answer(upstream, answer)


def judge_answer(upstream: UpstreamSettings, answer: HasStatus) -> Finding:
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
    return f"{upstream.path_in_settings} {name} at {address}"
