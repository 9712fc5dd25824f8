"""Recognise a message that only looks different: its client has stored it or written it another
way.

White space, line ends, the Unicode form, a time stamp in front, the signature in an image's address
and a cut with a mark change no meaning. Other texts do: those are corrections (corrections.py).

Fingerprints come first. Texts are compared only where those leave a message without its place.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple
from unicodedata import normalize

from om_proxy.memory.message_view import MessageView

# a shorter rest of a text may be the rest of many
MIN_KEPT_CHARS = 12

_CUT_WORDS = "truncat|omit|cut|clip|shorten|trimm|elid|elision|snip|abbrev|redact|more|char"
_REMARK = rf"[^\[\](){{}}<>]{{0,60}}(?:{_CUT_WORDS})[^\[\](){{}}<>]{{0,60}}"
_CUT_MARK = re.compile(
    rf"(?:\s?(?:…|\.{{3,}}+|[\[(<{{]\s?(?:…|\.{{2,9}})\s?[\])>}}]|[\[(<{{]{_REMARK}[\])>}}]"
    rf"|(?<!-)-{{2,5}}(?!-)[\w ,.]{{0,40}}(?:{_CUT_WORDS})[\w ,.]{{0,40}}-{{2,5}}))+"
    rf"(?:\s?[+\d][^\[\](){{}}<>]{{0,30}}(?:{_CUT_WORDS})\w{{0,12}}\.?$)?",
    re.IGNORECASE,
)
MAX_CUT_MARKS = 8  # tried in a text

# possessive throughout: texts come from strangers, and a stamp has no two readings
MAX_STAMP_CHARS = 80
# in English, German and French
_DATE_NAMES = (
    "(?:mon|tue|wed|thu|fri|sat|sun|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec"
    "|dienstag|mittwoch|donnerstag|freitag|samstag|sonntag|märz|mai\\b|okt|dez"
    "|lundi|mardi|mercredi|jeudi|vendredi|samedi|dimanche|févr|avr|juin|juil|août|déc)"
)
_DATE_WORD = rf"{_DATE_NAMES}[a-z]*+(?=[\s,.]*+(?:\d|{_DATE_NAMES}))"
_STAMP_PIECE = (
    rf"(?:\d[\d:.,/\-+tzh]*+|{_DATE_WORD}|[ap]\.?m\b\.?|utc|gmt|uhr"
    rf"|(?:at|on|um|à|le)(?=\s(?:\d|{_DATE_NAMES}))"
    r"|[a-z]{3,4}(?=\s?[\])>])|[+\-–,.·|/@])"
)
_STAMP_BODY = (
    r"(?:(?:time ?stamp|time|date|sent(?: at)?)\s?[:=]?\s?)?+"
    rf"{_STAMP_PIECE}(?:\s?{_STAMP_PIECE}){{0,12}}+"
)
# in brackets it is no part of what was said; without, a sentence may begin so ("10:30 is too late")
_CLEAR_STAMP = re.compile(
    rf"(?:\[\s?{_STAMP_BODY}\s?\]|\(\s?{_STAMP_BODY}\s?\)|<\s?{_STAMP_BODY}\s?>)\s?[:\-–—|]?\s?",
    re.IGNORECASE,
)
_BARE_STAMP = re.compile(rf"{_STAMP_BODY}\s?[:–—>]?\s", re.IGNORECASE)
_CLOCK_OR_DATE = re.compile(
    rf"\d{{1,2}}[:h]\d{{2}}|\d{{4}}-\d{{2}}|\d{{1,2}}[./]\d{{1,2}}|{_DATE_NAMES}[a-z]*+\s\d|\d{{9,}}",
    re.IGNORECASE,
)

_SHOWN_IMAGE = re.compile(r"(!\[[^\]]*\]\(\s*<?https?://[^\s()?#]+)[?#][^\s()]*")
_SIGNATURE = re.compile(r"^(https?://[^?#]*)[?#].*$", re.DOTALL)


class Wording(NamedTuple):
    """The text of a message, without differences of spelling."""

    role: str
    text: str
    stamp: str  # in front of the text; empty: none
    is_stamp_clear: bool  # whether the stamp cannot be part of a sentence
    others: frozenset[bytes]  # parts that are no text
    calls: bytes


class StoredText(NamedTuple):
    """A stored message whose text is compared."""

    wording: Wording
    fp: bytes


class Texts(NamedTuple):
    """The texts of stored messages, by seq, and how those of sent messages are read."""

    stored: Mapping[int, StoredText]
    read: Callable[[bytes], Wording | None]


def read_wording(view: MessageView, write_json: Callable[[object], bytes]) -> Wording:
    """Read what the message says. `write_json` as in memory/message_view.py."""
    text, others = view.compared_content()
    flat = " ".join(_SHOWN_IMAGE.sub(r"\1", normalize("NFC", text)).split())
    stamp, is_clear = _find_stamp(flat)
    return Wording(
        str(view.role),
        flat[len(stamp) :],
        stamp.strip(),
        is_clear,
        frozenset(write_json(_drop_signatures(part)) for part in others),
        write_json(view.compared_calls()),
    )


def _find_stamp(text: str) -> tuple[str, bool]:
    for pattern, is_clear in ((_CLEAR_STAMP, True), (_BARE_STAMP, False)):
        found = pattern.match(text[:MAX_STAMP_CHARS])
        if found and found.end() < len(text) and _CLOCK_OR_DATE.search(found[0]):
            return found[0], is_clear
    return "", False


def _drop_signatures(part: object) -> object:
    """Return a part without the queries of its addresses: a new signature shows the same image."""
    if not isinstance(part, dict):
        return part
    return {
        name: {inner: _drop_query(value) for inner, value in content.items()}
        if isinstance(content, dict)
        else _drop_query(content)
        for name, content in part.items()
    }


def _drop_query(value: object) -> object:
    return _SIGNATURE.sub(r"\1", value) if isinstance(value, str) else value


def says_the_same(shown: Wording, stored: Wording) -> bool:
    """Return whether the shown message is the stored one, and only looks different."""
    if (shown.role, shown.calls) != (stored.role, stored.calls):
        return False
    if not _fit_stamps(shown, stored):
        return False
    if shown.text == stored.text:
        # old images are left out to save tokens
        return shown.others == stored.others or (bool(shown.text) and shown.others < stored.others)
    return shown.others == stored.others and any(
        _is_cut_from(head, tail, stored.text) for head, tail in _split_at_marks(shown.text)
    )


def _fit_stamps(shown: Wording, stored: Wording) -> bool:
    if not (shown.stamp and stored.stamp) or shown.stamp == stored.stamp:
        return True
    return shown.is_stamp_clear and stored.is_stamp_clear


def _split_at_marks(text: str) -> Iterator[tuple[str, str]]:
    """Yield what is before and after each mark of a cut."""
    marks = [*_CUT_MARK.finditer(text)]
    for mark in {
        m.span(): m for m in (*marks[: MAX_CUT_MARKS // 2], *marks[-MAX_CUT_MARKS // 2 :])
    }:
        yield text[: mark[0]].rstrip(), text[mark[1] :].lstrip()


def _is_cut_from(head: str, tail: str, text: str) -> bool:
    kept = len(head) + len(tail)
    return MIN_KEPT_CHARS <= kept < len(text) and text.startswith(head) and text.endswith(tail)


def is_shortened(shown: Wording, stored: Wording) -> bool:
    """Return whether the shown text is the beginning or the end of the stored one, without a mark.
    For a user's text this counts only if the cut goes through a word: people delete whole words."""
    kept, text = shown.text, stored.text
    if not MIN_KEPT_CHARS <= len(kept) < len(text) or shown.calls != stored.calls:
        return False
    if text.startswith(kept) and (shown.role == "assistant" or _goes_through_word(text, len(kept))):
        return True
    start = len(text) - len(kept)
    return text.endswith(kept) and (shown.role == "assistant" or _goes_through_word(text, start))


