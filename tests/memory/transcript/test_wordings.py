"""Messages that only look different, and texts that say something else."""

from __future__ import annotations

from time import process_time
from typing import Any

import orjson
import pytest

from om_proxy.memory.transcript.wordings import (
    StoredText,
    Wording,
    is_shortened,
    match_wordings,
    says_the_same,
)
from tests.memory.clients import raw, wording

TEXT = "I take 30 mg of the drug every morning and 50 at night.\nThe doctor said so: naïve, or not?"


def said(content: Any, role: str = "user") -> Wording:
    return wording(raw(role, content))


def picture(url: str, text: str = "What is this?") -> list[dict[str, Any]]:
    image = {"type": "image_url", "image_url": {"url": url, "detail": "low"}}
    return [{"type": "text", "text": text}, image]


@pytest.mark.parametrize("role", ["user", "assistant"])
@pytest.mark.parametrize(
    "shown",
    [
        pytest.param(TEXT.replace("\n", "\r\n"), id="line ends"),
        pytest.param("  " + TEXT.replace(" ", "\u00a0 ").replace("\n", "\n\n") + "\n", id="white space"),
        pytest.param(TEXT.replace("ï", "i\u0308"), id="Unicode form"),
        pytest.param(TEXT[:40] + "…", id="cut, ellipsis"),
        pytest.param(TEXT[:40] + "...", id="cut, dots"),
        pytest.param(TEXT[:41] + " [truncated]", id="cut, word"),
        pytest.param(TEXT[:40] + "\n[... 53 characters omitted]", id="cut, count"),
        pytest.param(TEXT[:40] + "… (truncated)", id="cut, ellipsis and word"),
        pytest.param(TEXT[:40] + "... 53 more characters", id="cut, remark without brackets"),
        pytest.param(TEXT[:40] + "\n--- truncated ---", id="cut, dashes"),
        pytest.param(TEXT[:20] + "\n\n[...]\n\n" + TEXT[-20:], id="cut in the middle"),
        pytest.param("…" + TEXT[-30:], id="cut at the beginning"),
        pytest.param("[2026-11-28 12:00] " + TEXT, id="stamp in brackets"),
        pytest.param("2026-11-28T12:00:00.5+01:00 " + TEXT, id="stamp of ISO 8601"),
        pytest.param("(12:03) " + TEXT, id="clock time"),
        pytest.param("[Saturday 12:03] " + TEXT, id="weekday"),
        pytest.param("[1764400000] " + TEXT, id="seconds since 1970"),
        pytest.param("[Saturday, November 28, 2026 at 12:00 PM] " + TEXT, id="long stamp"),
        pytest.param("Sat, 28 Nov 2026 12:00:00 GMT: " + TEXT, id="stamp of a mail"),
        pytest.param("14.11.2023, 10:05 Uhr: " + TEXT, id="German stamp"),
        pytest.param("[Dienstag, 14. März 2023 um 10:05 Uhr] " + TEXT, id="long German stamp"),
        pytest.param("14/11/2023 à 10h05 : " + TEXT, id="French stamp"),
        pytest.param("(le mardi 14 décembre 2023, 10:05) " + TEXT, id="long French stamp"),
        pytest.param("14-11-2023 10.05 - " + TEXT, id="stamp with dots and dashes"),
        pytest.param("[timestamp: 2026-11-28T12:00Z]\n" + TEXT, id="named stamp"),
        pytest.param("[28/11/2026, 12:00] " + TEXT[:40] + "…", id="stamped and cut"),
    ],
)  # fmt: skip
def test_what_only_looks_different_is_the_same(shown: str, role: str) -> None:
    """Spelling, a stamp in front and a cut with a mark change no meaning."""
    assert says_the_same(said(shown, role), said(TEXT, role))


@pytest.mark.parametrize(
    "shown",
    [
        pytest.param(TEXT.replace("30", "300"), id="another number"),
        pytest.param(TEXT.replace("and 50 at night", ""), id="words taken out"),
        pytest.param(TEXT + " Or not.", id="words added"),
        pytest.param("I take 300 mg of the…", id="another text, cut"),
        pytest.param(TEXT + "…", id="nothing cut"),
        pytest.param("[note] " + TEXT, id="no stamp"),
        pytest.param("I take…", id="too little is left"),
        pytest.param("", id="nothing"),
    ],
)
def test_another_text_says_something_else(shown: str) -> None:
    """A correction is never taken for a spelling."""
    assert not says_the_same(said(shown), said(TEXT))


@pytest.mark.parametrize(
    ("shown", "old"),
    [
        pytest.param("10:30 is too late", "11:30 is too late", id="another time"),
        pytest.param("10:30 train to Bonn", "train to Bonn", id="a time more"),
        pytest.param("train to Bonn", "10:30 train to Bonn", id="a time less"),
        pytest.param("[2026-03-05] dentist", "[2026-03-04] dentist", id="another date"),
        pytest.param("[2026-03-05 9:00] dentist", "[2026-03-04 9:00] dentist", id="another stamp"),
        pytest.param("(2.5) tablets", "(1.5) tablets", id="another number"),
        pytest.param("1.5 litres of water", "litres of water", id="an amount more"),
        pytest.param("(05.03.26) dentist", "dentist", id="a date more"),
    ],
)
def test_a_time_that_is_told_is_no_stamp(shown: str, old: str) -> None:
    """A time may be what was said. A stamp has a clock time, and a date or brackets, and is new."""
    assert not says_the_same(said(shown), said(old))
    assert match_wordings([(0, said(shown))], stored(old)) == {}


