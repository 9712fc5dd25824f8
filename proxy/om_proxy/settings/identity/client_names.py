"""Name the client of a request by the beginning of its User-Agent. The whole header is free text:
it is neither logged nor counted."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from om_proxy.settings.identity.header_values import Headers

# the beginning of a User-Agent, in lower case → the client, by the name of its page
_CLIENTS: Mapping[str, str] = {
    "agents/python": "openai-agents",
    "ai-sdk": "vercel-ai-sdk",
    "ai/": "vercel-ai-sdk",
    "anthropic/js": "anthropic-node",
    "anthropic/python": "anthropic-python",
    "asyncanthropic/python": "anthropic-python",
    "asyncopenai/python": "openai-python",
    "claude-cli": "claude-code",
    "codex": "codex",
    "langchain": "langchain",
    "litellm": "litellm",
    "openai/js": "openai-node",
    "openai/python": "openai-python",
    "opencode": "opencode",
    "pydantic-ai": "pydantic-ai",
}
_CLIENTS_WITHOUT_PAGE = ("aider", "continue", "curl", "node", "python-httpx", "python-requests")
OTHER_CLIENT = "other"
CLIENT_NAMES = (*sorted({*_CLIENTS.values(), *_CLIENTS_WITHOUT_PAGE}), OTHER_CLIENT)
# of these clients, the pages in docs/quickstart; of the others, those in docs/clients
QUICKSTARTS: Mapping[str, str] = {
    "claude-code": "coding-agents",
    "codex": "coding-agents",
    "librechat": "librechat",
}
_MAX_AGENT_CHARS = 24  # more than any beginning has
_MAX_CACHED_AGENTS = 256


def name_client(headers: Headers) -> str:
    """Return the client that a request's User-Agent names, of `CLIENT_NAMES`."""
    for name, value in headers:
        if name == b"user-agent":
            return _name_agent(value[:_MAX_AGENT_CHARS])
    return OTHER_CLIENT


def name_client_page(client: str) -> str:
    """Return the page about a client that has one."""
    quickstart = QUICKSTARTS.get(client)
    return f"docs/quickstart/{quickstart}.md" if quickstart else f"docs/clients/{client}.md"


def list_client_pages() -> dict[str, str]:
    """Return the page of each client that `name_client` may return and that has one."""
    return {client: name_client_page(client) for client in _CLIENTS.values()}


@lru_cache(_MAX_CACHED_AGENTS)
def _name_agent(agent: bytes) -> str:
    text = agent.decode("latin-1").lower()
    for beginning, client in _CLIENTS.items():
        if text.startswith(beginning):
            return client
    return next((each for each in _CLIENTS_WITHOUT_PAGE if text.startswith(each)), OTHER_CLIENT)
