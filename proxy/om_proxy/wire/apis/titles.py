"""Name a conversation: by the title that its client asked a model for, else by its first words."""

from __future__ import annotations

import re
from collections.abc import Sequence

from om_proxy.memory.notes.observations import MAX_TITLE_CHARS
from om_proxy.memory.recall.clipping import move_to_word_end
from om_proxy.memory.recall.passages import MessageText
from om_proxy.wire.apis.json_text import parse_arguments
from om_proxy.wire.apis.registry import view_message

MAX_FIRST_WORDS_CHARS = 60
ASKING_CHARS = 200  # a request for a title says so at its beginning
_JSON_TITLE = re.compile(r'"title"\s*:\s*"(?:[^"\\]|\\.)*"')
_TAGGED_TITLE = re.compile(r"<title>([^<]*)</title>")
_FRAMES = "\"'*_`# \t"


def asks_for_title(texts: Sequence[str]) -> bool:
    """Return whether one of a side request's texts asks for a title, not for tags or the like."""
    return any("title" in text[:ASKING_CHARS].lower() for text in texts)


def read_replied_title(reply: bytes | None, api: str) -> str | None:
    """Return the title that a model's reply gives; None: it gives none. Some clients let it call a
    function with the title."""
    view = view_message(reply, api) if reply else None
    if view is None:
        return None
    texts = [
        text for part in view.parts() if (text := part if isinstance(part, str) else part.text)
    ]
    arguments = [call.arguments for call in view.calls() if isinstance(call.arguments, str)]
    return read_title("".join(texts) or "".join(arguments))


def read_title(answer: str) -> str | None:
    """Return the title in a text: in JSON, in a tag, or all of a short line. None: it holds
    none."""
    answer = answer.rpartition("</think>")[2].strip()
    if found := _JSON_TITLE.search(answer):
        read = parse_arguments(f"{{{found[0]}}}")
        title = read["title"] if isinstance(read, dict) else ""
    elif found := _TAGGED_TITLE.search(answer):
        title = found[1]
    else:
        title = re.sub(r"^\W*title:\s*", "", answer, flags=re.IGNORECASE)
        if "\n" in title or len(title) > MAX_TITLE_CHARS:
            return None
    return " ".join(title.split()).strip(_FRAMES)[:MAX_TITLE_CHARS] or None


def cut_first_words(message: MessageText) -> str | None:
    """Return the first words of a message, in one line; None: it has none."""
    text = " ".join(message.spoken)[: 8 * MAX_FIRST_WORDS_CHARS]
    words = " ".join(text.split())
    if len(words) <= MAX_FIRST_WORDS_CHARS:
        return words or None
    return f"{words[: move_to_word_end(words, MAX_FIRST_WORDS_CHARS - 1)].rstrip()}…"
