"""Whose notes are whose: in the log, in what models are shown of it, and in what they answer."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from om_proxy.memory.model import Observation, Part
from om_proxy.memory.notes import sections
from om_proxy.memory.notes.observations import parse_reflection
from om_proxy.memory.notes.redaction import redact_secrets
from om_proxy.memory.notes.sections import (
    Section,
    mark_tags,
    render_sections,
    restore_tags,
    split_by_thread,
    split_reflection,
)
from tests.memory.sharing import LABELS, entry, tokens
from tests.support.counting import TIMES, measure_cpu_s

A, B, C = (LABELS[name] for name in "ABC")
ALL = {A, B, C}


def tag(label: str, text: str = "* 🔴 noted") -> str:
    return f'<thread id="{label}">\n{text}\n</thread>'


def about(*labels: str, **more: object) -> Observation:
    return replace(
        entry("A", 0, 2), parts=tuple(Part(label, 0, 2, b"") for label in labels), **more
    )


# ── the log ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        pytest.param(about(text=tag(A)), [Section(None, tag(A))], id="a log of one's own: all of it, whatever it says"),
        pytest.param(about(A, text=tag(B)), [Section(A, tag(B))], id="an observation is one section, whatever it says"),
        pytest.param(about(A, kind="note"), [Section(A, "* 🔴 noted")], id="a note too"),
        pytest.param(about(A, B, kind="reflection"), [Section(None, "* 🔴 noted")], id="what belongs to no single one"),
        pytest.param(
            about(A, B, kind="reflection", text=f"* all\n\n{tag(A, '* a')}\n\n* more\n\n{tag(B, '* b')}\n\n* last"),
            [Section(None, "* all"), Section(A, "* a"), Section(None, "* more"), Section(B, "* b"), Section(None, "* last")],
            id="a reflection by its tags",
        ),
        pytest.param(
            about(A, kind="reflection", text=tag(B, "* b")), [Section(None, tag(B, "* b"))], id="not of a thread it is not about"
        ),
    ],
)  # fmt: skip
def test_an_entry_by_thread(of: Observation, expected: list[Section]) -> None:
    assert sections.split_entry(of) == expected


def test_what_is_shown_is_escaped_and_named() -> None:
    """No note can close its section or open another's."""
    text = render_sections(
        [Section(A, f"* a\n</thread>\n{tag(B)}"), Section(None, "* <observations>")]
    )
    assert text == (
        f'<thread id="{A}">\n* a\n&lt;/thread>\n&lt;thread id="{B}">\n* 🔴 noted\n&lt;/thread>\n</thread>\n\n* &lt;observations>'
    )


def test_what_is_shown_grows_at_its_end() -> None:
    log = [Section(A, "* one"), Section(B, "* two <"), Section(None, "thread>")]
    wholes = [render_sections(log[:count]) for count in range(4)]
    assert all(longer.startswith(shorter) for shorter, longer in pairwise(wholes))


def test_an_observer_is_told_in_words() -> None:
    """It is shown single lines: a tag may be left out with its like."""
    assert sections.render_plain([Section(A, "* a"), Section(None, "* all")]) == [
        f"In conversation {A}:\n* a",
        "* all",
    ]


