"""Answers as memory models give them, good and bad, each with what must become of it."""

from __future__ import annotations

from tests.agents.corpus import forms, honest, unusable
from tests.agents.corpus.entry import Entry

HONEST: tuple[Entry, ...] = tuple(honest.entries())
USABLE: tuple[Entry, ...] = (*forms.entries(), *HONEST)
UNUSABLE: tuple[Entry, ...] = tuple(unusable.entries())

__all__ = ["HONEST", "UNUSABLE", "USABLE", "Entry"]
