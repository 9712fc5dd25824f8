"""The measures of `scripts/words` count what they say. No figure of ours is held to a limit."""

from __future__ import annotations

import json
import subprocess
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.docs import words
from tests.docs.words import Figures, Word
from tests.support.long_forms import long_form

MODULE = '''"""Of a module."""
MAX_BYTES = 1
_FEW: int = 2  # a long line: its words are these, and it goes on until it has a hundred and one characters
T = lower = 3

class Pool:
    """A pool."""
    LIMIT = 4

    def __init__(self) -> None: ...

    async def _kept(self) -> None:
        """

        With an empty line before it.
        """

def send_bytes() -> None:
    def told() -> None: ...
'''


def texts(found: Iterable[Word]) -> list[str]:
    return [word.text for word in found]


def test_constants() -> None:
    """Upper-case names at the top of a module; one letter is a type variable."""
    assert list(words.constants("m.py", MODULE)) == [
        Word("m.py:2", "MAX_BYTES"),
        Word("m.py:3", "FEW"),
    ]


def test_functions() -> None:
    """Methods and inner functions too; dunder names are the language's."""
    assert texts(words.functions("m.py", MODULE)) == ["send_bytes", "kept", "told"]


def test_docstrings() -> None:
    """The first line that is not blank."""
    assert sorted(texts(words.docstrings("m.py", MODULE))) == [
        "A pool.",
        "Of a module.",
        "With an empty line before it.",
    ]


@pytest.mark.parametrize("word", ["cached", "kept", "told", "written"])
def test_participles(word: str) -> None:
    assert words.is_participle(word)


@pytest.mark.parametrize("word", ["send", "feed", "need", "read", "set", "find", "is"])
def test_imperatives_are_no_participles(word: str) -> None:
    assert not words.is_participle(word)


@pytest.mark.parametrize(
    ("sentence", "begins"),
    [
        ("Of a module.", True),
        ("with a list", True),
        ("Often read.", False),
        ("A list of it", False),
    ],
)
def test_prepositions(sentence: str, begins: bool) -> None:
    assert words.begins_with_preposition(sentence) is begins


def test_find_words() -> None:
    """Each measure names what counts, and of how many."""
    found = words.find_words({"m.py": MODULE}, shared={"send"})
    assert {
        field: (texts(hits), total)
        for field, (hits, total) in found.items()
        if field != "long_lines"
    } == {
        "bare_constants": (["FEW"], 2),
        "participle_functions": (["kept", "told"], 3),
        "unshared_functions": (["kept", "told"], 3),
        "preposition_docstrings": (["Of a module.", "With an empty line before it."], 3),
    }
    long, total = found["long_lines"]
    assert [word.place for word in long] == ["m.py:3"]
    assert total == 14  # blank lines do not count


def test_measure() -> None:
    """Shares are rounded percentages; a folder counts the modules directly in it."""
    files = {"a/m.py": MODULE, "a/n.py": "", "a/b/o.py": ""}
    assert words.measure(files, "three plain words", {"send"}) == Figures(50, 67, 67, 7, 67, 2, 3)


def test_measure_of_nothing() -> None:
    """Without a constant there is no share of them."""
    assert words.measure({"m.py": ""}, "", set()) == Figures(None, None, None, None, None, 1, 0)


def test_table() -> None:
    """A row a figure; a missing share is a dash."""
    rows = words.render_table(
        {"ours": Figures(None, 1, 2, 3, 4, 5, 6_000), "x 1": Figures(*range(7))}
    ).splitlines()
    assert rows[:3] == [
        "|  | ours | x 1 |",
        "| --- | ---: | ---: |",
        "| constants of one word, % | – | 0 |",
    ]
    assert rows[-1] == "| README, words | 6,000 | 6 |"


def test_list_says_where() -> None:
    listed = words.render_list({"m.py": MODULE}, {"send", "told"})
    assert "── constants of one word: 1 of 2\nm.py:3  FEW\n" in listed
    assert "── functions whose first word no other project uses: 1 of 3\nm.py:12  kept\n" in listed


def test_table_replaces_the_one_before() -> None:
    """What stands before and after the marks stays, and twice is once."""
    page = f"before\n{words.BEGIN_MARK}\nold\n{words.END_MARK}\nafter\n"
    replaced = words.replace_table(page, "| new |\n")
    assert replaced == f"before\n{words.BEGIN_MARK}\n\n| new |\n\n{words.END_MARK}\nafter\n"
    assert words.replace_table(replaced, "| new |\n") == replaced


def test_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="the page has no"):
        words.replace_table(f"only {words.BEGIN_MARK}", "")


def test_record(tmp_path: Path) -> None:
    """A project is measured against the others' words; its tests and its list of changes are left
    out."""
    for name, module in (
        ("one", "def send(): ...\ndef kept(): ...\n"),
        ("two", "def send(): ...\n"),
    ):
        with zipfile.ZipFile(tmp_path / f"{name}-1.2-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}/a.py", module)
            wheel.writestr(f"{name}/tests/test_a.py", "def told(): ...\n")
            wheel.writestr(
                f"{name}-1.2.dist-info/METADATA",
                "Name: x\n\nA readme.\n# Changelog\n\nmany words\n",
            )
    record = words.record_projects(sorted(tmp_path.iterdir()), "2026-01-02")
    assert record["measured"] == "2026-01-02"
    assert record["first_words"] == ["kept send"]
    assert record["projects"]["one 1.2"]["unshared_functions"] == 50
    assert record["projects"]["two 1.2"] == {
        "bare_constants": None, "participle_functions": 0, "unshared_functions": 0, "long_lines": 0,
        "preposition_docstrings": None, "most_files": 1, "readme_words": 2,
    }  # fmt: skip


@long_form
def test_script_prints_every_project() -> None:
    """Ours first, then the seven recorded ones with their versions."""
    done = subprocess.run(
        [words.ROOT / "scripts" / "words"], capture_output=True, text=True, check=True, cwd="/"
    )
    projects = json.loads(words.RECORD_FILE.read_text(encoding="utf-8"))["projects"]
    assert len(projects) == 7
    header, _, *rows = done.stdout.splitlines()
    assert header == f"|  | om-proxy | {' | '.join(projects)} |"
    assert [row.split(" | ")[0] for row in rows] == [
        f"| {title}" for title in words.TITLES.values()
    ]


def test_table_stands_in_contributing() -> None:
    """It has a row for every figure; the numbers may be older."""
    page = words.PAGE.read_text(encoding="utf-8")
    words.replace_table(page, "")  # it has both marks
    for title in words.TITLES.values():
        assert page.count(f"| {title} | ") == 1