# ── what an observer answers ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(f"<observations>\n{tag(A, '* a')}\n{tag(B, '* b')}\n</observations>", {A: "* a", B: "* b"}, id="as told"),
        pytest.param(tag(A, "* a"), {A: "* a"}, id="one is left out"),
        pytest.param(f'<thread id="{A}">* a</thread><thread id="{B}">* b</thread>', {A: "* a", B: "* b"}, id="on one line"),
        pytest.param(f"<Thread ID='{A}'>* a</THREAD>", {A: "* a"}, id="another case, single quotes"),
        pytest.param(f"<thread id={A.upper()} title='x'>* a</thread>", {A: "* a"}, id="no quotes, capitals, more in the tag"),
        pytest.param(f"<thread “{A}”>* a</ thread >", {A: "* a"}, id="no name, typographic quotes, blanks"),
        pytest.param(f"<thread id=`{A}`>* a</thread>", {A: "* a"}, id="backticks"),
        pytest.param(f"{tag(A, '* a')}\n{tag(A, '* more')}", {A: "* a * more"}, id="twice the same"),
        pytest.param(f'<thread id="{A}">\n* a\n<thread id="{B}">\n* b', {A: "* a", B: "* b"}, id="never closed"),
        pytest.param(f'<thread id="{A}">* a {tag(B, "* b")} * more</thread>', {A: "* a * more", B: "* b"}, id="one in the other"),
        pytest.param(f'<thread id="{A}">* a {tag("d" * 16)} * more</thread>', {A: "* a * more"}, id="a stranger in the middle"),
        pytest.param(f"* nobody's\n{tag('d' * 16)}\n{tag(B, '* b')}\n* nobody's", {B: "* b"}, id="of a thread nobody asked about"),
        pytest.param(tag(A[:8]) + tag(A + "0"), {}, id="nearly a label"),
        pytest.param(f"{tag(B, '* a')}\n{tag(A, '* b')}", {B: "* a", A: "* b"}, id="swapped: nobody can tell"),
        pytest.param(f"<think>{tag(A, '* maybe')}</think>{tag(A, '* a')}", {A: "* a"}, id="after thinking aloud"),
        pytest.param(tag(A, "  \n "), {}, id="an empty section says nothing"),
        pytest.param("* 🔴 a list", {}, id="no thread at all"),
        pytest.param("", {}, id="empty"),
    ],
)  # fmt: skip
def test_an_answer_by_thread(answer: str, expected: dict[str, str]) -> None:
    said = split_by_thread(answer.replace("\r", ""), {A, B})
    assert {label: " ".join(text.split()) for label, text in said.items()} == expected


@given(
    st.text(),
    st.lists(
        st.sampled_from(
            [f'<thread id="{A}">', f'<thread id="{B}">', "</thread>", "* x\n", "<thread"]
        )
    ),
)
def test_any_answer_is_read(text: str, pieces: list[str]) -> None:
    """Nothing is said twice, and nothing but what was there."""
    answer = text.join(pieces)
    said = split_by_thread(answer, ALL)
    assert said.keys() <= {A, B}
    assert sum(len(part) for part in said.values()) <= len(answer) + len(pieces)


@pytest.mark.parametrize("read", [split_by_thread, mark_tags])
@pytest.mark.parametrize("blank", [" ", "\t"])
def test_blanks_are_looked_at_once(
    read: Callable[[str, Collection[str]], object], blank: str
) -> None:
    """A run of blanks before no tag is passed in proportion to its length: less than the 64 times
    of a square, for eight times."""
    shorter, longer = (f"* a{blank * count}b" for count in (6_000, TIMES * 6_000))
    assert measure_cpu_s(partial(read, longer, ALL)) < 5 * TIMES * max(
        measure_cpu_s(partial(read, shorter, ALL)), 0.005
    )


@pytest.mark.parametrize("blanks", ["", " ", "\t", " \t  "])
def test_blanks_before_a_tag_are_the_tag_s(blanks: str) -> None:
    """However many, and behind another tag as well."""
    said = split_by_thread(
        f'{blanks}<thread id="{A}">* a{blanks}</thread>{blanks}<thread id="{B}">* b{blanks}<thread id="{A}">',
        ALL,
    )
    assert said == {A: "* a", B: "* b"}


# ── what a reflector answers ──────────────────────────────────────────────────────────────────────


def kept(answer: str, labels: set[str] = ALL) -> list[Section]:
    """Return the sections of an answer as they are stored and read again."""
    parsed = parse_reflection(mark_tags(answer, labels), source_tokens=9_999, tokens=tokens)
    return [
        s._replace(text=s.text.strip())
        for s in split_reflection(restore_tags(parsed.text, labels), labels)
    ]


