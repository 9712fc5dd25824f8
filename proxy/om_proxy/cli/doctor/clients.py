"""Say what a client needs to have memory, and what a running server has seen of its requests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import httpx

from om_proxy.cli.answers import render_count
from om_proxy.cli.doctor.upstreams import ANSWER_TIMEOUT_S, Finding
from om_proxy.common.errors import UsageError
from om_proxy.edge.vocabulary import explain_reason
from om_proxy.settings.config import Settings
from om_proxy.settings.identity.client_names import name_client_page
from om_proxy.wire.upstream import AiohttpTransport

_HEADERS_NEED = (
    "its base URL, and X-OM-Thread (and X-OM-Resource) as default headers or with each call"
)
# by the names of their pages
CLIENT_NEEDS = {
    "anthropic-node": _HEADERS_NEED,
    "anthropic-python": _HEADERS_NEED,
    "claude-code": "ANTHROPIC_BASE_URL with the thread in it; its notes stand beside its own memory",
    "codex": "a model provider with the thread in its base_url; its notes stand beside its own memory",
    "langchain": _HEADERS_NEED,
    "librechat": "a custom endpoint, with the conversation in its headers",
    "litellm": _HEADERS_NEED,
    "litellm-proxy-before": "om-proxy as api_base of a model, and LiteLLM's clients naming the thread",
    "litellm-proxy-behind": "LiteLLM as base_url of an upstream; clients name the thread to om-proxy",
    "llm": "api_base and headers in extra-openai-models.yaml: it has one thread for each model there",
    "open-webui": "OPENAI_API_BASE_URL (it counts at the first start; then its own settings do), and ENABLE_FORWARD_USER_INFO_HEADERS=true",
    "openai-agents": f"{_HEADERS_NEED}; on the Responses API no previous_response_id",
    "openai-node": _HEADERS_NEED,
    "openai-python": _HEADERS_NEED,
    "opencode": "baseURL of a provider; it names its sessions by itself",
    "pydantic-ai": _HEADERS_NEED,
    "vercel-ai-sdk": _HEADERS_NEED,
}
_COUNT_LINE = re.compile(r"om_requests_total\{(?P<labels>[^}]*)\} (?P<count>[0-9.e+]+)")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


async def examine_client(name: str, settings: Settings) -> list[Finding]:
    """Return what the client needs, then what a server of these settings has counted by reason. Raise
    UsageError for a name without a page."""
    if name not in CLIENT_NEEDS:
        raise UsageError(
            f"there is no page of a client {name}; there are {', '.join(CLIENT_NEEDS)}"
        )
    needs = f"{name} needs {CLIENT_NEEDS[name]} ({name_client_page(name)})"
    return [Finding(True, needs), *await _examine_requests(settings)]


async def _examine_requests(settings: Settings) -> list[Finding]:
    server = settings.server
    address = f"http://{server.local_host}:{server.port}"
    token = settings.telemetry.metrics_token
    headers = {"authorization": f"Bearer {token.get_secret_value()}"} if token else {}
    async with httpx.AsyncClient(
        transport=AiohttpTransport(), trust_env=False, timeout=ANSWER_TIMEOUT_S
    ) as client:
        try:
            answer = await client.get(f"{address}/metrics", headers=headers)
        except httpx.HTTPError as exc:
            return [Finding(False, f"no server answers at {address} ({type(exc).__name__})")]
    if answer.status_code != 200:
        return [
            Finding(
                False,
                f"{address}/metrics answers {answer.status_code}, so what it has counted is not known here: set "
                "telemetry.metrics_token, and leave telemetry.metrics on",
            )
        ]
    found = [*describe_counts(answer.text.splitlines())]
    return found or [
        Finding(False, f"no request has come to {address}: check the client's base URL")
    ]


def describe_counts(lines: Iterable[str]) -> Iterator[Finding]:
    """Describe the requests of a server since its start, of all clients, by status, reason, client,
    and API or route."""
    for line in lines:
        if match := _COUNT_LINE.fullmatch(line):
            labels = dict(_LABEL.findall(match["labels"]))
            count, status, reason = float(match["count"]), labels["status"], labels["reason"]
            words = " ".join(filter(None, (status, reason)))
            where = labels.get("route") or labels["api"]
            client = labels.get("client")
            meaning = explain_reason(reason)
            yield Finding(
                status in ("applied", "raw"),
                f"{render_count(int(count), 'request')}{f' of {client}' if client else ''} by {where}: "
                f"{words}{f': {meaning}' if meaning else ''}",
            )