@pytest.mark.parametrize(
    ("shown", "old", "is_stamp"),
    [
        ("(12:03) ", "", True),
        ("12:03 ", "", True),
        ("", "[2026-03-04] ", True),
        ("[12:03] ", "[11:03] ", True),
        ("12:03 ", "11:03 ", False),
        ("(1.5) ", "(2.5) ", False),
        ("1.5 ", "", False),
    ],
)
def test_a_client_that_stamps_several_messages(shown: str, old: str, is_stamp: bool) -> None:
    """What one message does not prove, two do: people seldom correct two times at once."""
    texts = ("May I ask?", "That is too late.")
    shown_texts = [(n, said(shown + text)) for n, text in enumerate(texts)]
    found = match_wordings(shown_texts, stored(*(old + text for text in texts)))
    assert found == ({0: b"0", 1: b"1"} if is_stamp else {})


def test_who_speaks_and_what_is_called_count() -> None:
    """The same words of another speaker, or with another call, are another message."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    called = wording(raw("assistant", TEXT, tool_calls=[call]))
    assert not says_the_same(said(TEXT, "assistant"), said(TEXT, "user"))
    assert not says_the_same(said(TEXT, "assistant"), called)


def test_a_new_signature_shows_the_same_image() -> None:
    """Object stores sign addresses anew for each request; the path names the image."""
    old = said(picture("https://store/cat.png?sig=1&exp=2"))
    assert says_the_same(said(picture("https://store/cat.png?sig=9")), old)
    assert not says_the_same(said(picture("https://store/dog.png?sig=1&exp=2")), old)
    assert not says_the_same(said(picture("https://store/cat.png?sig=1", "And this?")), old)
    discord = "https://store/cat.png?id=%d&ex=%d&is=2&hm=3"
    assert says_the_same(said(picture(discord % (1, 5))), said(picture(discord % (1, 6))))
    assert not says_the_same(said(picture(discord % (1, 5))), said(picture(discord % (2, 5))))
    link = "![a cat](https://store/cat.png?sig=%d) is it?"
    assert says_the_same(said(link % 1), said(link % 2))
    view = "![a cat](https://store/view?id=%d) is it?"
    assert not says_the_same(said(view % 1), said(view % 2))
    assert not says_the_same(said("see https://store/?page=1"), said("see https://store/?page=2"))


def test_an_image_that_was_left_out() -> None:
    """Clients drop old images to save tokens. Without words beside them they prove nothing."""
    shown = said([{"type": "text", "text": "What is this?"}])
    assert says_the_same(shown, said(picture("https://store/cat.png")))
    assert not says_the_same(said([]), said(picture("https://store/cat.png", "")))


@pytest.mark.parametrize(
    ("role", "shown", "is_part"),
    [
        ("user", TEXT[:44], True),  # through a number
        ("user", TEXT[:42], False),  # after a word, as people delete
        ("user", TEXT[44:], True),
        ("user", TEXT[:-13], True),  # a long cut
        ("user", TEXT[:-2], False),  # a letter less
        ("user", TEXT[1:], False),
        ("assistant", TEXT[:41], True),
        ("assistant", TEXT[-30:], True),  # thinking before it was taken away
        ("assistant", TEXT[10:40], False),
        ("assistant", TEXT, False),
        ("assistant", "I take", False),
    ],
)
def test_a_part_without_a_mark(role: str, shown: str, is_part: bool) -> None:
    """A client that cuts by characters goes through words; a person does not."""
    assert is_shortened(said(shown, role), said(TEXT, role)) == is_part


def stored(*texts: str) -> list[StoredText]:
    return [StoredText(said(text), str(n).encode()) for n, text in enumerate(texts)]


def test_equal_words_are_matched_in_order() -> None:
    """Of several messages that fit, the next in order is taken; what fits nothing has no match."""
    texts = stored(
        "Tell me about the harbour, please.", "ok", "Tell me about the harbour, now.", "ok"
    )
    shown = [(3, said("ok\r\n!")), (4, said("[12:00] ok")), (5, said("Tell me about the ha…")), (6, said("(12:01) ok"))]  # fmt: skip
    assert match_wordings(shown, texts) == {4: b"1", 5: b"2", 6: b"3"}


@pytest.mark.parametrize("piece", ["1", "1 ", "-", "[cut ", ".", "jan ", "-- more ", "… a"])
def test_the_time_of_hostile_texts_grows_with_their_length(piece: str) -> None:
    """Texts come from strangers: no pattern tries one again and again."""

    def measure(length: int) -> float:
        text = piece * (length // len(piece))
        began = process_time()
        says_the_same(said(text), said("b" + text))
        return process_time() - began

    least = min(measure(20_000) for _ in range(3))
    assert (
        min(measure(80_000) for _ in range(3)) < 8 * least + 0.02
    )  # squared, it would be 16 times


def test_odd_messages_have_wordings() -> None:
    """Any JSON that a client sends can be read."""
    parts = [1, None, {"type": "x", "y": {"z": {}}}]
    for content in ({"a": [1]}, parts, 7, None):
        odd = wording(orjson.dumps({"role": "user", "content": content}))
        assert says_the_same(odd, odd)
    assert wording(b'{"role": 1}').role == "1"
