"""The order of what was found."""

from __future__ import annotations

from om_proxy.memory.recall.found import FoundPassage, match_passages
from om_proxy.memory.recall.passages import IndexPlace, MessageText, cut_passages
from om_proxy.memory.recall.ranking import rank
from om_proxy.memory.recall.words import query_words

FILLER = " ".join(f"filler{number}" for number in range(140))


def search(messages: list[MessageText], query: str) -> list[int]:
    passages, _ = cut_passages(messages, IndexPlace(), None)
    words = query_words(query)
    found = match_passages([FoundPassage("t", passage) for passage in passages], words)
    return [message.seq for message in rank(found, words)]


def say(
    seq: int, text: str, role: str = "user", speaker: str = "", at: float | None = None
) -> MessageText:
    """A message on a day of its own, unless `at` says when."""
    return MessageText(seq, role, seq * 86_400.0 if at is None else at, speaker, (text,))


def test_a_rare_word_counts_more() -> None:
    messages = [say(1, "zeta"), say(2, "quorum"), say(3, "zeta"), say(4, "zeta")]
    assert search(messages, "quorum zeta")[0] == 2


def test_the_answer_to_a_short_question_is_found() -> None:
    """A short message is read with the one before it, of the same visit."""
    asked = [say(1, "Which dog breed suits allergies?", at=0.0), say(2, "Poodle", at=60.0)]
    assert search([*asked, say(3, "Nothing here")], "dog breed") == [1, 2]
    later = [asked[0], say(2, "Poodle")]
    assert search(later, "dog breed") == [1]


def test_the_speaker_and_the_day_may_be_asked_for() -> None:
    messages = [
        say(1, "camping trip", speaker="Ada"),
        say(2, "camping trip", speaker="Bob"),
        say(3, "camping trip", speaker="Ada"),
    ]
    assert search(messages, "Bob camping")[0] == 2
    assert search(messages, "camping on January 4")[0] == 3


def test_a_long_answer_gives_way_to_the_user() -> None:
    """A short answer does not."""
    long = f"camping {FILLER}"
    assert search([say(1, long), say(2, long, "assistant")], "camping")[0] == 1
    assert search([say(1, "camping"), say(2, "camping", "assistant")], "camping")[0] == 2


def test_of_equals_the_newer_comes_first() -> None:
    messages = [say(seq, "camping") for seq in (1, 20, 40)]
    assert search(messages, "camping")[0] in (20, 40)
    assert search([say(1, "camping"), say(2, "camping")], "camping") == [2, 1]


def test_a_message_has_the_score_of_its_best_passage() -> None:
    messages = [say(1, f"{FILLER} {FILLER} camping camping")]
    passages, _ = cut_passages(messages, IndexPlace(), None)
    found = match_passages([FoundPassage("t", passage) for passage in passages], ["camp", "zeta"])
    (best,) = rank(found, ["zeta", "camp"])
    assert (best.place, best.words, best.role) == (1, ("camp",), "user")
