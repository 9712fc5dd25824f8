"""Answers of which nothing may enter a memory."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from tests.agents.corpus.entry import Entry, sections, tagged, unusable
from tests.agents.corpus.wordlist import sentence

EMPTY = {
    "nothing": "",
    "blanks": " \n\t\n ",
    "tags-around-nothing": "<observations>\n</observations>",
    "one-line-of-tags": "<observations></observations>",
    "self-closing": "<observations/>",
    "twice-nothing": "<observations>\n\n</observations>\n<observations></observations>",
    "nothing-and-hints": "<observations>\n</observations>\n<current-task>wait</current-task>",
    "bullet-none": "<observations>\n* None\n</observations>",
    "bullet-n/a": "* N/A",
    "no-new-observations": "<observations>\n* No new observations.\n</observations>",
    "nothing-to-observe": "* 🟢 Nothing to observe",
    "nothing-in-german": "<observations>\n* Keine neuen Beobachtungen.\n</observations>",
    "nothing-in-chinese": "<observations>\n* 无\n</observations>",
    "nothing-in-japanese": "<observations>\n* 特になし\n</observations>",
    "nothing-in-spanish": "* 🟢 Nada",
    "only-thought": "<think>I should begin with\n* 🔴 the limit</think>",
    "thought-unfinished": "<think>Let me see. * 🔴 (10:00) The user",
}
PROSE = {
    "fences": "```\n```",
    "empty-json": "{}",
    "null": "null",
    "empty-bullets": "* \n* 🔴\n- ",
    "rules-and-bold": "---\n**Observations**\n---",
    "zero-width": "<observations>\n* \u200b\n</observations>",
    "marks-only": "🔴🟡🟢✅",
}


def entries() -> Iterator[Entry]:
    yield from (unusable(f"empty/{name}", "empty", answer) for name, answer in EMPTY.items())
    yield from (unusable(f"prose/{name}", "prose", answer) for name, answer in PROSE.items())
    yield from (unusable(f"error/{name}", "", answer) for name, answer in sections("errors.txt"))
    yield from _refusals()
    yield from _loops_of_lines()
    yield from _other_loops()
    yield from _oversized()
    yield from _very_long()


def _refusals() -> Iterator[Entry]:
    for name, answer in sections("refusals.txt"):
        yield unusable(
            f"refusal/{name.rstrip('*')}", "", tagged(answer) if name.endswith("*") else answer
        )


# ── loops ─────────────────────────────────────────────────────────────────────────────────────────


def _loops_of_lines() -> Iterator[Entry]:
    """Of 1 to 50 lines, as long as a model goes on until it is stopped; every third after notes
    that are good."""
    for period in range(1, 51):
        once = _notes(period, seed=period)
        before = _notes(10, seed=1_000 + period) if period % 3 == 0 else []
        text = "\n".join([*before, *once * max(4, 400 // period)])
        yield unusable(
            f"loop/{period:02}-lines",
            "loop",
            tagged(text) if period % 2 else f"<observations>\n{text}",
        )


def _other_loops() -> Iterator[Entry]:
    good = "\n".join(_notes(30, seed=7))
    phrase = "and then the user confirmed that the user confirmed that "
    days = "".join(
        f"Date: May {day}, 2023\n* 🟢 (09:00) User greeted the assistant\n" for day in (1, 2, 3)
    )
    yield unusable(
        "loop/phrase-in-a-line", "loop", tagged(f"* 🔴 (10:00) User said {phrase * 200}")
    )
    yield unusable(
        "loop/word-in-a-line", "loop", tagged(f"* 🔴 (10:00) {'very ' * 2_000}important")
    )
    yield unusable("loop/one-character", "loop", tagged("* 🔴 (10:00) N" + "o" * 4_000))
    yield unusable(
        "loop/without-blanks", "loop", tagged("* 🔴 (10:00) " + "同じことを何度も書く。" * 300)
    )
    yield unusable("loop/digits", "loop", tagged("* 🔴 (10:00) pi is 3." + "14159265" * 500))
    yield unusable(
        "loop/endless-line", "loop", tagged("* 🔴 (10:00) " + sentence(Random(1), 9_000))
    )
    yield unusable(
        "loop/after-good-notes",
        "loop",
        tagged(good + "\n" + "* 🟡 (11:00) User asked for the report\n" * 500),
    )
    yield unusable(
        "loop/in-the-middle",
        "loop",
        tagged(good + "\n* 🟢 (11:00) Assistant waited" * 300 + "\n" + good),
    )
    yield unusable(
        "loop/with-empty-lines",
        "loop",
        tagged("* 🟢 (11:00) Assistant waited for the answer\n\n" * 300),
    )
    yield unusable("loop/dates-and-lines", "loop", tagged(days * 100))
    yield unusable(
        "loop/sub-bullets",
        "loop",
        tagged("* 🔴 (10:00) The reasons:\n" + "  * it is the right thing to do\n" * 300),
    )
    yield unusable("loop/untagged", "loop", "* 🟢 (11:00) Assistant waited for the answer\n" * 300)
    yield unusable("loop/few-lines-in-no-order", "loop", tagged(_shuffled(_notes(6, seed=3), 400)))
    yield unusable(
        "loop/50-long-lines", "loop", tagged("\n".join(_notes(50, seed=5, words=140) * 24))
    )
    yield unusable("loop/of-tags", "", "<observations>\n" * 2_000)
    yield unusable(
        "loop/of-blocks", "loop", tagged("* 🔴 (10:00) User wants the report by noon") * 300
    )


def _notes(count: int, seed: int, words: int = 9) -> list[str]:
    rng = Random(seed)
    return [f"* 🟢 ({9 + n // 60:02}:{n % 60:02}) {sentence(rng, words)}" for n in range(count)]


def _shuffled(lines: list[str], count: int) -> str:
    return "\n".join(Random(1).choices(lines, k=count))


# ── too long ──────────────────────────────────────────────────────────────────────────────────────


def _oversized() -> Iterator[Entry]:
    notes = tagged("\n".join(_notes(300, seed=11)))
    yield unusable("oversized/of-little", "oversized", notes, source_tokens=400)
    counting = "\n".join(
        f"{n}. The user thanked the assistant for its patience" for n in range(1, 900)
    )
    yield unusable(
        "oversized/counting-without-end", "oversized", tagged(counting), source_tokens=3_000
    )


def _very_long() -> Iterator[Entry]:
    """What a model writes that is never stopped."""
    rng = Random(13)
    lines = [f"* 🟢 ({n // 60 % 24:02}:{n % 60:02}) {sentence(rng, 12)}" for n in range(21_000)]
    yield unusable(
        "300-000-tokens/loop",
        "loop",
        tagged("* 🟢 (11:00) Assistant waited for the answer\n" * 40_000),
    )
    yield unusable("300-000-tokens/one-line", "loop", tagged("* 🟢 (11:00) " + "waited " * 300_000))
    yield unusable(
        "300-000-tokens/of-little", "oversized", tagged("\n".join(lines)), source_tokens=100_000
    )
    yield unusable(
        "300-000-tokens/prose", "prose", "\n".join(sentence(rng, 20) for _ in range(15_000))
    )
