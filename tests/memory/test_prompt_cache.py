"""When a conversation comes to a prompt cache that never saw it; lifetimes are proven in tests/test_catalogue.py."""

from __future__ import annotations

import pytest

from proxy.memory.prompt_cache import moved


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        pytest.param("gpt-4o", "gpt-4o", False, id="the same"),
        pytest.param("gpt-4o", "claude-sonnet-4-5", True, id="another provider's"),
        pytest.param("gpt-4o", "gpt-4o-mini", True, id="a smaller sibling: no provider shares a cache between models"),
        pytest.param("openai/gpt-4o", "azure/gpt-4o", True, id="the same model elsewhere"),
        pytest.param(None, "gpt-4o", False, id="nobody has answered yet"),
        pytest.param("gpt-4o", None, False, id="the server's own choice, which may be the same"),
    ],
)
def test_moved(before: str | None, now: str | None, expected: bool) -> None:
    """Another model's cache is another cache, whoever serves it; what nobody names is no change."""
    assert moved(before, now) is expected
