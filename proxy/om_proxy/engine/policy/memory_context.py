"""Hold the context of memory work: everything it takes from the request that made it due."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from om_proxy.agents.model_access.llm import Target
from om_proxy.memory.model import Key
from om_proxy.memory.prompt.context import ContextOptions, Layout
from om_proxy.settings.config import Effective
from om_proxy.wire.apis.api import Api


@dataclass(frozen=True, slots=True)
class Instructions:
    """The beginning of a request's instructions, and the thread of the request. Instructions say
    nothing about another thread. They are never stored."""

    key: Key
    api: Api
    beginning: tuple[bytes, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class MemoryContext:
    """The settings of a request, and the model and credential that memory work may inherit."""

    effective: Effective
    # the actor's model and credential; never stored
    inherited: Target | None = field(default=None, repr=False)
    layout: Layout = "merged"
    context_options: ContextOptions = field(default_factory=ContextOptions)
    # None: not known, as after a restart
    instructions: Instructions | None = field(default=None, repr=False)
    # this context without a thread's own settings, if it has any
    bare: MemoryContext | None = field(default=None, repr=False)
    # the model that observes first, for the log
    observer_name: str | None = None
    # whether the actor is known to call tools; False too where nobody asks
    calls_tools: bool = False

    def with_instructions(self, instructions: Instructions) -> MemoryContext:
        """Return the context for the work of one turn."""
        # `replace` takes twice as long, and most turns come here
        return MemoryContext(
            self.effective,
            self.inherited,
            self.layout,
            self.context_options,
            instructions,
            self.bare,
            self.observer_name,
            self.calls_tools,
        )

    def with_layout(self, layout: Layout) -> MemoryContext:
        """Return the context for a server that takes memory's texts in this layout."""
        return self if layout == self.layout else replace(self, layout=layout)

    def with_overrides(self, overrides: bytes | None) -> MemoryContext:
        """Return the context with the settings that a person gave this thread (`Memory.overrides`),
        and without those of any other thread."""
        bare = self.bare or self
        if not overrides:
            return bare
        return replace(bare, effective=bare.effective.with_overrides(overrides), bare=bare)
