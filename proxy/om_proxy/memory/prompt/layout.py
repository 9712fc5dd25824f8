"""Choose where memory's texts go in a prompt: `blocks`, as messages of their own, or `merged`,
inside the client's instructions. `user`, inside the first user message, is for servers that refuse a
system message. Each API writes them in its own form, as wire/apis/chat/layout.py does."""

from __future__ import annotations

from typing import Literal

Layout = Literal["blocks", "merged", "user"]

# with their subdomains; their services take several system messages
SEPARATE_BLOCKS_HOSTS = (
    "api.openai.com",
    "api.anthropic.com",
    "openai.azure.com",
    "openrouter.ai",
    "api.groq.com",
    "api.deepseek.com",
    "api.mistral.ai",
    "api.x.ai",
)


def layout_for(host: str, configured: str) -> Layout:
    """Return the layout for this host, which may carry a port. `auto`: separate blocks for hosts
    known to take them, merged for all others."""
    if configured == "blocks":
        return "blocks"
    name = host.lower().partition(":")[0].rstrip(".")
    takes_blocks = any(
        name == known or name.endswith(f".{known}") for known in SEPARATE_BLOCKS_HOSTS
    )
    return "blocks" if configured == "auto" and takes_blocks else "merged"


def adds_system_message(layout: Layout, *, has_instructions: bool) -> bool:
    """Return whether memory's block is in a system message that the client did not send."""
    return layout == "blocks" or (layout == "merged" and not has_instructions)


def layout_without_system(*, has_instructions: bool) -> Layout:
    """Return the layout for a server that refuses such a message."""
    return "merged" if has_instructions else "user"
