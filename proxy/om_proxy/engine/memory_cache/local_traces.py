"""Have every part of this process drop what it keeps of forgotten threads and of erased words."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from om_proxy.engine.memory_cache.held_memories import HeldMemories
from om_proxy.memory.model import Key


class LocalTraces:
    """The state of threads that this process keeps beside the store. Other parts add what drops
    their own."""

    def __init__(self, held: HeldMemories) -> None:
        self._held = held
        # called with a forgotten thread, to remove its traces in this process
        self.on_forget: list[Callable[[Key], None]] = []
        # the same with a retired thread, apart from its turns that wait
        self.on_retire: list[Callable[[Key], None]] = []
        # called when words were erased, to drop the texts that this process keeps to be fast
        self.on_words_erased: list[Callable[[], None]] = []

    def drop_forgotten(self, key: Key) -> None:
        """Remove what this process holds of a forgotten thread."""
        for notify in self.on_forget:
            notify(key)
        # prompts of the resource's other threads may contain its text
        for held_key in [held for held in self._held.list_keys() if held[:2] == key[:2]]:
            self._held.drop(held_key)

    def drop_retired(self, keys: Sequence[Key]) -> None:
        """Remove what this process holds of retired threads, but not turns that wait."""
        resources = {key[:2] for key in keys}
        for key in keys:
            for notify in self.on_retire:
                notify(key)
        held = [held for held in self._held.list_keys() if held[:2] in resources]
        for held_key in held:
            self._held.drop(held_key)
        if held:  # mostly none: nobody has used them for long
            self.drop_texts()

    def drop_texts(self) -> None:
        """Drop the texts that this process keeps to be fast."""
        for drop in self.on_words_erased:
            drop()
