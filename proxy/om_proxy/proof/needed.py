"""What a recorded reply needed later: its paths, numbers, URLs and identifiers that stood in the history
and stand in no raw message any more. Some stand in notes; the others are missing.

An agent may read a file again, or look a message up: what is missing is an alarm, not a score.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import orjson

from om_proxy.proof.conversation import Message

_LITERAL_PATTERN = re.compile(
    r"""https?://[\w.~:/?\#@!$&*+,;=%-]+         # a URL
    | (?<![\w./-])/?(?:[\w.@-]+/)+[\w.@-]+       # a path
    | (?<![\w.])\d[\d.,:-]*\d\d(?!\w)            # a number of three characters or more
    | \b[A-Za-z]\w*(?:_\w+|[a-z0-9][A-Z]\w*|\d\w*)\b  # an identifier: snake_case, camelCase, abc1
    """,
    re.VERBOSE,
)
NOTES_PATTERN = re.compile(r"<observations>(.*?)</observations>", re.DOTALL)
MIN_LITERAL_CHARS = 3
NAMES_WITHOUT_TEXT = frozenset(("role", "type", "id", "tool_call_id"))


@dataclass(slots=True)
class NeededLater:
    """The literals of one conversation, each at the first reply that needed it."""

    in_notes: set[str] = field(default_factory=set)
    missing: list[str] = field(default_factory=list)
    _history: set[str] = field(default_factory=set)
    _found: dict[bytes, frozenset[str]] = field(default_factory=dict)  # by message

    @property
    def count(self) -> int:
        return len(self.in_notes) + len(self.missing)

    def add_call(self, sent: Iterable[bytes], prompt: Sequence[Message], reply: bytes) -> None:
        """Take one call: what the client sent, what went upstream, and the recorded reply."""
        whole = set(sent)
        for raw in whole - self._found.keys():
            self._history |= self._find(raw)
        forwarded = [(orjson.dumps(message), message) for message in prompt]
        raw_literals = [self._find(raw) for raw, _ in forwarded if raw in whole]
        own = (text for raw, m in forwarded if raw not in whole for text in list_strings(m))
        noted = frozenset(list_literals(find_notes("\n".join(own))))
        known = self.in_notes.union(self.missing)
        for literal in sorted(self._history & self._find(reply) - known):
            if not any(literal in literals for literals in raw_literals):
                if literal in noted:
                    self.in_notes.add(literal)
                else:
                    self.missing.append(literal)

    def _find(self, raw: bytes) -> frozenset[str]:
        if raw not in self._found:
            self._found[raw] = frozenset(list_literals("\n".join(list_strings(orjson.loads(raw)))))
        return self._found[raw]


def list_literals(text: str) -> Iterator[str]:
    for match in _LITERAL_PATTERN.finditer(text):
        literal = match[0].rstrip(".,:;-")
        if len(literal) >= MIN_LITERAL_CHARS:
            yield literal


def list_strings(value: object) -> Iterator[str]:
    """Yield every text of a message, those of tool calls too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, inner in value.items():
            if name == "arguments" and isinstance(inner, str):
                yield from list_strings(read_arguments(inner))
            elif name not in NAMES_WITHOUT_TEXT:
                yield from list_strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from list_strings(inner)


def read_arguments(text: str) -> object:
    """Return the arguments of a tool call, or their text if they are no JSON."""
    try:
        return orjson.loads(text)
    except ValueError:
        return text


def find_notes(text: str) -> str:
    """Return the notes that stand in a prompt of the proxy, or in a memory model's answer."""
    return "\n".join(NOTES_PATTERN.findall(text))
