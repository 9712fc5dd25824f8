"""The client of a request, by its User-Agent: a word of ours, whatever the header says."""

from __future__ import annotations

import pytest

from om_proxy.settings.identity.client_names import CLIENT_NAMES, OTHER_CLIENT, name_client


@pytest.mark.parametrize(
    ("agent", "client"),
    [
        (b"OpenAI/Python 2.54.0", "openai-python"),
        (b"AsyncOpenAI/Python 2.54.0", "openai-python"),
        (b"OpenAI/JS 6.9.1", "openai-node"),
        (b"AsyncAnthropic/Python 0.75.0", "anthropic-python"),
        (b"Anthropic/JS 0.71.2", "anthropic-node"),
        (b"Agents/Python 0.6.1", "openai-agents"),
        (b"claude-cli/2.0.55 (external, cli)", "claude-code"),
        (b"codex_cli_rs/0.63.0 (Debian 13; x86_64)", "codex"),
        (b"ai/5.0.102 ai-sdk/openai/2.0.71 runtime/node.js/v22", "vercel-ai-sdk"),
        (b"python-httpx/0.28.1", "python-httpx"),
        (b"curl/8.14.1", "curl"),
        (b"Mozilla/5.0 (X11) OpenAI/Python", OTHER_CLIENT),
        (b"\xff\x00" * 9_000, OTHER_CLIENT),
        (b"", OTHER_CLIENT),
    ],
)
def test_the_beginning_names_the_client(agent: bytes, client: str) -> None:
    assert client in CLIENT_NAMES
    assert name_client([(b"accept", b"curl"), (b"user-agent", agent)]) == client


def test_without_the_header() -> None:
    assert name_client([(b"accept", b"curl")]) == OTHER_CLIENT
