"""What the edge needs of the settings at every request, made once per configuration."""

from __future__ import annotations

import re
from dataclasses import dataclass

from proxy.memory import identity
from proxy.settings import Settings
from proxy.wire.chat import ChatRequest, prompt_text


@dataclass(frozen=True, slots=True)
class Site:
    """A configuration as the edge sees it; swapped whole when the file changes."""

    settings: Settings
    identity: identity.Rules
    own_headers: frozenset[bytes]  # never sent upstream: identity headers and their aliases
    side_prompts: tuple[re.Pattern[str], ...]

    @classmethod
    def of(cls, settings: Settings) -> Site:
        headers = settings.identity
        keys = tuple((k.tenant, k.key.get_secret_value()) for k in settings.auth.keys)
        return cls(
            settings=settings,
            identity=identity.Rules(
                thread_headers=headers.thread_headers,
                resource_headers=headers.resource_headers,
                keys=keys,
                loopback=settings.server.loopback,
                memory=settings.memory.enabled,
            ),
            own_headers=frozenset(h.encode() for h in (*headers.thread_headers, *headers.resource_headers)),
            side_prompts=tuple(re.compile(p) for p in settings.side_requests.prompts),
        )

    def is_side_request(self, request: ChatRequest) -> bool:
        """Title, tag and follow-up generation of chat UIs, told by model or by the text of a message (behaviour.md 2)."""
        if request.model in self.settings.side_requests.models:
            return True
        told_by = (*request.instructions[:1], *request.messages[:1], *request.messages[-1:])
        return any(pattern.search(text) for text in map(prompt_text, told_by) for pattern in self.side_prompts)