OF_ALL = f"<observations>\n* 🔴 of all\n{tag(A, '* 🔴 a')}\n{tag(B, '* 🔴 b')}\n* 🟡 of all too\n</observations>"
READ = [
    Section(None, "* 🔴 of all"),
    Section(A, "* 🔴 a"),
    Section(B, "* 🔴 b"),
    Section(None, "* 🟡 of all too"),
]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(OF_ALL, READ, id="as told"),
        pytest.param(OF_ALL.replace("<observations>\n", "").replace("\n</observations>", ""), READ, id="without the outer tags"),
        pytest.param(f"```\n{OF_ALL}\n```", READ, id="fenced"),
        pytest.param(OF_ALL.replace("\n", " "), READ, id="on one line"),
        pytest.param(f"<observations>{tag('d' * 16, '* 🔴 x')}</observations>", [Section(None, "* 🔴 x")], id="of a stranger"),
        pytest.param(
            f"<observations>{tag(A, f'* 🔴 a&lt;/thread>{chr(10)}&lt;thread id={chr(34)}{B}{chr(34)}>{chr(10)}* 🔴 x')}</observations>",
            [Section(A, f'* 🔴 a</thread>\n<thread id="{B}">\n* 🔴 x')],
            id="tags that are talked about, as it was shown them",
        ),
        pytest.param(
            f"<observations>{tag(A, '* 🔴 a' + chr(10) + '[[date: thread 2]] ' + chr(10) + '* 🔴 x')}</observations>",
            [Section(A, "* 🔴 a\n\n* 🔴 x")],
            id="a line that looks like a mark of ours",
        ),
    ],
)  # fmt: skip
def test_a_reflection_by_thread(answer: str, expected: list[Section]) -> None:
    assert kept(answer) == expected


def test_a_long_reflection_over_many_threads_is_no_loop() -> None:
    """The marks between its sections repeat themselves as tags do, and say nothing."""
    labels = {f"{n:016x}" for n in range(120)}
    answer = (
        "<observations>\n"
        + "\n".join(tag(label, f"* 🔴 {label} is done") for label in sorted(labels))
        + "\n</observations>"
    )
    assert {s.label for s in kept(answer, labels)} == labels


lines = st.text(
    st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=40
) | st.sampled_from(
    [
        "</thread>",
        f'<thread id="{B}">',
        "&lt;/thread>",
        "<observations>",
        "[[date: thread 1]]",
        "[[date: thread 0]]",
        "x <",
    ]
)
bodies = (
    st.lists(lines, min_size=1, max_size=5)
    .map("\n".join)
    .map(lambda body: body.strip("\n"))
    .filter(str.strip)
)


@given(st.lists(st.tuples(st.sampled_from([A, B, None]), bodies), min_size=1, max_size=4))
def test_what_is_stored_is_read_as_it_was(told: list[tuple[str | None, str]]) -> None:
    """Notes stay those of their own thread: no text passes from one section into another."""
    assume(all(one[0] or other[0] for one, other in pairwise(told)))
    text = "\n\n".join(sections.wrap_in_tag(label, sections.escape(body)) for label, body in told)
    read = split_reflection(text, ALL)
    assert [s.text for s in read if s.label] == [body for label, body in told if label]
    assert [s.label for s in read if s.label] == [label for label, _ in told if label]
    assert "".join(s.text for s in read if not s.label).replace("\n", "") == "".join(
        b for la, b in told if not la
    ).replace("\n", "")


def test_names_of_threads_are_no_secrets() -> None:
    text = render_sections(
        [
            Section(A, "* 🔴 the api token is"),
            Section(B, "* 🔴 key for"),
            Section(C, "* 🔴 secret:"),
        ]
    )
    assert redact_secrets(text) == text
