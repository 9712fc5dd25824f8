"""Which layout a prompt has."""

from __future__ import annotations

import pytest

from om_proxy.memory.prompt.context import SEPARATE_BLOCKS_HOSTS, Layout, layout_for


@pytest.mark.parametrize(
    ("host", "configured", "layout"),
    [
        *[(host, "auto", "blocks") for host in SEPARATE_BLOCKS_HOSTS],
        ("API.OpenAI.com", "auto", "blocks"),
        ("api.openai.com:443", "auto", "blocks"),
        ("mine.openai.azure.com", "auto", "blocks"),
        ("eu.api.openai.com", "auto", "blocks"),
        ("notapi.openai.com", "auto", "merged"),
        ("api.openai.com.evil.example", "auto", "merged"),
        ("localhost", "auto", "merged"),
        ("", "auto", "merged"),
        ("localhost", "blocks", "blocks"),
        ("api.openai.com", "merged", "merged"),
    ],
)
def test_layout_for(host: str, configured: str, layout: Layout) -> None:
    """The configured layout holds; `auto` separates only for hosts known to take it."""
    assert layout_for(host, configured) == layout
