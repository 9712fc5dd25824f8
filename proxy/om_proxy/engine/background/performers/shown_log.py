"""Render the log of a memory as the memory models read it."""

from __future__ import annotations

from collections.abc import Sequence

from om_proxy.memory.lifecycle import transitions
from om_proxy.memory.model import Memory, Observation
from om_proxy.memory.notes import sections


def list_known_notes(memory: Memory) -> list[str]:
    """Return the notes the observer is shown: the log, with a pending reflection in place of the
    entries it covers, then the buffered notes."""
    log, reflection = memory.log.entries, memory.log.reflection
    at = transitions.find_sources(log, reflection) if reflection else None
    shown = [
        section for o in (log[: at.start] if at else log) for section in sections.split_entry(o)
    ]
    if reflection and at:
        labels = find_thread_labels(log[at])
        shown += (
            sections.split_reflection(reflection.text, labels)
            if labels
            else [sections.Section(None, reflection.text)]
        )
        shown += (section for o in log[at.stop :] for section in sections.split_entry(o))
    return sections.render_plain(shown) + [o.text for o in memory.chunks]


def render_sources(sources: Sequence[Observation]) -> str:
    """Return the text that the reflector condenses; sections, if the log is shared."""
    if find_thread_labels(sources):
        return sections.render_sections(
            section for o in sources for section in sections.split_entry(o)
        )
    return "\n\n".join(o.text for o in sources if not o.is_withdrawn)


def find_thread_labels(entries: Sequence[Observation]) -> set[str]:
    """Return the labels of the threads that entries of a shared log are about; none for the entries
    of a thread's own log."""
    return {part.label for o in entries for part in o.parts}
