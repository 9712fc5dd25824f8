"""Choose where memory's texts go in a prompt: `blocks`, as messages of their own, or `merged`, inside
the client's instructions. Each API writes both in its own words: apis/chat/layout.py."""

from __future__ import annotations

from typing import Literal

Layout = Literal["blocks", "merged"]

SEPARATE_BLOCKS = (  # hosts, each with its subdomains, whose services take several system messages
    "api.openai.com",
    "openai.azure.com",
    "openrouter.ai",
    "api.groq.com",
    "api.deepseek.com",
    "api.mistral.ai",
    "api.x.ai",
)


def layout_for(host: str, configured: str) -> Layout:
    """`auto`: separate blocks for hosts known to take them, merged for all others. `host` may carry
    a port."""
    if configured == "blocks":
        return "blocks"
    name = host.lower().partition(":")[0].rstrip(".")
    known = any(name == one or name.endswith(f".{one}") for one in SEPARATE_BLOCKS)
    return "blocks" if configured == "auto" and known else "merged"
