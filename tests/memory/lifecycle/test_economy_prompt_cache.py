"""How long a provider keeps a prompt, and when a conversation comes to a cache that never saw
it."""

from __future__ import annotations

import pytest

from om_proxy.memory.lifecycle.economy import DAY, HOUR, MINUTE, cache_lifetime, has_moved


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        pytest.param("gpt-4o", "gpt-4o", False, id="the same"),
        pytest.param("gpt-4o", "claude-sonnet-4-5", True, id="another provider's"),
        pytest.param(
            "gpt-4o",
            "gpt-4o-mini",
            True,
            id="a smaller sibling: no provider shares a cache between models",
        ),
        pytest.param("openai/gpt-4o", "azure/gpt-4o", True, id="the same model elsewhere"),
        pytest.param(None, "gpt-4o", False, id="nobody has answered yet"),
        pytest.param("gpt-4o", None, False, id="the server's own choice, which may be the same"),
    ],
)
def test_moved(before: str | None, now: str | None, expected: bool) -> None:
    """Another model's cache is another cache, whoever serves it; what nobody names is no change."""
    assert has_moved(before, now) is expected


@pytest.mark.parametrize(
    ("host", "model", "seconds"),
    [
        ("api.openai.com", "gpt-4o", 5 * MINUTE),
        ("api.openai.com", "gpt-5", 5 * MINUTE),
        ("api.openai.com", "gpt-5-mini", 5 * MINUTE),
        ("api.openai.com", "gpt-5.4-mini", 5 * MINUTE),
        ("api.openai.com", "gpt-5.5", HOUR),
        ("api.openai.com", "o3", HOUR),
        ("me.openai.azure.com", "gpt-4o", 5 * MINUTE),
        ("generativelanguage.googleapis.com", "gemini-2.5-flash", DAY),
        ("api.deepseek.com", "deepseek-chat", HOUR),
        ("api.groq.com", "openai/gpt-oss-120b", 2 * HOUR),
        ("api.anthropic.com", "claude-sonnet-4-5", 5 * MINUTE),
        ("openrouter.ai", "openai/gpt-5.5", HOUR),
        ("openrouter.ai", "google/gemini-2.5-pro", DAY),
        ("gateway.local", "gemini/gemini-2.5-pro", DAY),
        ("gateway.local", "gpt-4o", 5 * MINUTE),
        ("", "", 5 * MINUTE),
    ],
)
def test_cache_lifetime(host: str, model: str, seconds: int) -> None:
    """The host decides where it is known, else the model's provider; else it is five minutes."""
    assert cache_lifetime(host, model) == seconds
