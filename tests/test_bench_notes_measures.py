"""The measures of `scripts/notes`, in small cases made by hand: facts, calls, hints' age,
compression, the judge's words."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.bench.cost_compression import Kind
from tests.bench.notes.calls import MemoryCall, Sizes, kind_of, mean_sizes, measure_call
from tests.bench.notes.compression import Noted, Said, compress_by_kind
from tests.bench.notes.facts import (
    Fact,
    Tally,
    content_words,
    judge_by_words,
    read_facts,
    read_questions,
    tally,
    tally_by_category,
)
from tests.bench.notes.hint_age import Shown, Written, age_hints, hints_in, summarise_ages
from tests.bench.notes.judge import batch_facts, read_verdicts, write_prompt
from tests.bench.notes.report import AFTER, BEFORE, survive

NOTES = "Date: May 22, 2023\n* 🔴 (09:14) Mara adopted two rabbits from the shelter on May 7, 2023.\n* ✅ The dock's repaired."


def fact(
    answer: str, *patterns: str, category: int | None = None, evidence: tuple[int, ...] = ()
) -> Fact:
    return Fact("f", "", answer, category, evidence, patterns)


# ── facts ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        ("Two rabbits", "kept"),
        ("a rabbit", "kept"),  # endings and articles say nothing
        ("She adopts rabbits", "kept"),
        ("7 May, 2023", "kept"),
        ("07 may 2023", "kept"),
        ("repairing docks", "kept"),
        ("two hamsters", "partly"),
        ("three hamsters", "lost"),
        ("8 June, 2023", "lost"),
        ("rabbit-hole tunnels collapse", "lost"),
        ("the of", "lost"),  # no word that says anything
    ],
)
def test_facts_by_words(answer: str, verdict: str) -> None:
    """All content words: kept; half of them: partly; fewer: lost. Order, case and endings do not
    matter."""
    assert judge_by_words(fact(answer), NOTES) == verdict


def test_a_word_inside_another_is_none() -> None:
    """`art` is not in `apartment`."""
    assert judge_by_words(fact("art"), "the apartment") == "lost"


@pytest.mark.parametrize(
    ("patterns", "verdict"),
    [
        ((r"two rabbits",), "kept"),
        ((r"MAY \d+, 2023", r"dock.*repaired"), "kept"),
        ((r"rabbits", r"hamsters"), "partly"),
        ((r"hamsters",), "lost"),
    ],
)
def test_facts_by_patterns(patterns: tuple[str, ...], verdict: str) -> None:
    """Where a fact has patterns they decide, and its words do not."""
    assert judge_by_words(fact("rabbits", *patterns), NOTES) == verdict


def test_content_words() -> None:
    """Each once, in order; `May` is a month and stays."""
    assert content_words("The dog’s 3rd walk, in May; the dogs walked 03 times") == [
        "dog",
        "3",
        "walk",
        "month may",
        "tim",
    ]


def asked(answer: Any, *evidence: str, category: int = 4, **more: Any) -> dict[str, Any]:
    return {
        "question": "who?",
        "answer": answer,
        "evidence": list(evidence),
        "category": category,
        **more,
    }


def test_questions_with_evidence() -> None:
    """Evidence stands in several spellings; a question without any, or with a turn that is not
    there, is left out."""
    turns = {"D1:1": 0, "D1:2": 1, "D2:4": 7}
    found = list(
        read_questions(
            [
                asked(2019, "D2:4", "D1:2"),
                asked("a", "D1:1; D:2:04 D1:1"),
                asked("b"),
                asked("c", "D"),
                asked("d", "D9:1"),
                {
                    k: v
                    for k, v in asked("", "D1:1", category=5, adversarial_answer="trap").items()
                    if k != "answer"
                },
            ],
            turns,
        )
    )
    assert [(f.id, f.answer, f.evidence, f.category) for f in found] == [
        ("q0", "2019", (1, 7), 4),
        ("q1", "a", (0, 7), 4),
        ("q5", "trap", (0,), 5),
    ]
    assert [f.is_told_within(7) for f in found] == [False, False, True]
    assert found[0].is_told_within(8)


def test_fact_without_evidence_always_counts() -> None:
    assert fact("x").is_told_within(0)


def test_facts_of_a_file(tmp_path: Path) -> None:
    """Plain lines and JSON beside each other; blank lines and comments are none."""
    path = tmp_path / "facts"
    path.write_text(
        '# rules\nRun the tests first\n\n{"id": "a", "text": "port 81", "message": 4}\n{"patterns": ["sed -i", "mac"]}\n',
        encoding="utf-8",
    )
    assert [(f.id, f.answer, f.evidence, f.patterns) for f in read_facts(path)] == [
        ("f2", "Run the tests first", (), ()),
        ("a", "port 81", (4,), ()),
        ("f5", "sed -i mac", (), ("sed -i", "mac")),
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 1 .* no JSON"),
        ("{}", "neither"),
        ('{"patterns": ["("]}', "no regular expression"),
    ],
)
def test_unreadable_fact_is_named(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "facts"
    path.write_text(line, encoding="utf-8")
    with pytest.raises(ValueError, match=said):
        read_facts(path)


def test_tally_counts_partly_as_not_kept() -> None:
    assert tally(["kept", "partly", "lost", "kept"]) == Tally(2, 1, 1)
    assert tally(["kept", "partly"]).share == 0.5
    assert tally([]).share is None


def test_tallies_by_category() -> None:
    """The adversarial ones are no part of all; what was not judged counts nowhere."""
    facts = [Fact("a", "", "", 1), Fact("b", "", "", 5), Fact("c", "", "", 1), Fact("d", "", "")]
    found = tally_by_category(facts, {"a": "kept", "b": "lost", "d": "kept"})
    assert found == {
        "all": Tally(2, 0, 0),
        "multi-hop": Tally(1, 0, 0),
        "adversarial": Tally(0, 0, 1),
    }


def test_survivors() -> None:
    """Only what was kept before can be lost by a reflection."""
    kept: Mapping[str, Mapping[str, Any]] = {
        BEFORE: {"a": "kept", "b": "kept", "c": "lost", "d": "kept"},
        AFTER: {"a": "kept", "b": "partly", "c": "kept"},
    }
    assert survive(kept) == {"of": 2, "kept": 1}


# ── calls ─────────────────────────────────────────────────────────────────────────────────────────

OBSERVER_PROMPT = (
    ("system", "write short notes"),
    (
        "user",
        "# Known already\n\n<previous-observations>\n* one two three\n</previous-observations>\n\n# New messages\n\n<transcript>\n"
        "User (09:14): &lt;previous-observations> four\n</transcript>",
    ),
    ("user", "Write now"),
)


def by_words(text: str) -> int:
    return len(text.split())


def test_sizes_of_an_observer_call() -> None:
    """Each part by itself, and nothing counted twice."""
    answer = "<observations>\n* a b\n</observations>\n<current-task>\ngo on\n</current-task>\n<suggested-response>say"
    found = measure_call(MemoryCall("observer", OBSERVER_PROMPT, answer), by_words)
    assert found == Sizes(system=3, previous=6, transcript=6, other_in=8, notes=5, hints=5)
    assert found.read == sum(by_words(text) for _, text in OBSERVER_PROMPT)
    assert found.written == by_words(answer)


def test_kinds_of_calls() -> None:
    """A reflector is shown no transcript; a system prompt that speaks of one shows none."""
    reflector = (
        ("system", "a <transcript> </transcript> is fenced"),
        ("user", "<previous-observations>\n* a\n</previous-observations>"),
    )
    assert [kind_of(prompt) for prompt in (OBSERVER_PROMPT, reflector)] == ["observer", "reflector"]
    assert measure_call(MemoryCall("reflector", reflector, "* a"), by_words).previous == 4


def test_means() -> None:
    found = mean_sizes([Sizes(1, 2, 3, 4, 5, 6), Sizes(3, 2, 3, 4, 5, 8)])
    assert (found["system"], found["hints"], found["read"], found["written"]) == (2, 7, 11, 12)
    assert mean_sizes([]) == {}


# ── hints ─────────────────────────────────────────────────────────────────────────────────────────

BLOCK = 'Notes.\n\n<observations>\n* a\n</observations>\n\n<current-task as-of="Nov 20">\nport &lt;thread> dock\n</current-task>'


def test_hints_of_a_prompt() -> None:
    """With attributes or without, unescaped; a user who quotes a hint shows none."""
    prompt = [
        {"role": "system", "content": "Be brief."},
        {
            "role": "system",
            "content": f"{BLOCK}\n\n<suggested-response>\nyes\n</suggested-response>",
        },
        {"role": "user", "content": "what does <current-task>\nx\n</current-task> mean?"},
    ]
    assert hints_in(prompt) == {"current-task": "port <thread> dock", "suggested-response": "yes"}
    assert hints_in(prompt[::2]) == {}


SENT = [("user", 10), ("assistant", 20), ("user", 30), ("assistant", 40), ("tool", 5)]


@pytest.mark.parametrize(
    ("covered", "coverage", "age"),
    [
        ([1], 3, Shown("current-task", 7, 4, 1, 95)),
        ([1, 3], 3, Shown("current-task", 7, 2, 0, 45)),  # the newest that wrote it
        ([1, 4], 3, Shown("current-task", 7, 4, 1, 95)),  # made ahead: not shown yet
        ([], 2, Shown("current-task", 7, 3, 1, 75)),  # in nobody's words: as old as the notes
        ([5], 5, Shown("current-task", 7, 0, 0, 0)),
    ],
)
def test_age_of_a_hint(covered: list[int], coverage: int, age: Shown) -> None:
    """What stands between the observation that wrote it and the newest message."""
    written = [Written("current-task", "go on ", n) for n in covered] + [
        Written("suggested-response", "go on", 5)
    ]
    assert age_hints(7, {"current-task": "go on"}, written, coverage, SENT) == [age]


def test_ages_together() -> None:
    shown = [
        Shown("current-task", 1, 4, 2, 100),
        Shown("current-task", 2, 2, 0, 40),
        Shown("current-task", 3, 1, 1, 10),
    ]
    assert summarise_ages(shown, 9) == {
        "current-task": {
            "requests": 9,
            "shown": 3,
            "user_spoke_since": 2,
            "median_tokens": 40,
            "median_messages": 2,
            "most_tokens": 100,
            "most_messages": 4,
        }
    }


# ── compression ───────────────────────────────────────────────────────────────────────────────────


def test_tools_are_calls_and_their_results() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "x", "tool_calls": [{}]},
        {"role": "assistant", "content": "x", "tool_calls": []},
        {"role": "tool", "content": "x"},
    ]
    assert [Said.of(m, 1).is_tools for m in messages] == [False, True, False, True]


def test_compression_by_kind() -> None:
    """An observation of which half is tools counts as tools, as a whole."""
    said = [Said(10, False), Said(10, True), Said(10, False), Said(9, True), Said(4, False)]
    found = compress_by_kind(said, [Noted(0, 2, 5), Noted(2, 4, 4), Noted(4, 5, 1)])
    assert found == {"tools": Kind(20, 5), "chat": Kind(23, 5)}
    assert compress_by_kind(said, []) == {}


# ── the judge ─────────────────────────────────────────────────────────────────────────────────────

FACTS = [
    Fact("q1", "Who?", "Mara\nDale"),
    Fact("q2", "Whose?", "hers", 5),
    Fact("f3", "", "port 81"),
]


def test_judge_is_asked_everything() -> None:
    """Notes, people, and each fact on a line with what kind it is."""
    system, (role, user) = write_prompt(FACTS, NOTES, "User is Mara.")
    assert system[0] == "system"
    assert role == "user"
    assert NOTES in user
    assert user.startswith("User is Mara.")
    assert "- q1: Who? → Mara Dale\n- q2 (trap): Whose? → hers\n- f3: port 81\n" in user


def test_judge_is_read_leniently() -> None:
    answer = "Here:\n- q1: **Kept**\n`q2` (trap): partly (vague)\n* f3 : lost"
    assert read_verdicts(answer, FACTS) == {"q1": "kept", "q2": "partly", "f3": "lost"}


@pytest.mark.parametrize("answer", ["q1: kept\nf3: lost", "q1: kept\nq2: maybe\nf3: lost"])
def test_silence_is_no_verdict(answer: str) -> None:
    with pytest.raises(ValueError, match="no verdict on q2"):
        read_verdicts(answer, FACTS)


def test_batches() -> None:
    assert [len(some) for some in batch_facts(FACTS, 2)] == [2, 1]
