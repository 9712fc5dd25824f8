"""Passages of a message, and their places in a thread."""

from __future__ import annotations

from om_proxy.memory.recall.passages import (
    MAX_PASSAGES,
    PASSAGE_WORDS,
    VISIT_PAUSE_S,
    IndexPlace,
    MessageText,
    cut_passages,
)

MAY_8_2023 = 1_683_554_160.0  # 13:56 UTC, a Monday


def number_words(first: int, count: int) -> str:
    return " ".join(f"w{number}" for number in range(first, first + count))


def cut_one(message: MessageText, zone: str | None = None) -> list[tuple[str, ...]]:
    passages, _ = cut_passages([message], IndexPlace(), zone)
    assert [passage.place for passage in passages] == list(range(len(passages)))
    assert all(passage.length == sum(len(p.words) for p in passages) for passage in passages)
    return [passage.words for passage in passages]


def test_speech_is_cut_into_passages() -> None:
    message = MessageText(1, "user", 0.0, spoken=(number_words(0, 160), "end"))
    first, second = cut_one(message)
    assert (first[0], first[-1], len(first)) == ("w0", "w149", PASSAGE_WORDS)
    assert second == (*(f"w{number}" for number in range(150, 160)), "end")


def test_a_huge_message_has_its_first_passages() -> None:
    message = MessageText(1, "user", 0.0, spoken=(number_words(0, 10_000),))
    cut = cut_one(message)
    assert len(cut) == MAX_PASSAGES
    assert cut[-1][-1] == f"w{MAX_PASSAGES * PASSAGE_WORDS - 1}"


def test_calls_and_results_have_limits() -> None:
    """A call gives its first 300 words. A result gives its first 600 and its last 150."""
    calls = cut_one(MessageText(1, "assistant", 0.0, called=("search", number_words(0, 400))))
    assert calls[-1][-1] == "w298"
    result = [
        word
        for passage in cut_one(MessageText(1, "tool", 0.0, result=(number_words(0, 1_000),)))
        for word in passage
    ]
    assert result == [f"w{number}" for number in (*range(600), *range(850, 1_000))]
    short = cut_one(MessageText(1, "tool", 0.0, result=(number_words(0, 620),)))
    assert sum(map(len, short)) == 620


def test_side_words_are_the_speaker_and_the_day() -> None:
    """The day is the one in the thread's time zone; an unknown zone is UTC."""
    late = MessageText(1, "user", MAY_8_2023 + 10 * 3_600, "Caroline", ("hello there",))
    for zone, day in (
        (None, ("mondai", "8")),
        ("Asia/Tokyo", ("tuesdai", "9")),
        ("Mars/X", ("mondai", "8")),
    ):
        (passage,), _ = cut_passages([late], IndexPlace(), zone)
        assert passage.side_words == ("carolin", day[0], "mai", day[1], "2023")
    (passage,), _ = cut_passages([late._replace(at=1e18)], IndexPlace(), None)
    assert passage.side_words == ("carolin",)


def test_a_pause_begins_a_visit() -> None:
    """Positions and visits count messages with words only. What is indexed in two batches is
    numbered as in one."""
    messages = [
        MessageText(2, "user", 0.0, spoken=("first",)),
        MessageText(3, "user", VISIT_PAUSE_S - 1, spoken=("what is it?",)),
        MessageText(5, "user", VISIT_PAUSE_S, spoken=("second",)),
        MessageText(6, "user", VISIT_PAUSE_S * 2 + 1, spoken=("third",)),
        MessageText(7, "user", VISIT_PAUSE_S * 2 + 2),
    ]
    passages, place = cut_passages(messages, IndexPlace(), None)
    assert [(p.seq, p.position, p.visit) for p in passages] == [(2, 1, 1), (5, 2, 1), (6, 3, 2)]
    assert place == IndexPlace(7, 3, 2, VISIT_PAUSE_S * 2 + 1)
    for split in range(len(messages)):
        first, between = cut_passages(messages[:split], IndexPlace(), None)
        second, end = cut_passages(messages[split:], between, None)
        assert (first + second, end) == (passages, place)
