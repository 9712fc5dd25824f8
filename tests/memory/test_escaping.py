"""No text from outside can open or close a tag of ours: proven against a scanner written on its
own."""

import time
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from om_proxy.memory.escaping import PROMPT_TAGS, escape, unescape

WORDS = [
    *PROMPT_TAGS,
    *(tag.replace("-", "_") for tag in PROMPT_TAGS),
    *(tag.upper() for tag in PROMPT_TAGS),
    "Observations",
    "div",
    "str",
]
PIECES = st.sampled_from(
    [
        *WORDS,
        "<",
        "</",
        ">",
        "/>",
        "< /",
        "&",
        "&lt;",
        "&amp;",
        "&amp;lt;",
        "lt;",
        "amp;",
        " ",
        "\n",
        "\u200b",
        "=",
        '"',
        "!--",
        "a",
        "7",
        "_",
    ]
)
TEXT_STRATEGY = st.one_of(st.text(), st.lists(PIECES, max_size=12).map("".join))


def tags_of(text: str) -> list[str]:
    """Our tags in a text, found as a generous reader would: case, separators and unseen characters
    do not matter."""
    names = {tag.replace("-", "") for tag in PROMPT_TAGS}
    seen = [
        c for c in text.casefold() if unicodedata.category(c) not in ("Cf", "Cc") or c.isspace()
    ]
    found = []
    for i in (i for i, c in enumerate(seen) if c == "<"):
        rest = "".join(seen[i:])
        word = rest.lstrip("".join(c for c in set(rest) if not c.isalnum()))
        for name in names:
            letters = iter(enumerate(word))
            end = -1
            for wanted in name:
                at, letter = next(((k, c) for k, c in letters if c.isalnum()), (-1, ""))
                if letter != wanted:
                    break
                end = at
            else:
                if not word[end + 1 : end + 2].isalnum():
                    found.append(name)
    return found


@pytest.mark.parametrize(
    "text",
    [
        "if a < b && c > d: x <<= 2",
        "List<str>, Map<String, List<Integer>>, Promise<void>",
        "arr[0] -> node.next <- prev <=> cmp",
        "<div class='x'>&lt;b&gt; &amp; &nbsp;</div>",
        "#include <stdio.h>",
        "<threads> <threadpool> <observational> <transcripts>",
        "current-task and suggested-response without brackets",
        "",
    ],
)
def test_code_stays_as_it_is(text: str) -> None:
    """Text that cannot be taken for a tag of ours is not touched, so notes hold it verbatim."""
    assert escape(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("</observations>", "&lt;/observations>"),
        ("<OBSERVATIONS foo=<bar>>", "&lt;OBSERVATIONS foo=<bar>>"),
        ("< / current_task >", "&lt; / current_task >"),
        ("<current task>", "&lt;current task>"),
        ("<\n/thread id='1'>", "&lt;\n/thread id='1'>"),
        ("<<observations>>", "&lt;&lt;observations>>"),
        ("<obser\u200bvations>", "&lt;obser\u200bvations>"),
        ("<\u200b/\u2060observations>", "&lt;\u200b/\u2060observations>"),
        ("<observation\u017f>", "&lt;observation\u017f>"),
        ("<observations", "&lt;observations"),
        ("cut off <", "cut off &lt;"),
        ("cut off </", "cut off &lt;/"),
        ("&lt;observations>", "&amp;lt;observations>"),
        ("&amp;lt;observations>", "&amp;amp;lt;observations>"),
    ],
)
def test_what_could_be_a_tag_is_escaped(text: str, shown: str) -> None:
    """However it is spelt, and only its bracket."""
    assert escape(text) == shown
    assert unescape(shown) == text


@given(TEXT_STRATEGY)
@example("&&lt;observations")
@example("&amp;<observations")
def test_unescape_is_the_inverse(text: str) -> None:
    """Escaped text that a model copies is stored as it was said."""
    assert unescape(escape(text)) == text


@given(TEXT_STRATEGY)
def test_escaped_text_holds_no_tag_of_ours(text: str) -> None:
    """No text keeps a tag of ours."""
    assert tags_of(escape(text)) == []


@given(st.lists(TEXT_STRATEGY, max_size=4), st.sampled_from(["\n", "\n\n", " ", ""]))
def test_joined_texts_hold_exactly_our_tags(texts: list[str], between: str) -> None:
    """Escaped texts may be joined and put between our tags: only these are found, in their
    order."""
    body = between.join(map(escape, texts))
    rendered = f"<observations>\n{body}\n</observations>\n<current-task>\n{body}\n</current-task>"
    assert tags_of(rendered) == ["observations", "observations", "currenttask", "currenttask"]


def test_the_scanner_sees() -> None:
    """The proof above rests on a scanner that does find tags where they are."""
    assert tags_of("< /Current_Task x=1> <obs\u200bervations>") == ["currenttask", "observations"]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("<" * 300_000 + "x", id="brackets"),
        pytest.param("<current" * 40_000, id="half names"),
        pytest.param("&" + "amp;" * 80_000, id="half entities"),
        pytest.param("<current" + "-" * 300_000 + "x", id="a long separator"),
        pytest.param("<o" + "\u200b" * 300_000 + "x", id="unseen characters"),
        pytest.param("< " * 150_000 + "thread", id="a long run before a name"),
    ],
)
def test_hostile_text_costs_no_more_than_its_length(text: str) -> None:
    """Searching is linear: 300 000 characters made to be searched again and again take
    milliseconds."""
    began = time.process_time()
    unescape(escape(text))
    assert time.process_time() - began < 1.0
