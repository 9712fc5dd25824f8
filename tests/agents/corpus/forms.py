"""Answers whose notes are good, in every form that models give them, in many languages, and of
every length."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from tests.agents.corpus.entry import Entry, sections, tagged, usable
from tests.agents.corpus.wordlist import sentence

NOTES = """\
Date: May 22, 2023
* 🔴 (09:14) User stated the upload limit is 40 MB, "no silent truncation"
* 🟡 (09:15) User asked why `test_resume` fails
  * `tests/test_upload.py:88`: expected 206, got 200
* ✅ (09:41) `parse_range()` handles suffix ranges; all 112 tests pass"""
FIRST, SECOND = NOTES[: NOTES.index("\n* ✅")], NOTES[NOTES.index("* ✅") :]
INLINE = "* 🔴 (09:14) User wants 40 MB * 🟡 (09:15) User asked why * ✅ (09:41) Done"

FORMS = {
    "as-asked": "<observations>\n{}\n</observations>",
    "any-case": "<OBSERVATIONS>\n{}\n</Observations>",
    "singular": "<observation>\n{}\n</observation>",
    "attributes": '<observations date="today">\n{}\n</observations>',
    "fenced": "```xml\n<observations>\n{}\n</observations>\n```",
    "fenced-inside": "<observations>\n```markdown\n{}\n```\n</observations>",
    "fenced-without-tags": "```\n{}\n```",
    "quoted": "Here are the notes:\n\n<observations>\n{}\n</observations>\n\nLet me know if you need more.",
    "heading": "## Observations\n\n<observations>\n{}\n</observations>",
    "bold-tags": "**<observations>**\n{}\n**</observations>**",
    "unclosed": "<observations>\n{}",
    "never-opened": "{}\n</observations>",
    "nested": "<observations>\n<observations>\n{}\n</observations>\n</observations>",
    "nested-thread": '<observations>\n<thread id="a1">\n{}\n</thread>\n</observations>',
    "closed-twice": "<observations>\n{}\n</observations>\n</observations>",
    "thought-first": "<think>\nThe user wants notes.\n* 🔴 draft\n</think>\n<observations>\n{}\n</observations>",
    "thought-opened-elsewhere": "* 🔴 draft\n</think>\n<observations>\n{}\n</observations>",
    "named-before": "I put them in <observations> tags as asked.\n<observations>\n{}\n</observations>",
    "hints-before": "<current-task>Upload</current-task>\n<observations>\n{}\n</observations>",
    "hints-after": "<observations>\n{}\n</observations>\n<current-task>Upload</current-task>\n<suggested-response>Ask",
    "hints-inside": "<observations>\n{}\n<current-task>Upload</current-task>\n</observations>",
    "no-tags": "{}",
    "no-tags-and-prose": "These are my notes.\n{}\nThat is all.",
    "polite-refusal-before": "I'm sorry for the delay.\n<observations>\n{}\n</observations>",
}


def entries() -> Iterator[Entry]:
    yield from (usable(f"form/{name}", NOTES, form.format(NOTES)) for name, form in FORMS.items())
    yield usable("form/foreign-line-ends", NOTES, tagged(NOTES).replace("\n", "\r\n"))
    yield usable("form/two-blocks", NOTES, f"{tagged(FIRST)}\n\n{tagged(SECOND)}")
    yield usable("form/second-block-unclosed", NOTES, f"{tagged(FIRST)}\n<observations>\n{SECOND}")
    yield usable(
        "form/one-line", INLINE.replace(" * ", "\n* "), f"<observations>{INLINE}</observations>"
    )
    yield usable("form/torn-in-the-middle", NOTES[:-40].rstrip(), f"<observations>\n{NOTES[:-40]}")
    yield from _about_ourselves()
    yield from (usable(f"language/{name}", notes) for name, notes in sections("languages.txt"))
    yield usable("language/untagged", _language("japanese"), _language("japanese"))
    weak = "Observations from the conversation\n- User grows plums\n- User has 12 trees"
    yield usable(
        "form/no-tags-no-marks", "- User grows plums\n- User has 12 trees", weak.partition("\n")[2]
    )
    yield usable(
        "form/no-tags-no-marks-and-a-heading",
        "- User grows plums\n- User has 12 trees",
        f"# {weak}",
    )
    yield usable(
        "form/no-tags-no-marks-and-a-bold-line",
        "- User grows plums\n- User has 12 trees",
        f"**{weak}".replace("\n", "**\n", 1),
    )
    yield usable(
        "form/prose-and-times",
        "- (10:00) User grows plums",
        "Here is what I noted for you:\n- (10:00) User grows plums",
    )
    yield usable("length/one-line", "* 🔴 (10:00) User is left-handed")
    yield usable("length/short-source", "* 🔴 (10:00) " + sentence(Random(2), 900), source_tokens=3)
    yield long("length/300-000-tokens", 300_000)


def _language(name: str) -> str:
    return dict(sections("languages.txt"))[name]


def _about_ourselves() -> Iterator[Entry]:
    """Notes on a conversation about refusals, errors, loops and these very tags."""
    yield usable(
        "about/tags",
        "* 🔴 (10:00) User wraps notes in <observations> and ends them with </observations>\n* 🔴 (10:01) b",
    )
    yield usable("about/hints", "* 🟡 (10:00) User asked what <current-task>x</current-task> does")
    yield usable(
        "about/refusals",
        "* 🟢 (10:00) Assistant answered \"I'm sorry, but I can't help with that.\"",
    )
    yield usable(
        "about/an-error",
        '* 🟢 (10:00) The API said: "prompt is too long: 214318 tokens > 200000 maximum"',
    )
    yield usable(
        "about/errors",
        "* 🔴 (10:00) Error: 429 is what the user wants retried\n* ✅ (10:05) Error: 500 is, too",
    )
    yield usable(
        "about/errors-untagged",
        "Date: May 22, 2023\n* 🔴 (10:00) Error: prompt is too long, said the API\n* ✅ (10:05) Batch halved",
        "Date: May 22, 2023\n* 🔴 (10:00) Error: prompt is too long, said the API\n* ✅ (10:05) Batch halved",
    )
    yield usable(
        "about/none",
        "* 🔴 (10:00) None\n* 🟢 (10:01) That was the user's answer to which allergies they have",
    )
    yield usable(
        "about/apology",
        "* 🔴 (10:00) Sorry is the name of the user's dog\n* 🟢 (10:02) It is five years old",
    )


def long(name: str, tokens: int) -> Entry:
    """A true log of so many words: names, numbers and times without a repetition."""
    rng = Random(tokens)
    lines = [
        f"* 🟢 ({n // 60 % 24:02}:{n % 60:02}) no {n} {sentence(rng, 16)}"
        for n in range(tokens // 21 + 1)
    ]
    return usable(name, "\n".join(lines), source_tokens=2 * tokens)