def _goes_through_word(text: str, place: int) -> bool:
    return text[place - 1].isalnum() and text[place].isalnum()


def match_wordings(
    shown: Sequence[tuple[int, Wording]], stored: Sequence[StoredText]
) -> dict[int, bytes]:
    """Return the fingerprints of the stored messages that the shown ones are, by their index. Both
    lists are in order. Of several equal ones the next in order is taken."""
    index = _WordingIndex(stored)
    fps: dict[int, bytes] = {}
    next_place = 0
    for i, wording in shown:
        places = sorted(index.find_places(wording))
        if places:
            place = next((p for p in places if p >= next_place), places[0])
            fps[i] = stored[place].fp
            next_place = place + 1
    return fps


class _WordingIndex:
    """Stored texts, looked up by a whole text or by its beginning."""

    def __init__(self, stored: Sequence[StoredText]) -> None:
        self._stored = stored
        self._places: dict[str, list[int]] = defaultdict(list)
        for place, text in enumerate(stored):
            self._places[text.wording.text].append(place)
        self._sorted = sorted(self._places)

    def find_places(self, shown: Wording) -> list[int]:
        texts = {shown.text}
        for head, tail in _split_at_marks(shown.text):
            if head:
                texts.update(self._texts_from(head))
            elif tail:
                texts.update(text for text in self._sorted if text.endswith(tail))
        return [
            place
            for text in texts
            for place in self._places.get(text, ())
            if says_the_same(shown, self._stored[place].wording)
        ]

    def _texts_from(self, head: str) -> Iterator[str]:
        for place in range(bisect_left(self._sorted, head), len(self._sorted)):
            if not self._sorted[place].startswith(head):
                return
            yield self._sorted[place]
