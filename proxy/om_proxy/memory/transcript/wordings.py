"""Recognise a message that only looks different: its client has stored it or written it another
way.

White space, line ends, the Unicode form, a time stamp in front, the signature in an image's address
and a cut with a mark change no meaning. Other texts do: those are corrections (corrections.py).
Where both readings are possible, a text counts as a correction: one that is lost does harm, and a
message that is shown beside its note only costs tokens.

Fingerprints come first. Texts are compared only where those leave a message without its place.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple
from unicodedata import normalize

from om_proxy.common.late_patterns import compile_late
from om_proxy.memory.message_view import MessageView

# a shorter rest of a text may be the rest of many
MIN_KEPT_CHARS = 12
# of a user's text without a mark: clients cut long texts, people take back a digit or a letter
MIN_CUT_CHARS = 12

_CUT_WORDS = "truncat|omit|cut|clip|shorten|trimm|elid|elision|snip|abbrev|redact|more|char"
_REMARK = rf"[^\[\](){{}}<>]{{0,60}}(?:{_CUT_WORDS})[^\[\](){{}}<>]{{0,60}}"
_CUT_MARK = compile_late(
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
_CLEAR_STAMP = compile_late(
    rf"(?:\[\s?{_STAMP_BODY}\s?\]|\(\s?{_STAMP_BODY}\s?\)|<\s?{_STAMP_BODY}\s?>)\s?[:\-–—|]?\s?",
    re.IGNORECASE,
)
_BARE_STAMP = compile_late(rf"{_STAMP_BODY}\s?[:–—>]?\s", re.IGNORECASE)
_CLOCK = compile_late(r"\d{1,2}[:h]\d{2}|(?<![\d.])\d{1,2}\.\d{2}(?![\d.])", re.IGNORECASE)
_DATE = compile_late(
    rf"\d{{4}}-\d{{2}}|\d{{1,2}}([./-])\d{{1,2}}\1\d{{2,4}}|{_DATE_NAMES}[a-z]*+\.?\s\d",
    re.IGNORECASE,
)
_UNIX_TIME = compile_late(r"\d{9,}")
# a stamp with only a date or a clock time may be what was said: it counts where several messages
# have a new one
MIN_RESTAMPED = 2

# of S3, Google, Azure, CloudFront, Alibaba, Discord and others
_SIGNATURE_MEMBER = compile_late(
    r"(?:x-(?:amz|goog|oss)-.*|(?:aws|google|oss)access(?:key)?id|(?:security-?)?token|key-pair-id"
    r"|policy|signature|sig|sign|expires?|expiry|exp|hmac|s[eprtv]|spr|sks|ske|skt|skv|skoid|sktid"
    r"|ex|is|hm)",
    re.IGNORECASE,
)
_SHOWN_IMAGE = compile_late(r"(!\[[^\]]*\]\(\s*<?)(https?://[^\s()?#]+\?[^\s()]*)")


class Wording(NamedTuple):
    """The text of a message, without differences of spelling."""

    role: str
    text: str
    stamp: str  # in front of the text; empty: none
    is_stamp_clear: bool  # whether it is in brackets, and so no part of a sentence
    is_stamp_sure: bool  # whether it has a clock time, and a date or brackets
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
    flat = " ".join(normalize("NFC", text).split())
    flat = _SHOWN_IMAGE.sub(lambda image: f"{image[1]}{_drop_signature(image[2])}", flat)
    stamp, is_clear = _find_stamp(flat)
    return Wording(
        str(view.role),
        flat[len(stamp) :],
        stamp.strip(),
        is_clear,
        _is_sure(stamp, is_clear),
        frozenset(write_json(_drop_signatures(part)) for part in others),
        write_json(view.compared_calls()),
    )


def _find_stamp(text: str) -> tuple[str, bool]:
    for pattern, is_clear in ((_CLEAR_STAMP, True), (_BARE_STAMP, False)):
        found = pattern.match(text[:MAX_STAMP_CHARS])
        if found and found.end() < len(text) and _is_time(found[0]):
            return found[0], is_clear
    return "", False


def _is_sure(stamp: str, is_clear: bool) -> bool:
    if _UNIX_TIME.search(stamp):
        return True
    return bool(_CLOCK.search(stamp) and (is_clear or _DATE.search(stamp)))


def _is_time(text: str) -> bool:
    return any(pattern.search(text) for pattern in (_CLOCK, _DATE, _UNIX_TIME))


def _drop_signatures(part: object) -> object:
    """Return a part without the signatures in its addresses: a new one shows the same image."""
    if not isinstance(part, dict):
        return part
    return {
        name: {inner: _drop_signature(value) for inner, value in content.items()}
        if isinstance(content, dict)
        else _drop_signature(content)
        for name, content in part.items()
    }


def _drop_signature(value: object) -> object:
    if not isinstance(value, str) or not value.startswith(("https://", "http://")):
        return value
    address, _, query = value.partition("?")
    members = query.split("&") if query else []
    rest = [one for one in members if not _SIGNATURE_MEMBER.fullmatch(one.partition("=")[0])]
    return "?".join((address, "&".join(rest))) if rest else address


def says_the_same(shown: Wording, stored: Wording, *, has_any_stamp: bool = False) -> bool:
    """Return whether the shown message is the stored one, and only looks different.
    `has_any_stamp`: also with a stamp that may be what was said."""
    if (shown.role, shown.calls) != (stored.role, stored.calls):
        return False
    if not _fit_stamps(shown, stored, has_any_stamp=has_any_stamp):
        return False
    if shown.text == stored.text:
        # old images are left out to save tokens
        return shown.others == stored.others or (bool(shown.text) and shown.others < stored.others)
    return shown.others == stored.others and any(
        _is_cut_from(head, tail, stored.text) for head, tail in _split_at_marks(shown.text)
    )


def _fit_stamps(shown: Wording, stored: Wording, *, has_any_stamp: bool) -> bool:
    if shown.stamp == stored.stamp:
        return True
    if shown.stamp and stored.stamp:
        return has_any_stamp and shown.is_stamp_clear and stored.is_stamp_clear
    return has_any_stamp or shown.is_stamp_sure or stored.is_stamp_sure


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
    For a user's text this counts only if a long cut goes through a word: people delete whole
    words, or a digit."""
    kept, text = shown.text, stored.text
    if not MIN_KEPT_CHARS <= len(kept) < len(text) or shown.calls != stored.calls:
        return False
    if shown.role == "assistant":
        return text.startswith(kept) or text.endswith(kept)
    cut = len(text) - len(kept)
    return cut >= MIN_CUT_CHARS and (
        (text.startswith(kept) and _goes_through_word(text, len(kept)))
        or (text.endswith(kept) and _goes_through_word(text, cut))
    )


def _goes_through_word(text: str, place: int) -> bool:
    return text[place - 1].isalnum() and text[place].isalnum()


def match_wordings(
    shown: Sequence[tuple[int, Wording]], stored: Sequence[StoredText]
) -> dict[int, bytes]:
    """Return the fingerprints of the stored messages that the shown ones are, by their index. Both
    lists are in order. Of several equal ones the next in order is taken."""
    index = _WordingIndex(stored)
    fps: dict[int, bytes] = {}
    restamped: dict[int, bytes] = {}
    next_place = 0
    for i, wording in shown:
        places = sorted(index.find_places(wording))
        sure = [p for p in places if says_the_same(wording, stored[p].wording)]
        if places:
            place = next((p for p in sure or places if p >= next_place), (sure or places)[0])
            (fps if sure else restamped)[i] = stored[place].fp
            next_place = place + 1
    return fps | restamped if len(restamped) >= MIN_RESTAMPED else fps


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
            if says_the_same(shown, self._stored[place].wording, has_any_stamp=True)
        ]

    def _texts_from(self, head: str) -> Iterator[str]:
        for place in range(bisect_left(self._sorted, head), len(self._sorted)):
            if not self._sorted[place].startswith(head):
                return
            yield self._sorted[place]
