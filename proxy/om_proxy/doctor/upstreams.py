"""Ask each model server whether it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from om_proxy.errors import Overloaded, UpstreamError
from om_proxy.settings import Settings, render_value
from om_proxy.settings.service import UpstreamSettings
from om_proxy.upstream import Upstream

ANSWER_TIMEOUT_S = 5.0  # for the connection, and again for the head of the answer
REFUSED = frozenset({401, 403, 407})
REDIRECTS = range(300, 400)


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; `works` is False where something needs attention."""

    works: bool
    text: str


class Answering(Protocol):
    """What of a server's answer is looked at: nothing but its status."""

    @property
    def status(self) -> int: ...


async def examine_upstreams(settings: Settings) -> list[Finding]:
    """One finding for each upstream, in the order of the settings. No chat call is made, no
    redirect followed, no body read."""
    caller = Upstream(connections=1)
    try:
        return [await _examined(caller, upstream) for upstream in settings.upstream]
    finally:
        await caller.aclose()


async def _examined(caller: Upstream, upstream: UpstreamSettings) -> Finding:
    """`GET /models` is the one request that every server of this API knows; one that does not know
    it answers all the same."""
    key = upstream.api_key.get_secret_value() if upstream.api_key else None
    headers = [(b"accept", b"application/json")]
    if key:
        headers.append((b"authorization", f"Bearer {key}".encode()))
    try:
        answer = await caller.send(
            "GET",
            f"{upstream.base_url}/models",
            headers,
            b"",
            connect_timeout=min(upstream.connect_timeout, ANSWER_TIMEOUT_S),
            read_timeout=min(upstream.read_timeout, ANSWER_TIMEOUT_S),
            setting=upstream.place,
        )
    except (UpstreamError, Overloaded) as exc:
        return Finding(False, f"{_name(upstream)}: {exc}")
    await answer.aclose()
    return judge_answer(upstream, answer)


def judge_answer(upstream: UpstreamSettings, answer: Answering) -> Finding:
    """What a status says of the server and of its settings."""
    status, said = answer.status, f"{_name(upstream)} answers ({answer.status})"
    if status in REFUSED and upstream.api_key:
        return Finding(False, f"{said}, but refuses the key: check {upstream.place}.api_key")
    if status in REFUSED:
        return Finding(True, f"{said}; it wants a credential, which callers bring")
    if status in REDIRECTS:
        return Finding(
            False,
            f"{said} with a redirect, which requests do not follow: check {upstream.place}.base_url",
        )
    if status >= 500:
        return Finding(
            False, f"{said}: it is failing, or {upstream.place}.base_url is another server's"
        )
    return Finding(True, said)


def _name(upstream: UpstreamSettings) -> str:
    name, address = (
        render_value(("name",), upstream.name),
        render_value(("base_url",), upstream.base_url),
    )
    return f"{upstream.place} {name} at {address}"
